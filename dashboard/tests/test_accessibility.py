# SPDX-License-Identifier: Apache-2.0
"""What axe-core says of each page in both themes, and the keyboard alone."""

from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from cyborg_tools.dashboard.horizon import Horizon
from dashboard.tests.accessibility import violations
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud

PAGES = (
    "/admin/accelerator_overview/",
    "/admin/accelerator_devices/",
    "/admin/accelerator_devices/<device>/",
    "/admin/accelerator_devices/change/disable/?device=<device>",
    "/admin/accelerator_devices/<device>/drain/",
    "/admin/accelerator_profiles/",
    "/admin/accelerator_profiles/<profile>/",
    "/admin/accelerator_profiles/create/",
    "/admin/accelerator_requests/",
    "/admin/accelerator_hosts/",
    "/admin/accelerator_hosts/<agent>/drain/",
    "/admin/accelerator_hosts/<agent>/resume/",
    "/admin/accelerator_hosts/discover/",
    "/admin/accelerator_drivers/",
    "/admin/accelerator_drivers/install/",
    "/admin/accelerator_operations/",
    "/project/accelerators/",
    "/project/accelerator_profiles/",
)


def examined(browser: Browser, cloud: Cloud, page: str) -> list[str]:
    device = cloud.devices(hostname="gpu-1.example.org")[0]["uuid"]
    profile = cloud.send("GET", "/device_profiles/gh200")["device_profile"]["uuid"]
    query = {"host": "gpu-1.example.org", "kind": "process"}
    (agent,) = [process["uuid"] for process in cloud.send("GET", "/services", **query)["services"]]
    for name, uuid in (("device", device), ("profile", profile), ("agent", agent)):
        page = page.replace(f"<{name}>", uuid)
    browser.open(page)
    return violations(browser)


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_serious_violation(admin: Browser, cloud: Cloud, page: str) -> None:
    assert examined(admin, cloud, page) == []


@pytest.fixture
def dark(browser: Browser, dark_horizon: Horizon) -> Iterator[Browser]:
    """The browser, whose pages are those of the Horizon with the dark theme."""
    light, browser.base = browser.base, dark_horizon.url
    yield browser
    assert browser.console() == []
    list(browser.loaded())
    browser.base = light


@pytest.mark.parametrize("page", PAGES)
def test_dark_page_has_no_serious_violation(
    dark: Browser, sign_in: Callable[[str], Browser], cloud: Cloud, page: str
) -> None:
    assert examined(sign_in("admin"), cloud, page) == []


class Keyboard:
    """A user without a mouse."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self._browser.driver).send_keys(*keys).perform()

    def reach(self, selector: str) -> None:
        """Press the tab key until an element has the focus, and shows that it has."""
        for _ in range(200):
            self.press(Keys.TAB)
            if self._browser.script(
                "return document.activeElement.matches(arguments[0])", selector
            ):
                return
        raise AssertionError(f"the tab key does not reach {selector}")

    def enter(self) -> None:
        """Press the enter key on what leads to another page."""
        self._browser.script("window.isOldPage = true")
        self.press(Keys.ENTER)
        self._browser.wait_for_new_page("the key")


@pytest.fixture
def keyboard(admin: Browser) -> Keyboard:
    return Keyboard(admin)


def test_keyboard_alone_creates_a_profile(admin: Browser, keyboard: Keyboard, cloud: Cloud) -> None:
    admin.open("/admin/accelerator_profiles/")
    keyboard.reach("#profiles__action_create")
    keyboard.enter()
    keyboard.reach("#id_name")
    keyboard.press("typed")
    keyboard.reach("#id_groups")
    keyboard.press("resources:FPGA=1")
    keyboard.reach(".accelerator-form input[type=submit]")
    keyboard.enter()
    profile = cloud.send("GET", "/device_profiles/typed")["device_profile"]
    assert profile["groups"] == [{"resources:FPGA": "1"}]
    cloud.send("DELETE", "/device_profiles/typed")


def test_keyboard_alone_enables_a_device(admin: Browser, keyboard: Keyboard, cloud: Cloud) -> None:
    device = cloud.devices(hostname="fpga-1.example.org")[0]["uuid"]
    cloud.send("PATCH", f"/devices/{device}", {"status": "maintaining", "status_reason": "k"})
    admin.open("/admin/accelerator_devices/?hostname=fpga-1.example.org")
    keyboard.reach(f"input[value='{device}']")
    keyboard.press(Keys.SPACE)
    keyboard.reach("#devices__action_enable")
    keyboard.enter()
    keyboard.reach(".accelerator-form input[type=submit]")
    keyboard.enter()
    assert cloud.send("GET", f"/devices/{device}")["status"] in ("enabled", "installing")


def test_pictures_have_their_tables(sign_in: Callable[[str], Browser]) -> None:
    browser = sign_in("admin")
    browser.open("/admin/accelerator_overview/")
    bars = browser.all("svg.accelerator-bar")
    assert bars
    assert {bar.get_attribute("aria-hidden") for bar in bars} == {"true"}
    rows = browser.cells("#units_table") + browser.cells("#capacity_table")
    assert len(rows) == len(bars)

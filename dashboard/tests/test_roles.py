# SPDX-License-Identifier: Apache-2.0
"""Who sees which panel."""

from collections.abc import Callable

import pytest

from dashboard.tests.browser import Browser
from dashboard.tests.cloud import HOSTS, Cloud, Seen

PEOPLE = ("admin", "manager", "member", "reader")
ADMIN_PANELS = ("overview", "devices", "profiles", "requests", "hosts", "drivers", "operations")
FORMS = (
    "/admin/accelerator_profiles/create/",
    "/admin/accelerator_drivers/install/",
    "/admin/accelerator_hosts/discover/",
)


@pytest.mark.parametrize("who", PEOPLE)
def test_panels_of_administrators_are_theirs_alone(
    sign_in: Callable[[str], Browser], counted: Callable[[], list[Seen]], who: str
) -> None:
    browser = sign_in(who)
    paths = [f"/admin/accelerator_{panel}/" for panel in ADMIN_PANELS]
    for path in [*paths, *FORMS]:
        counted()
        browser.open(path)
        if who == "admin":
            assert browser.path == path
            assert browser.messages == []
            continue
        text = browser.text
        assert browser.all(".accelerators") == []
        assert "not authorized" in text or "Forbidden" in text or "Insufficient" in text, text
        assert not [host for host in HOSTS if host in text]
        # Nothing was asked for.
        assert counted() == []
    list(browser.loaded())
    browser.console()


@pytest.mark.parametrize("who", PEOPLE)
def test_navigation_has_the_panels_that_one_may_open(
    sign_in: Callable[[str], Browser], who: str
) -> None:
    browser = sign_in(who)
    browser.open("/project/accelerators/")
    links = {link.get_attribute("href") for link in browser.all("#sidebar a[href]")}
    shown = {
        panel for panel in ADMIN_PANELS if f"{browser.base}/admin/accelerator_{panel}/" in links
    }
    assert shown == (set(ADMIN_PANELS) if who == "admin" else set())
    assert f"{browser.base}/project/accelerators/" in links
    assert f"{browser.base}/project/accelerator_profiles/" in links


def test_changes_are_refused_to_others_without_a_page(
    sign_in: Callable[[str], Browser], cloud: Cloud
) -> None:
    """A member who sends the form of an administrator by hand changes nothing."""
    browser = sign_in("member")
    browser.open("/project/accelerators/")
    device = cloud.devices(hostname="fpga-1.example.org")[0]
    path = f"/admin/accelerator_devices/change/disable/?device={device['uuid']}"
    status = browser.driver.execute_async_script(
        "const [path, done] = arguments;"
        "const token = document.cookie.match(/csrftoken=([^;]+)/);"
        "fetch(path, {method: 'POST', headers: {'X-CSRFToken': token ? token[1] : ''},"
        " body: new URLSearchParams({reason: 'mine'})}).then(answer => done(answer.status))",
        path,
    )
    assert status == 403
    assert cloud.send("GET", f"/devices/{device['uuid']}")["status"] == "enabled"
    browser.console()

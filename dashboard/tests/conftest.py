# SPDX-License-Identifier: Apache-2.0
"""One cloud, one Horizon and one browser for all tests."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from cyborg.tests.fixtures import programs
from cyborg.tests.fixtures.keystone import Account
from cyborg_tools.dashboard.horizon import Horizon
from dashboard.tests import cloud as clouds
from dashboard.tests import scenery
from dashboard.tests.browser import Browser, started
from dashboard.tests.cloud import Cloud, Seen

#: The pictures of the documents.
_PICTURES: Final = Path(__file__).parents[2] / "doc" / "source" / "admin" / "dashboard"


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with clouds.running(tmp_path_factory.mktemp("cloud")) as running:
        scenery.furnish(running)
        yield running


@pytest.fixture
def counted(cloud: Cloud) -> Callable[[], list[Seen]]:
    """Return the requests that reached the API since the last call."""

    def counted() -> list[Seen]:
        seen, cloud.front.seen[:] = list(cloud.front.seen), []
        return seen

    counted()
    return counted


@pytest.fixture(scope="session")
def horizon(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Horizon]:
    with Horizon(tmp_path_factory.mktemp("horizon"), cloud.keystone.url) as running:
        yield running


@pytest.fixture(scope="session")
def dark_horizon(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Horizon]:
    """Another server, whose static files are those of a dark theme."""
    place = tmp_path_factory.mktemp("dark")
    with Horizon(place, cloud.keystone.url, theme="dark") as running:
        yield running


@pytest.fixture(scope="session")
def window(horizon: Horizon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    programs.require(programs.BROWSER)
    with started(horizon.url, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, horizon: Horizon) -> Iterator[Browser]:
    """The browser; its pages make no error, and ask no other host than Horizon."""
    yield window
    answers = list(window.loaded())
    hosts = {urlsplit(answer.url).netloc for answer in answers if answer.url.startswith("http")}
    assert hosts <= {urlsplit(horizon.url).netloc}
    assert [answer for answer in answers if answer.status >= 500] == []
    assert window.console() == []
    assert "Traceback" not in horizon.log.read_text()


@pytest.fixture(scope="session")
def _sessions() -> dict[str, list[dict[str, object]]]:
    return {}


@pytest.fixture
def sign_in(
    browser: Browser, cloud: Cloud, _sessions: dict[str, list[dict[str, object]]]
) -> Callable[[str], Browser]:
    """Continue as one of the people of the cloud, who signs in once."""

    def sign_in(who: str) -> Browser:
        account: Account = getattr(cloud.people, who)
        session = f"{who} {browser.base}"
        browser.driver.delete_all_cookies()
        if session not in _sessions:
            # The first page of a project needs Nova, which only the service has here.
            browser.open("/auth/login/?next=/settings/")
            browser.find("#id_username").send_keys(account.user)
            browser.find("#id_password").send_keys(account.password)
            browser.press("#loginBtn")
            assert "/auth/login" not in browser.path, browser.text
            _sessions[session] = browser.driver.get_cookies()
        for cookie in _sessions[session]:
            browser.driver.add_cookie(cookie)
        return browser

    return sign_in


@pytest.fixture
def admin(sign_in: Callable[[str], Browser]) -> Browser:
    return sign_in("admin")


@pytest.fixture
def picture(browser: Browser, tmp_path: Path) -> Callable[[str], None]:
    """Take the picture of the page that the documents show.

    The committed picture is replaced if the environment asks for it.
    """

    def picture(name: str) -> None:
        place = _PICTURES if os.environ.get("CYBORG_TEST_REWRITE") else tmp_path
        browser.screenshot(place / f"{name}.png")

    return picture

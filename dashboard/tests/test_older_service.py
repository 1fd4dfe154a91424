# SPDX-License-Identifier: Apache-2.0
"""A service without microversion 2.100, and one that does not answer."""

from collections.abc import Iterator

import pytest

from dashboard.tests.browser import Browser
from dashboard.tests.cloud import HOSTS, Cloud

TOO_OLD = "does not support microversion 2.100"


@pytest.fixture
def older(cloud: Cloud) -> Iterator[None]:
    cloud.front.newest = "2.3"
    yield
    cloud.front.newest = ""


@pytest.mark.parametrize("panel", ["devices", "profiles", "requests"])
def test_lists_show_what_an_older_service_answers(admin: Browser, older: None, panel: str) -> None:
    admin.open(f"/admin/accelerator_{panel}/")
    assert TOO_OLD in admin.find("#older-service").text
    assert admin.cells()
    if panel == "devices":
        assert {row["Host"] for row in admin.cells()} == set(HOSTS)


@pytest.mark.parametrize("panel", ["overview", "hosts", "drivers", "operations"])
def test_other_panels_say_that_the_service_is_older(
    admin: Browser, older: None, panel: str
) -> None:
    admin.open(f"/admin/accelerator_{panel}/")
    assert any(TOO_OLD in message for message in admin.messages)


def test_project_panels_show_what_an_older_service_answers(admin: Browser, older: None) -> None:
    for path in ("/project/accelerators/", "/project/accelerator_profiles/"):
        admin.open(path)
        assert TOO_OLD in admin.find("#older-service").text


def test_form_says_that_the_service_is_older(admin: Browser, older: None) -> None:
    admin.open("/admin/accelerator_drivers/install/")
    admin.fill(driver="fake_driver")
    admin.submit()
    assert TOO_OLD in admin.find("[role=alert]").text

# SPDX-License-Identifier: Apache-2.0
"""The panels of a project: what its members see, and what they do not."""

from collections.abc import Callable

import pytest

from dashboard.tests.browser import Browser
from dashboard.tests.cloud import HOSTS, Cloud, Seen

OWN = "/project/accelerators/"
PROFILES = "/project/accelerator_profiles/"


@pytest.mark.parametrize("who", ["manager", "member", "reader"])
def test_people_of_a_project_see_its_servers(
    sign_in: Callable[[str], Browser],
    counted: Callable[[], list[Seen]],
    who: str,
    picture: Callable[[str], None],
) -> None:
    browser = sign_in(who)
    counted()
    browser.open(OWN)
    rows = browser.cells()
    assert sorted(row["Device Profile"] for row in rows) == ["h100", "h200", "h200", "h200"]
    assert {row["State"] for row in rows} == {"Bound"}
    assert len({row["Server"] for row in rows}) == 4
    # The versions, the requests, the names of the servers, and the quota.
    assert len(counted()) == 4
    text = browser.text
    assert not [host for host in HOSTS if host in text]
    if who == "member":
        picture("own")


def test_stranger_sees_nothing_of_another_project(sign_in: Callable[[str], Browser]) -> None:
    browser = sign_in("stranger")
    browser.open(OWN)
    assert browser.cells() == []
    browser.open(PROFILES)
    # One is private to another project.
    assert {row["Name"] for row in browser.cells()} == {"h200", "h100", "gh200"}


def test_quota_is_shown_as_a_bar_and_in_numbers(sign_in: Callable[[str], Browser]) -> None:
    browser = sign_in("member")
    browser.open(OWN)
    (row,) = [row for row in browser.cells("#quotas") if row["Resource"] == "Accelerators"]
    assert (row["Used"], row["Limit"]) == ("4", "no limit")


def test_profiles_say_whether_they_can_be_met(sign_in: Callable[[str], Browser]) -> None:
    browser = sign_in("reader")
    browser.open(PROFILES)
    rows = {row["Name"]: row["What It Means"] for row in browser.cells()}
    assert rows["h200"] == "A server can get it now."
    assert rows["gh200"] == "No host of the cloud has it: ask an administrator."
    assert "n6001" in rows


def test_administrator_sees_one_project_here(admin: Browser, cloud: Cloud) -> None:
    admin.open(OWN)
    assert admin.cells() == []
    assert len(cloud.send("GET", "/accelerator_requests")["arqs"]) == 4

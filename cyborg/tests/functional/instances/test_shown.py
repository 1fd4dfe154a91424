# SPDX-License-Identifier: Apache-2.0
"""Who sees which instances of a device that several projects share."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.instances.conftest import HOST, Cloud
from cyborg.tests.functional.life.http import Client


@pytest.fixture
def shared(make_cloud: Callable[..., Cloud]) -> tuple[Cloud, str, str]:
    """Servers of two projects with a unit of the first device each, and their names known."""
    cloud = make_cloud(refresh=3600.0)
    mine, theirs = cloud.boot("blue", "my-server"), cloud.boot("green", "their-server")
    eventually(lambda: {one["name"] for one in cloud.shown().values()} == NAMES)
    return cloud, mine, theirs


NAMES = {"my-server", "their-server"}


def leaves(thing: Any) -> list[Any]:
    """Every key and value in a JSON document, those of JSON within strings included."""
    if isinstance(thing, dict):
        return [leaf for key, value in thing.items() for leaf in (key, *leaves(value))]
    if isinstance(thing, list):
        return [leaf for value in thing for leaf in leaves(value)]
    try:
        nested = json.loads(thing) if isinstance(thing, str) else None
    except ValueError:
        nested = None
    return [thing, *(leaves(nested) if isinstance(nested, dict | list) else [])]


def names(who: Client) -> list[list[str]]:
    """The names of the instances of each device that somebody sees."""
    devices = who.get("/devices")["devices"]
    return [sorted(user["name"] for user in one["instances"]) for one in devices]


def test_role_decides_whose_instances_are_seen(shared: tuple[Cloud, str, str]) -> None:
    cloud, mine, theirs = shared
    for role in ("admin", "operator"):
        assert names(cloud.as_(role, "red")) == [["my-server", "their-server"], []]
    assert names(cloud.as_("manager", "red")) == [[], []]
    for role in ("member", "reader"):
        assert names(cloud.as_(role, "green")) == [["their-server"]]
        assert names(cloud.as_(role, "red")) == []
        who = cloud.as_(role, "blue")
        assert names(who) == [["my-server"]]
        (device,) = who.get("/devices")["devices"]
        assert who.get(f"/devices?instance={mine}")["devices"] == [device]
        assert who.get(f"/devices?instance={theirs}")["devices"] == []


def test_members_see_no_place_of_a_device(shared: tuple[Cloud, str, str]) -> None:
    """No value of any answer, however deep: not the host, the address, or who else is there."""
    cloud, mine, theirs = shared
    who = cloud.as_("member", "blue")
    (listed,) = who.get("/devices?sort_key=status&in_use=true")["devices"]
    shown = who.get(f"/devices/{listed['uuid']}")
    label = cloud.as_("member", "blue").patch(f"/devices/{listed['uuid']}", _LABEL, status=200)
    all_projects = cloud.admin.get(f"/devices/{listed['uuid']}")
    assert HOST in leaves(all_projects)
    telling = (HOST, HOST.partition(".")[0], theirs, "their-server", "green")
    for answer in (listed, shown, label):
        assert set(answer) == _OPEN | ({"profiles"} if answer is not listed else set())
        found = [str(leaf) for leaf in leaves(answer)]
        assert mine in found
        assert not [leaf for leaf in found for word in telling if word in leaf]
        assert not [leaf for leaf in found if _PCI_ADDRESS.search(leaf)]
    for noun in ("deployables", "attributes", "hardware", "backends", "services", "drivers"):
        assert who.answer("GET", f"/{noun}") == 403


_LABEL = {"labels": {"mine": "yes"}}
#: With or without its domain; a time of day has more digits behind its point.
_PCI_ADDRESS = re.compile(r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
#: All that members are told; ``hostname`` is a word for the host that differs between projects.
_OPEN = {
    "hostname",
    "health",
    "health_since",
    "holders",
    "resource_classes",
    "traits",
    "uuid",
    "type",
    "vendor",
    "model",
    "status",
    "driver",
    "labels",
    "in_use",
    "instances",
    "created_at",
    "updated_at",
    "links",
}

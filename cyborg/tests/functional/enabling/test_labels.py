# SPDX-License-Identifier: Apache-2.0
"""Status and labels of devices: operators set both, members label what they hold."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.rpc.verbs import UpdateDevice
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.enabling.conftest import Site
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, everything

Sites = Callable[..., Site]
CALLER = Caller("project", "user", "req-label", all_projects=True)


@pytest.fixture
def here(site: Sites) -> Site:
    """A device in service."""
    return site(bare=False, auto_enable=("*",))


def hold(here: Site) -> Client:
    """A member of a project whose request is bound to the device."""
    name = here.profile()
    member = replace(here.as_("member"), project=uuid4().hex)
    nova = member.with_service_token()
    bind(nova, create(member, name), here.provider(), host=here.compute)
    return member


def change(who: Client, here: Site, body: Any, status: int = 200) -> Any:
    return who.patch(here.path, body, status=status)


def test_members_label_devices_that_they_hold(here: Site) -> None:
    stranger = replace(here.as_("member"), project=uuid4().hex)
    change(stranger, here, {"labels": {"mine": "no"}}, status=404)
    member = hold(here)
    (listed,) = member.get("/devices")["devices"]
    assert listed["in_use"] is True
    assert here.compute not in str(listed)
    after = change(member, here, {"labels": {"mine": "yes"}})
    assert after["labels"] == {"mine": "yes"}
    assert here.compute not in str(after)
    change(member, here, {"status": "maintaining"}, status=403)
    change(stranger, here, {"labels": {"mine": "no"}}, status=404)
    assert stranger.get("/devices") == {"devices": []}
    reader = replace(member, role="reader")
    change(reader, here, {"labels": {"mine": "no"}}, status=403)
    assert here.device["labels"] == {"mine": "yes"}
    assert here.device["status"] == "enabled"


def test_labels_are_merged_and_outlive_reports(here: Site) -> None:
    operator, labels = here.operator, {"rack": "7", "tier": "a"}
    assert change(operator, here, {"labels": labels})["labels"] == labels
    after = change(operator, here, {"labels": {"rack": "8", "tier": None, "none": None}})
    assert after["labels"] == {"rack": "8"}
    scans = here.driver.scans
    many = {f"label-{number}": "x" for number in range(65)}
    before = everything(here.database, but=["hosts"])
    change(operator, here, {"status": "maintaining", "labels": many}, status=400)
    assert everything(here.database, but=["hosts"]) == before
    after = change(operator, here, {"status": "maintaining", "labels": {"why": "fan"}})
    assert (after["status"], after["labels"]) == ("maintaining", {"rack": "8", "why": "fan"})
    assert change(operator, here, {"status": "ready"})["status"] == "enabled"
    here.plug("0000:83:00.0", 1)
    # A second card has been reported: the host's tree was compared and written.
    eventually(lambda: len(operator.get("/devices")["devices"]) == 2)
    assert here.driver.scans > scans
    found = operator.get("/devices?labels=rack=8")["devices"]
    assert [one["labels"] for one in found] == [{"rack": "8", "why": "fan"}]


def test_repeated_update_runs_once(here: Site) -> None:
    uuid, once = here.device["uuid"], str(uuid4())

    def update(request_key: str, device: str, label: str) -> None:
        labels: dict[str, str | None] = {"rack": label}
        status = DeviceStatus.MAINTAINING
        request = UpdateDevice(
            CALLER, request_key, device, status=status, labels=labels, project=None
        )
        here.conductor.write(request)

    update(once, uuid, "7")
    update(str(uuid4()), uuid, "8")
    before = everything(here.database, but=["hosts"])
    update(once, uuid, "7")
    assert everything(here.database, but=["hosts"]) == before
    with pytest.raises(exception.NotFound):
        update(once, str(uuid4()), "7")

# SPDX-License-Identifier: Apache-2.0
"""A device is found inactive; an operator enables it, and its host sets it up where it must be."""

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.db.models import Host
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.rpc.verbs import SetDeviceStatus
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.enabling.conftest import Site
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    ended,
    eventually_idle,
    eventually_offered,
    everything,
    states,
    work_left,
)

Sites = Callable[..., Site]
CALLER = Caller("project", "user", "req-enable", all_projects=True)


def _units(placement: PlacementService, provider: str) -> tuple[int, int]:
    """Total and reserved units of a provider; (0, 0) while it or its inventory is not there."""
    try:
        _, inventories = Placement(placement.adapter()).inventories(provider)
    except exception.NotFound:
        return 0, 0
    found = inventories.values()
    return sum(int(one["total"]) for one in found), sum(int(one["reserved"]) for one in found)


def _reported(site: Site) -> bool:
    with site.database.reader() as tx:
        digest = sa.select(Host.digest).where(Host.name == site.compute)
        return tx.execute(digest).scalar_one_or_none() is not None


def test_enable_runs_setup_first(site: Sites, placement: PlacementService) -> None:
    here = site()
    here.driver.gate.clear()
    scans = here.driver.scans
    here.enable()
    assert here.device["status"] == "installing"
    assert work_left(here.database) == ["set_up_device"]
    assert offered(placement, here.provider()) == 0
    here.enable()  # asked for twice: it is set up once
    here.driver.gate.set()
    here.becomes("enabled")
    assert here.driver.installed == [CARD]
    assert here.driver.scans > scans
    eventually_offered(placement, here.provider(), 2)
    assert work_left(here.database) == []


def test_progress_of_a_set_up_is_shown_with_its_status(site: Sites) -> None:
    here = site()
    here.driver.gate.clear()
    here.enable()
    progress = "50%: writing the flash memory"
    eventually(lambda: here.device["status_reason"] == progress)
    here.driver.gate.set()
    here.becomes("enabled")
    assert here.device["status_reason"] is None


def test_enable_fails_when_device_is_gone(site: Sites) -> None:
    here = site()
    here.driver.gate.clear()
    here.enable()
    here.pull(CARD)
    here.driver.gate.set()
    eventually_idle(here.database)
    here.plug(CARD, 2)
    here.becomes("failed")
    assert "does not list the device" in here.device["status_reason"]


def test_setup_is_repeated_after_agent_restart(site: Sites) -> None:
    here = site()
    here.stop()
    here.enable()
    assert here.device["status"] == "installing"
    here.start()
    here.becomes("enabled")


@pytest.mark.parametrize("plugged", [True, False])
def test_auto_enable_runs_setup_first(
    site: Sites, placement: PlacementService, *, plugged: bool
) -> None:
    """With the first report of the host, and with a later one."""
    here = site(auto_enable=("*",), plugged=plugged, shut=True)
    if not plugged:
        eventually(lambda: _reported(here))
        here.plug(CARD, 2)
        eventually(lambda: bool(here.operator.get("/devices")["devices"]))
    here.becomes("installing")
    assert offered(placement, here.provider()) == 0
    here.driver.gate.set()
    here.becomes("enabled")
    assert here.driver.installed == [CARD]
    eventually_offered(placement, here.provider(), 2)
    here.unready(required=False)
    assert (here.device["status"], here.driver.installed) == ("enabled", [CARD])


def test_discovery_with_setup_enables_inactive_devices(site: Sites) -> None:
    here = site()
    here.becomes("inactive")
    operator = here.operator
    body = {"driver": "card_driver", "setup": True}
    operator.post("/services/discover", {"setup": True}, status=400)
    here.driver.gate.clear()
    over = ended(operator, operator.post("/services/discover", body, status=202))
    assert over["subject"] == {"driver": "card_driver", "hosts": [here.compute]}
    assert over["results"][0]["result"]["installing"] == [here.device["uuid"]]
    assert here.device["status"] == "installing"
    here.driver.gate.set()
    here.becomes("enabled")


def test_device_without_setup_is_enabled_and_bound_at_once(
    site: Sites, placement: PlacementService
) -> None:
    here = site(bare=False, auto_enable=("other_driver",))
    assert (here.device["status"], here.device["status_reason"]) == ("inactive", None)
    eventually(lambda: _units(placement, here.provider()) == (2, 2))
    member = here.as_("member", None)
    arqs = create(member, here.profile())
    nova = member.with_service_token()
    instance = bind(nova, arqs, here.provider(), host=here.compute, status=409)
    assert states(member, arqs) == ["Initial"]
    stranger = replace(here.as_("member"), project="elsewhere")
    for verb in ("enable", "disable"):
        for other in (here.as_("manager"), stranger):
            assert other.answer("POST", f"{here.path}/{verb}") == 403
    assert here.device["status"] == "inactive"
    refused = here.operator.patch(here.path, {"status": "draining"}, status=409)
    assert "is inactive: it is not in service, so that there is nothing to drain" in str(refused)
    here.enable()
    assert here.device["status"] == "enabled"
    eventually_offered(placement, here.provider(), 2)
    assert here.driver.installed == [CARD]  # by the test, before it was found
    bind(nova, arqs, here.provider(), host=here.compute, instance=instance)
    assert states(member, arqs) == ["Bound"]


def test_older_microversions_show_two_states(site: Sites) -> None:
    here = site()
    older = [here.as_("admin", version) for version in ("2.3", "2.0")]
    uuid = here.device["uuid"]

    def becomes(status: str) -> None:
        here.becomes(status)
        for one in older:
            assert one.get(f"/devices/{uuid}").get("status", "maintaining") == "maintaining"
            assert len(one.get("/devices?status=maintaining")["devices"]) == 1

    becomes("inactive")
    here.driver.gate.clear()
    here.enable()
    becomes("installing")
    here.driver.refusal = exception.HostError(action="flashing", reason="no power")
    here.driver.gate.set()
    becomes("failed")
    here.pull(CARD)
    becomes("lost")


def test_failed_setup_is_shown_and_retried_by_enable(
    site: Sites, placement: PlacementService
) -> None:
    here = site()

    def fails(reason: str) -> None:
        here.enable()
        here.becomes("failed")
        assert reason in here.device["status_reason"]
        assert offered(placement, here.provider()) == 0

    here.driver.refusal = exception.HostError(action="flashing", reason="no power")
    fails("no power")
    here.driver.refusal = exception.DriverCannot(driver="card_driver", verb="install")
    fails("does not support install")
    here.driver.refusal, here.driver.useless = None, True
    fails("no image is loaded")
    here.driver.reboot = True
    fails("has to be rebooted")
    here.driver.useless = False
    here.enable()
    here.becomes("enabled")
    assert here.device["status_reason"] == "Its host has to be rebooted."


def test_repeated_enable_runs_once_and_disable_cancels_setup(
    site: Sites, placement: PlacementService
) -> None:
    here = site()
    here.driver.gate.clear()
    uuid, once = here.device["uuid"], str(uuid4())
    here.conductor.write(SetDeviceStatus(CALLER, once, uuid, DeviceStatus.ENABLED))
    here.driver.refusal = exception.HostError(action="flashing", reason="no power")
    here.driver.gate.set()
    here.becomes("failed")
    # hosts and drivers follow the reports, which go on.
    before = everything(here.database, but=["hosts", "drivers"])
    here.conductor.write(SetDeviceStatus(CALLER, once, uuid, DeviceStatus.ENABLED))
    assert everything(here.database, but=["hosts", "drivers"]) == before
    here.driver.refusal = None
    here.driver.gate.clear()
    here.enable()
    here.operator.post(f"{here.path}/disable", status=204)
    assert here.device["status"] == "maintaining"
    here.driver.gate.set()
    eventually(lambda: here.driver.installed == [CARD] or work_left(here.database) == [])
    assert here.device["status"] == "maintaining"
    assert offered(placement, here.provider()) == 0


def test_enabled_device_has_status_reason_of_the_operator(
    site: Sites, placement: PlacementService
) -> None:
    here = site(bare=False, auto_enable=("other_driver", "card_driver"))
    assert here.device["status"] == "enabled"
    eventually_offered(placement, here.provider(), 2)
    operator, path = here.operator, here.path
    order = {"status": "maintaining", "status_reason": "fans"}
    operator.patch(path, {"status_reason": "fans"}, status=400)
    operator.patch(path, {**order, "status": "enabled"}, status=400)
    assert operator.patch(path, order, status=200)["status_reason"] == "fans"
    assert here.device["status_reason"] == "fans"
    here.enable()
    assert here.device["status_reason"] is None

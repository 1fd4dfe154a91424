# SPDX-License-Identifier: Apache-2.0
"""Devices in service whose hardware has to be set up again: after a boot, or new firmware."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import Device, Event
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.enabling.conftest import Site
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    Arqs,
    bind,
    create,
    ended,
    eventually_offered,
    hasten,
    meddle,
    states,
    work_left,
)

Sites = Callable[..., Site]


@pytest.fixture
def here(site: Sites, placement: PlacementService) -> Site:
    """A card in service, set up and reported so."""
    made = site(auto_enable=("*",))
    made.becomes("enabled")
    made.unready(required=False)
    eventually_offered(placement, made.provider(), 2)
    assert made.driver.installed == [CARD]
    return made


def hold(here: Site) -> tuple[Client, Arqs, str]:
    """A guest has one of the two units: Nova, what it bound, and the name of the profile."""
    name = here.profile()
    nova = here.as_("member", None).with_service_token()
    arqs = create(nova, name)
    bind(nova, arqs, here.provider(), host=here.compute)
    return nova, arqs, name


def discover(here: Site) -> dict[str, Any]:
    """What came of having the host look now."""
    begun = here.operator.post("/services/discover", {}, status=202)
    (result,) = ended(here.operator, begun)["results"]
    assert result["state"] == "succeeded"
    return dict(result["result"])


def waits(here: Site) -> bool:
    return "It waits for them" in str(here.device["status_reason"])


def test_device_is_set_up_again_after_a_reboot(here: Site, placement: PlacementService) -> None:
    here.driver.gate.clear()
    here.driver.boot()
    here.becomes("installing")
    eventually_offered(placement, here.provider(), 0)
    here.driver.gate.set()
    here.becomes("enabled")
    eventually_offered(placement, here.provider(), 2)
    here.unready(required=False)
    assert here.driver.installed == [CARD, CARD]
    assert here.device["status_reason"] is None
    assert work_left(here.database) == []
    with here.database.reader() as tx:
        told = sa.select(Event.action).where(Event.noun == "device").order_by(Event.id)
        actions = list(tx.execute(told).scalars())
    assert actions == ["discovered", *["installing", "enabled"] * 2]


def test_device_is_failed_when_setup_fails_after_a_reboot(
    here: Site, placement: PlacementService
) -> None:
    here.driver.refusal = exception.HostError(action="flashing", reason="no power")
    here.driver.boot()
    here.becomes("failed")
    assert "no power" in here.device["status_reason"]
    eventually_offered(placement, here.provider(), 0)
    # Nobody tries again but whoever enables it.
    assert discover(here)["installing"] == []
    assert here.device["status"] == "failed"
    here.driver.refusal = None
    here.enable()
    here.becomes("enabled")
    enabled = here.device
    assert enabled["status_reason"] is None
    here.unready(required=False)
    here.driver.useless = here.driver.reboot = True
    here.driver.boot()
    here.becomes("failed")
    assert "has to be rebooted" in here.device["status_reason"]


def test_setup_waits_for_units_in_use(here: Site, placement: PlacementService) -> None:
    nova, arqs, profile = hold(here)
    here.driver.boot()
    eventually(lambda: waits(here))
    assert arqs[0]["uuid"] in here.device["status_reason"]
    assert here.device["status"] == "installing"
    eventually_offered(placement, here.provider(), 0)
    more = create(nova, profile)
    bind(nova, more, here.provider(), host=here.compute, status=409)
    assert discover(here)["installing"] == [here.device["uuid"]]
    assert states(nova, arqs) == ["Bound"]
    assert here.driver.installed == [CARD]
    nova.delete(f"/accelerator_requests?arqs={arqs[0]['uuid']}")
    hasten(here.database)
    here.becomes("enabled")
    assert here.driver.installed == [CARD, CARD]
    eventually_offered(placement, here.provider(), 2)
    bind(nova, more, here.provider(), host=here.compute)


def test_device_that_is_ready_or_disabled_needs_no_setup(
    here: Site, placement: PlacementService
) -> None:
    nova, arqs, _ = hold(here)
    here.driver.boot()
    eventually(lambda: waits(here))
    here.driver.install(CARD, "")  # somebody else's doing
    here.unready(required=False)
    hasten(here.database)
    here.becomes("enabled")
    assert here.device["status_reason"] is None
    assert states(nova, arqs) == ["Bound"]
    assert here.driver.installed == [CARD, CARD]
    here.driver.boot()
    eventually(lambda: waits(here))
    here.operator.post(f"{here.path}/disable", status=204)
    assert (here.device["status"], work_left(here.database)) == ("maintaining", [])
    assert here.device["status_reason"] is None
    eventually(lambda: offered(placement, here.provider()) == 0)


def test_discovery_sets_up_enabled_devices_only(site: Sites) -> None:
    """Its hardware has needed it since before it was in service."""
    here = site()
    for status in ("inactive", "maintaining"):
        if status == "maintaining":
            here.operator.post(f"{here.path}/disable", status=204)
        assert discover(here)["installing"] == []
        assert (here.device["status"], here.driver.installed) == (status, [])
        assert work_left(here.database) == []
    meddle(here.database, sa.update(Device).values(status="enabled"))
    assert discover(here)["installing"] == [here.device["uuid"]]
    here.becomes("enabled")
    assert here.driver.installed == [CARD]

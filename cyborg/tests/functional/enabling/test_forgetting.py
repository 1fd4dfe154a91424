# SPDX-License-Identifier: Apache-2.0
"""Operators have lost devices forgotten: out of Placement first, out of the database after it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.db.models import Deployable, Host
from cyborg.model.caller import Caller
from cyborg.model.provider import provider_uuid
from cyborg.rpc.verbs import DeleteDevice
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.enabling.conftest import Site
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.life.steps import bind, create, eventually_offered, everything

Sites = Callable[..., Site]
CALLER = Caller("project", "user", "req-forget", all_projects=True)
_STEADY = ["hosts", "drivers"]


@pytest.fixture
def here(site: Sites, placement: PlacementService) -> Site:
    """A device in service, published in Placement."""
    made = site(bare=False, auto_enable=("*",))
    eventually_offered(placement, made.provider(), 2)
    return made


def published(placement: PlacementService, provider: str) -> bool:
    try:
        Placement(placement.adapter()).inventories(provider)
    except exception.NotFound:
        return False
    return True


def devices(here: Site) -> list[str]:
    return [one["uuid"] for one in here.operator.get("/devices")["devices"]]


def test_delete_removes_lost_deployable(here: Site, placement: PlacementService) -> None:
    name = f"{here.compute}_gone"
    with here.database.writer() as tx:
        sibling = tx.execute(sa.select(Deployable)).one()._mapping
        news: dict[str, Any] = {"uuid": str(uuid4()), "name": name, "rp_uuid": provider_uuid(name)}
        news["lost_ms"] = here.database.now
        row = {key: value for key, value in {**sibling, **news}.items() if key != "id"}
        tx.execute(sa.insert(Deployable).values(**row))
        tx.execute(sa.update(Host).values(desired_generation=Host.desired_generation + 1))
    eventually(lambda: published(placement, provider_uuid(name)))

    def deployables() -> int:
        with here.database.reader() as tx:
            return int(tx.execute(sa.select(sa.func.count(Deployable.id))).scalar_one())

    path = here.path
    here.operator.delete(path)
    eventually(lambda: deployables() == 1)
    assert not published(placement, provider_uuid(name))
    assert here.device["status"] == "enabled"
    eventually_offered(placement, here.provider(), 2)
    here.operator.delete(path, status=409)


def test_device_reported_before_removal_is_kept(here: Site, placement: PlacementService) -> None:
    uuid = here.device["uuid"]
    here.pull(CARD)
    here.becomes("lost")
    here.stop()
    here.operator.delete(f"/devices/{uuid}")
    assert devices(here) == [uuid]
    here.plug(CARD, 2)
    here.start()
    here.becomes("enabled")
    eventually_offered(placement, here.provider(), 2)
    assert devices(here) == [uuid]
    # Lost once more, it is not forgotten by the word of the last time.
    here.pull(CARD)
    here.becomes("lost")
    here.plug("0000:83:00.0", 1)
    eventually(lambda: len(devices(here)) == 2)
    assert uuid in devices(here)


def test_deleted_lost_device_leaves_placement_and_database(
    here: Site, placement: PlacementService
) -> None:
    """Only operators delete it, once it is lost and no request has a unit of it."""
    uuid, path, once = here.device["uuid"], here.path, str(uuid4())
    profile, member = here.profile(), here.as_("member", None)
    nova = member.with_service_token()
    before = everything(here.database, but=_STEADY)
    answer = here.operator.delete(path, status=409)
    assert "report it again" in answer["error_message"]
    assert everything(here.database, but=_STEADY) == before
    here.operator.delete(f"/devices/{uuid4()}", status=404)
    (arq,) = create(member, profile)
    instance = bind(nova, [arq], here.provider(), host=here.compute)
    assert arq["uuid"] in here.operator.delete(path, status=409)["error_message"]
    here.pull(CARD)
    here.becomes("lost")
    assert arq["uuid"] in here.operator.delete(path, status=409)["error_message"]
    assert published(placement, here.provider())
    nova.delete(f"/accelerator_requests?instance={instance}")
    for other in (here.as_("manager"), replace(here.as_("member"), project=uuid4().hex)):
        assert other.answer("DELETE", path) == 403
    assert here.as_("admin", "2.3").answer("DELETE", path) == 404
    assert here.device["status"] == "lost"
    here.conductor.write(DeleteDevice(CALLER, once, uuid))
    eventually(lambda: devices(here) == [])
    assert not published(placement, here.provider())
    before = everything(here.database, but=_STEADY)
    here.conductor.write(DeleteDevice(CALLER, once, uuid))
    assert everything(here.database, but=_STEADY) == before
    here.operator.delete(path, status=404)
    here.plug(CARD, 2)
    eventually(lambda: len(devices(here)) == 1)
    assert devices(here) != [uuid]
    eventually_offered(placement, here.provider(), 2)


def test_delete_removes_lost_units(here: Site, placement: PlacementService) -> None:
    path = here.path
    here.plug(CARD, 1)
    eventually_offered(placement, here.provider(), 1)
    here.operator.delete(path)

    def total() -> int:
        (one,) = Placement(placement.adapter()).inventories(here.provider())[1].values()
        return int(one["total"])

    eventually(lambda: total() == 1)
    here.operator.delete(path, status=409)
    assert here.device["status"] == "enabled"

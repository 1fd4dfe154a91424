# SPDX-License-Identifier: Apache-2.0
"""What agents see, the database keeps and Placement shows (check list, 89 and 94 to 102)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_DNS, uuid3, uuid4

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Device, Driver, Host, Service
from cyborg.drivers import loader
from cyborg.model import report
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import Gate, eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER, Rack, SecondDriver, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_offered,
    everything,
    of_instance,
    published,
)

Computes = Callable[..., ComputeHost]
Racks = Callable[..., RackedCompute]
Profiles = Callable[..., str]


def provider(placement: PlacementService, uuid: str) -> dict[str, Any]:
    """What Placement shows of a provider: parent, class, total, reserved, traits."""
    found = placement.call("GET", f"/resource_providers/{uuid}")
    inventories = placement.call("GET", f"/resource_providers/{uuid}/inventories")["inventories"]
    traits = placement.call("GET", f"/resource_providers/{uuid}/traits")["traits"]
    ((name, units),) = inventories.items()
    return {
        "name": found["name"],
        "parent": found["parent_provider_uuid"],
        "class": name,
        "total": units["total"],
        "reserved": units["reserved"],
        "traits": set(traits),
    }


def uuids(database: Database) -> set[str]:
    """The uuids of all devices, deployables, attributes and handles."""
    rows = everything(database)
    tables = ("devices", "deployables", "attributes", "attach_handles", "controlpath_ids")
    return {value for name in tables for row in rows[name] for value in row if _is_uuid(value)}


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and len(value) == 36 and value.count("-") == 4


def test_fake_device_is_reported_and_published(
    compute: Computes, admin: Client, placement: PlacementService
) -> None:
    host = compute()
    (device,) = admin.get("/devices")["devices"]
    assert (device["type"], device["vendor"]) == ("FPGA", "0xABCD")
    assert device["hostname"] == host.compute
    (deployable,) = admin.get("/deployables")["deployables"]
    assert deployable["num_accelerators"] == 16
    name = f"{host.compute.replace('.', '_')}_FakeDevice"
    assert deployable["name"] == name
    assert provider(placement, str(uuid3(NAMESPACE_DNS, name))) == {
        "name": name,
        "parent": host.root,
        "class": "FPGA",
        "total": 16,
        "reserved": 0,
        "traits": {"CUSTOM_FAKE_DEVICE"},
    }


def test_unchanged_host_sends_no_report_and_changes_no_row(
    racked: Racks, database: Database
) -> None:
    cards = {CARD: 2, OTHER: 1}
    host = racked(cards=cards)

    def stored() -> Any:
        with database.reader() as tx:
            updated = tx.execute(sa.select(Host.updated_ms)).scalar_one()
        return everything(database), published(database), updated

    names = {f"{host.compute}_{address}": (units, 0) for address, units in cards.items()}
    eventually(lambda: published(database) == names)
    before, scans = stored(), host.driver.scans
    eventually(lambda: host.driver.scans >= scans + 3)
    assert stored() == before
    host.restart()
    scans = host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)
    assert (everything(database), published(database)) == before[:2]


def test_report_that_is_too_large_is_refused_and_the_reason_is_shown(
    racked: Racks, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent goes on with its heartbeats, and the rows of the host stay."""
    host = racked(cards={CARD: 2})
    most = 100
    monkeypatch.setattr(report, "MOST", {**report.MOST, "attach handles": most})
    host.plug(CARD, most + 1)

    def causes() -> list[str]:
        listed = replace(admin, version="2.100").get("/services?kind=process")["services"]
        # The database may have processes of other tests, which are down.
        ours = [one for one in listed if one["host"] == host.compute]
        return [one["cause"] for one in ours if one["cause"]]

    reason = f"it has {most + 1} attach handles, and at most {most} are stored"
    eventually(lambda: any(reason in cause for cause in causes()))

    def units() -> int:
        (deployable,) = admin.get("/deployables")["deployables"]
        return int(deployable["num_accelerators"])

    assert units() == 2
    host.plug(CARD, 3)
    eventually(lambda: causes() == [])
    assert units() == 3


def test_disabled_device_stays_reserved_until_enabled(
    racked: Racks,
    admin: Client,
    placement: PlacementService,
    profile: Profiles,
    nova: Client,
    *,
    resource_class: str,
) -> None:
    host = racked(cards={CARD: 2})
    instance = bind(
        nova, create(nova, profile({f"resources:{resource_class}": "1"})), host.provider()
    )
    (device,) = admin.get("/devices")["devices"]
    admin.post(f"/devices/{device['uuid']}/disable", status=204)
    eventually_offered(placement, host.provider(), 0)
    # A report that brings news does not open it again, nor does a new agent.
    host.plug(CARD, 3)
    eventually(lambda: provider(placement, host.provider())["total"] == 3)
    assert provider(placement, host.provider())["reserved"] == 3
    host.restart()
    scans = host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)
    assert provider(placement, host.provider())["reserved"] == 3
    assert of_instance(nova, instance)[0]["state"] == "Bound"
    admin.post(f"/devices/{device['uuid']}/enable", status=204)
    eventually_offered(placement, host.provider(), 3)


def test_lost_device_keeps_rows_and_is_offered_again_when_it_returns(
    racked: Racks,
    admin: Client,
    database: Database,
    placement: PlacementService,
    profile: Profiles,
    *,
    nova: Client,
    resource_class: str,
) -> None:
    host = racked(cards={CARD: 1, OTHER: 1})
    name = profile({f"resources:{resource_class}": "1"})
    instance = bind(nova, create(nova, name), host.provider())
    before = uuids(database)
    host.pull(CARD)
    eventually_offered(placement, host.provider(), 0)
    # The provider stays under the allocation, the row and the bind as well; the other goes on.
    assert provider(placement, host.provider())["total"] == 1
    assert offered(placement, host.provider(OTHER)) == 1
    assert uuids(database) == before
    assert of_instance(nova, instance)[0]["state"] == "Bound"
    delete_arqs(nova, instance)
    more = create(nova, name)
    assert "lost" in str(
        nova.patch(ARQS, bind_body(more, host.compute, host.provider(), str(uuid4())), status=409)
    )
    host.plug(CARD, 1)
    eventually_offered(placement, host.provider(), 1)
    assert uuids(database) == before
    bind(nova, more, host.provider())


def lost_devices(database: Database) -> list[str]:
    """The keys of the devices that count as lost."""
    with database.reader() as tx:
        query = sa.select(Device.device_key).where(Device.lost_ms.is_not(None))
        return list(tx.execute(query).scalars())


def test_failing_driver_does_not_stop_the_others(
    racked: Racks, placement: PlacementService, database: Database
) -> None:
    good = racked(cards={CARD: 1}, started=False)
    elsewhere = f"{good.compute}-2"
    machine = FakeHost()
    driver = SecondDriver(machine, elsewhere, Traits(good.resource_class))
    bad = Rack(elsewhere, machine, driver)
    bad.machine.add_file(f"/cards/{OTHER}", "2")
    unknown = loader.load(["no_such_driver"], good.machine, cfg.ConfigOpts())
    good.start(good.loaded, bad.loaded, *unknown)
    eventually_offered(placement, bad.provider(OTHER), 2)
    eventually_offered(placement, good.provider(), 1)
    before = uuids(database)
    bad.driver.behaviour.broken = RuntimeError("the library crashed")
    good.plug(CARD, 4)
    eventually_offered(placement, good.provider(), 4)
    eventually_offered(placement, bad.provider(OTHER), 0)
    assert provider(placement, bad.provider(OTHER))["total"] == 2
    assert before < uuids(database)
    # The driver cannot tell whether its device is there: nobody may take it for lost.
    assert lost_devices(database) == []
    with database.reader() as tx:
        rows = tx.execute(sa.select(Driver.name, Driver.state, Driver.error))
        drivers = {row.name: (row.state, row.error) for row in rows}
    assert drivers["card_driver"] == ("READY", None)
    assert drivers["second_driver"][0] == "FAILED"
    assert "the library crashed" in drivers["second_driver"][1]
    assert drivers["no_such_driver"] == ("FAILED", "no driver of this name is installed")
    bad.driver.behaviour.broken = None
    eventually_offered(placement, bad.provider(OTHER), 2)


def test_service_shows_error_when_all_drivers_fail(
    racked: Racks, app: Any, database: Database
) -> None:
    rack = racked(cards={CARD: 1}, started=False)
    name, unknown = rack.compute, loader.load(["no_such_driver"], rack.machine, cfg.ConfigOpts())
    rack.driver.behaviour.broken = RuntimeError("the library crashed")
    operator = Client(app, role="operator", version="2.100")

    def shown(client: Client) -> dict[str, Any]:
        found: list[dict[str, Any]] = client.get("/services", host=name)["services"]
        return found[0] if found else {}

    def status() -> str:
        with database.reader() as tx:
            return str(tx.execute(sa.select(Service.status).where(Service.host == name)).scalar())

    rack.start(rack.loaded, *unknown)
    eventually(lambda: bool(shown(operator).get("cause")))
    agent = shown(operator)
    assert agent["state"] == "up"
    assert agent["cause"].startswith("No driver works: ")
    assert "no_such_driver: no driver of this name is installed" in agent["cause"]
    assert "card_driver: " in agent["cause"]
    assert "the library crashed" in agent["cause"]
    assert "driver" in agent["remedy"]
    assert status() == "FAILED"
    rack.driver.behaviour.broken = None
    eventually(lambda: shown(operator)["cause"] is None)
    assert status() == "READY"


def test_heartbeats_continue_while_a_driver_does_not_return(
    racked: Racks,
    placement: PlacementService,
    database: Database,
    app: Any,
    member: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    operator = Client(app, role="operator", version="2.100")

    def last_heartbeat() -> int:
        with database.reader() as tx:
            seen = sa.select(Service.last_seen_ms).where(Service.host == host.compute)
            return int(tx.execute(seen).scalar_one())

    host.driver.behaviour.scanning = Gate()
    host.plug(OTHER, 2)
    host.driver.behaviour.scanning.reached()
    scans = host.driver.scans
    times: set[int] = set()

    def heard_often() -> bool:
        times.add(last_heartbeat())
        return len(times) > 3

    eventually(heard_often)
    (agent,) = operator.get("/services", host=host.compute)["services"]
    assert (agent["state"], agent["cause"]) == ("up", None)
    # The host also prepares devices.
    nova = member.with_service_token()
    instance = bind(
        nova, create(nova, profile({f"resources:{resource_class}": "1"})), host.provider()
    )
    eventually_bound(nova, instance)
    assert host.driver.scans == scans
    host.driver.behaviour.scanning.set()
    eventually_offered(placement, host.provider(OTHER), 2)


def test_provider_name_taken_in_placement_is_reported(
    racked: Racks,
    placement: PlacementService,
    resource_class: str,
    database: Database,
    profile: Profiles,
    *,
    nova: Client,
) -> None:
    rack = racked(cards={CARD: 1, OTHER: 1}, started=False)
    squatter = f"{rack.compute}_{CARD}"
    thief = placement.call("POST", "/resource_providers", {"name": squatter})

    def errors() -> dict[str, str | None]:
        with database.reader() as tx:
            rows = tx.execute(sa.select(Deployable.rp_uuid, Deployable.publish_error))
            return {str(row.rp_uuid): row.publish_error for row in rows}

    rack.start()
    eventually(lambda: errors().get(rack.provider()) is not None)
    assert thief["uuid"] in str(errors()[rack.provider()])
    assert errors()[rack.provider(OTHER)] is None
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    fault = nova.patch(
        ARQS, bind_body(arqs, rack.compute, rack.provider(), str(uuid4())), status=409
    )
    assert "(provider_refused)" in str(fault)
    eventually_offered(placement, rack.provider(OTHER), 1)
    # An operator puts it right while the agent is down; the next one tells so.
    rack.stop()
    placement.call("DELETE", f"/resource_providers/{thief['uuid']}")
    rack.start()
    eventually(lambda: errors()[rack.provider()] is None)
    bind(nova, arqs, rack.provider())

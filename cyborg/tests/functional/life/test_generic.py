# SPDX-License-Identifier: Apache-2.0
"""Accelerators of the generic_driver: as configured, and as operators create them on backends."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Device, Event
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.model.provider import provider_uuid
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually, result
from cyborg.tests.functional.life import made
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.made import DEVICES, DRIVER, Bench, listed, make, refused, shown
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    delete_arqs,
    ended,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    eventually_published,
    everything,
    handle_states,
    meddle,
    of_instance,
)
from cyborg.tests.unit.drivers.configured import written

OPTIONS = """\
[pci]
passthrough_whitelist = {{"vendor_id": "10de"}}
[generic_driver]
backends = gpus, demo
[generic_driver:gpus]
pci_ids = 10de:*
resource_class = {resource_class}
traits = CUSTOM_FAST
device_type = GPU
prepare_command = /usr/sbin/program give {{handle}}
release_command = /usr/sbin/program take {{handle}}
reset_command = /usr/sbin/program wipe {{handle}}
prepared_file = /run/program/{{handle}}
[generic_driver:demo]
devices = 0000:0a:00.0
attach_type = TEST_PCI
units = 3
resource_class = {resource_class}
"""
#: What goes on without anybody asking for anything, and what tells of refused orders.
STEADY = ("hosts", "drivers", "hardware", "events", "operations", "operation_results")


def program(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """The operator's program."""
    if argv[1] == "give":
        host.add_file(f"/run/program/{argv[2]}", "")
    if argv[1] == "take":
        host.remove(f"/run/program/{argv[2]}")
    stuck = argv[1] == "wipe" and host.exists("/run/stuck")
    return Completed(int(stuck), "", "the program does not answer" if stuck else "")


@pytest.fixture
def site(
    beside: Callable[..., Stack], resource_class: str, tmp_path: Path
) -> Callable[..., ComputeHost]:
    """Start a compute with these drivers, in this order."""
    own = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.2)

    def start(*kinds: type[GenericDriver | PciDriver]) -> ComputeHost:
        host = compute_host(own, tmp_path / "state", servers.server())
        host.machine.programs["/usr/sbin/program"] = program
        options = OPTIONS.format(resource_class=resource_class)
        conf = written(tmp_path / "cyborg.conf", options, host=host.compute)
        host.start(*(LoadResult(kind.name, kind(host.machine, conf)) for kind in kinds))
        return host

    return start


@pytest.fixture
def fast(
    nova: Client, profile: Callable[..., str], resource_class: str
) -> Callable[[], list[dict[str, Any]]]:
    """New ARQs, one at a time, for a fast program."""
    name = profile({f"resources:{resource_class}": "1", "trait:CUSTOM_FAST": "required"})
    return lambda: create(nova, name)


def test_backends_are_offered_as_configured(
    site: Callable[..., ComputeHost],
    placement: PlacementService,
    resource_class: str,
    admin: Client,
) -> None:
    host = site(GenericDriver)
    eventually_offered(placement, host.provider("0000:0a:00.0"), 3)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    eventually_offered(placement, host.provider(servers.GPU_ON_VFIO), 1)
    group = {f"resources:{resource_class}": "1", "trait:CUSTOM_FAST": "required"}
    found = {
        one
        for candidate in placement.candidates({"device_profile_0": group})
        for one in candidate.mappings["device_profile_0"]
    }
    assert found == {host.provider(servers.GPU), host.provider(servers.GPU_ON_VFIO)}
    devices = admin.get("/devices", hostname=host.compute)["devices"]
    assert {(one["type"], one["vendor"], one["model"]) for one in devices} == {
        ("GPU", "10de", "GA100 [A100 PCIe 80GB]"),
        ("GPU", "10de", "GA100 [A100 PCIe 40GB]"),
        ("PCI", "generic", "demo"),
    }


@pytest.mark.proves("generic_driver", "bind", "cleaning", by="simulated")
def test_device_is_bound_released_and_cleaned(
    site: Callable[..., ComputeHost],
    fast: Callable[[], list[dict[str, Any]]],
    nova: Client,
    placement: PlacementService,
    database: Database,
) -> None:
    host = site(GenericDriver)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    instance = bind(nova, fast(), host.provider(servers.GPU))
    eventually_bound(nova, instance)
    (bound,) = of_instance(nova, instance)
    assert bound["attach_handle_type"] == "PCI"
    assert bound["attach_handle_info"] == {
        "domain": "0000",
        "bus": "3b",
        "device": "00",
        "function": "0",
    }
    host.machine.remove("/run")
    # The host was booted: what a guest has is prepared again.
    eventually(lambda: host.ran("give") == ["give", "give"])
    host.machine.add_file("/run/stuck", "")
    delete_arqs(nova, instance)
    # It is not free before it is clean.
    eventually(lambda: len(host.ran("wipe")) > 1)
    assert handle_states(database)[servers.GPU] == "releasing"
    host.machine.remove("/run/stuck")
    eventually_idle(database)
    assert set(handle_states(database).values()) == {"free"}
    assert host.ran("take", "wipe")[:2] == ["take", "wipe"]


@pytest.mark.parametrize("first_is_generic", [True, False])
def test_function_of_two_drivers_is_offered_once(
    site: Callable[..., ComputeHost],
    placement: PlacementService,
    database: Database,
    first_is_generic: bool,
) -> None:
    kinds = (GenericDriver, PciDriver) if first_is_generic else (PciDriver, GenericDriver)
    host = site(*kinds)
    eventually_offered(placement, host.provider("0000:0a:00.0"), 3)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    with database.reader() as tx:
        names = list(tx.execute(sa.select(Deployable.name)).scalars())
    assert sorted(names) == sorted(
        f"{host.compute}_{address}"
        for address in ("0000:0a:00.0", servers.GPU, servers.GPU_ON_VFIO)
    )


@pytest.fixture
def bench(
    beside: Callable[..., Stack], resource_class: str, tmp_path: Path, operator: Client
) -> Bench:
    """A compute whose two static backends have a device each."""
    own = beside(agent_heartbeat=0.2, scan=0.2, full_check=2.0)
    one = Bench.begin(own, tmp_path, resource_class)
    one.machine.add_file("/run/ready", "")
    eventually(lambda: len(listed(operator)) == 2)
    eventually_published(operator)
    return one


@pytest.fixture
def arqs(
    nova: Client, profile: Callable[..., str], resource_class: str
) -> Callable[[], list[dict[str, Any]]]:
    """New ARQs, one at a time, for what was created with a trait of its own."""
    name = profile({f"resources:{resource_class}": "1", "trait:CUSTOM_SOFT": "required"})
    return lambda: create(nova, name)


def offered_to_bind(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> tuple[str, str]:
    """An accelerator that was created and is offered, and its provider."""
    uuid = make(operator, bench.wish("right", traits=["CUSTOM_SOFT"], handles=2))
    provider = made.provider(database, uuid)
    eventually_offered(placement, provider, 2)
    return uuid, provider


def test_created_accelerator_is_listed_and_offered(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    wish = bench.wish(traits=["CUSTOM_SOFT"], handles=3, labels={"rack": "7"})
    uuid = make(operator, wish)
    found = operator.get(f"{DEVICES}/{uuid}")
    assert found["providers"][0]["product_traits"] == ["CUSTOM_SOFT"]
    assert {name: found[name] for name in ("driver", "backend", "model", "type", "labels")} == {
        "driver": DRIVER,
        "backend": "left",
        "model": "soft",
        "type": "FPGA",
        "labels": {"rack": "7"},
    }
    assert (found["hostname"], found["vendor"]) == (bench.compute, "generic")
    assert listed(operator, labels="rack=7") == [uuid]
    provider = made.provider(database, uuid)
    eventually_offered(placement, provider, 3)
    eventually(lambda: shown(placement, provider) == (3, {"OWNER_CYBORG", "CUSTOM_SOFT"}))
    with database.reader() as tx:
        history = sa.select(Event.action).where(Event.subject_uuid == uuid).order_by(Event.id)
        assert list(tx.execute(history).scalars()) == ["ordered", "created"]
    ((other,),) = [listed(operator, backend="right")]
    assert other != uuid
    (hardware,) = [one for one in operator.get("/hardware")["hardware"] if one["uuid"] == uuid]
    assert (hardware["acc_specs"]["num"], hardware["acc_status"]["setup_required"]) == (3, False)


def test_accelerators_are_created_on_two_backends_with_given_addresses(
    operator: Client, bench: Bench, database: Database
) -> None:
    units = ["0000:0c:00.1", "0c:00.2"]
    one, two = make(operator, bench.wish(handles=units)), make(operator, bench.wish("right"))
    three = make(operator, bench.wish("right"))
    assert operator.get(f"{DEVICES}/{two}")["vendor"] == "Right Inc."
    with database.reader() as tx:
        rows = tx.execute(sa.select(Device.uuid, Device.device_key, Device.origin))
        keys = {row.uuid: row.device_key for row in rows if row.origin == "operator"}
    assert keys == {one: "0000:0c:00.1", two: "ffff:00:00.0", three: "ffff:01:00.0"}
    again = operator.post(DEVICES, bench.wish(handles=["0000:0c:00.1"]), status=409)
    assert "0000:0c:00.1" in again["error_message"]
    taken = operator.post(DEVICES, bench.wish("right", handles=["0000:0a:00.0"]), status=409)
    assert "0000:0a:00.0" in taken["error_message"]


def test_accelerator_is_created_where_a_card_was_that_has_moved(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    """The card keeps the name of its first place, so the accelerator has another one."""
    place = "0000:0d:00.0"
    now, before = f"{bench.compute}_0000:0a:00.0", f"{bench.compute}_{place}"
    moved = {"name": before, "key": now, "rp_uuid": provider_uuid(before)}
    meddle(database, sa.update(Deployable).where(Deployable.name == now).values(moved))
    uuid = make(operator, bench.wish(handles=[place]))
    provider = made.provider(database, uuid)
    assert provider != provider_uuid(before)
    eventually_offered(placement, provider, 1)
    devices = listed(operator)
    bench.kill(database)
    bench.run()
    over = ended(operator, operator.post("/services/discover?wait=true", {}, status=202))
    assert over["state"] == "succeeded"
    assert listed(operator) == devices
    assert operator.get(f"{DEVICES}/{uuid}")["status"] == "enabled"
    eventually_offered(placement, provider, 1)


def test_created_accelerator_survives_reports_restarts_and_discoveries(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    uuid = make(operator, bench.wish(handles=2, labels={"mine": "yes"}))
    provider = made.provider(database, uuid)
    eventually_offered(placement, provider, 2)
    before = operator.get(f"{DEVICES}/{uuid}")
    over = ended(operator, operator.post("/services/discover", {}, status=202))
    ((found,),) = [one["result"]["drivers"] for one in over["results"]]
    assert (found["found"], found["lost"], over["state"]) == (3, 0, "succeeded")
    bench.kill(database)
    bench.run()
    for file in (bench.path / "state").iterdir():
        file.unlink(missing_ok=True)
    bench.kill(database)
    bench.run()
    over = ended(operator, operator.post("/services/discover?wait=true", {}, status=202))
    assert over["state"] == "succeeded"
    assert operator.get(f"{DEVICES}/{uuid}") == before
    assert len(listed(operator)) == 3
    eventually_offered(placement, provider, 2)
    # With its backend it is lost, and returns.
    bench.kill(database)
    bench.run("right")
    eventually(lambda: operator.get(f"{DEVICES}/{uuid}")["status"] == "lost")
    eventually_offered(placement, provider, 0)
    bench.kill(database)
    bench.run()
    eventually(lambda: operator.get(f"{DEVICES}/{uuid}")["status"] == "enabled")
    eventually_offered(placement, provider, 2)


def test_bound_accelerator_is_not_deleted(
    operator: Client,
    bench: Bench,
    placement: PlacementService,
    database: Database,
    *,
    nova: Client,
    arqs: Callable[[], list[dict[str, Any]]],
) -> None:
    uuid, provider = offered_to_bind(operator, bench, placement, database)
    wanted = arqs()
    instance = bind(nova, wanted, provider, host=bench.compute)
    eventually_bound(nova, instance)
    answer = operator.delete(f"{DEVICES}/{uuid}", status=409)
    assert wanted[0]["uuid"] in answer["error_message"]
    assert operator.get(f"{DEVICES}/{uuid}")["status"] == "enabled"
    delete_arqs(nova, instance)
    # A device whose last guest's traces are still being removed waits for the next housekeeping.
    eventually_idle(database)
    operator.delete(f"{DEVICES}/{uuid}")
    # It is never given to anybody again.
    bind(nova, arqs(), provider, host=bench.compute, status=409)
    eventually(lambda: uuid not in listed(operator))
    assert bench.ran("take", "wipe") == ["take", "wipe"]
    assert shown(placement, provider) is None
    operator.delete(f"{DEVICES}/{uuid}", status=404)
    # Neither does the next report bring it back.
    ended(operator, operator.post("/services/discover", {}, status=202))
    assert len(listed(operator)) == 2
    again = make(operator, bench.wish("right"))
    assert again != uuid


def test_delete_completes_when_agent_returns(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    uuid = make(operator, bench.wish())
    provider = made.provider(database, uuid)
    eventually_offered(placement, provider, 1)
    bench.kill(database)
    operator.delete(f"{DEVICES}/{uuid}")
    assert operator.get(f"{DEVICES}/{uuid}")["status"] == "lost"
    bench.run()
    eventually(lambda: uuid not in listed(operator))
    eventually(lambda: shown(placement, provider) is None)


def test_concurrent_delete_and_bind(
    operator: Client,
    bench: Bench,
    placement: PlacementService,
    database: Database,
    *,
    nova: Client,
    arqs: Callable[[], list[dict[str, Any]]],
) -> None:
    for _ in range(3):
        uuid, provider = offered_to_bind(operator, bench, placement, database)
        instance = str(uuid4())
        body = bind_body(arqs(), bench.compute, provider, instance)
        with ThreadPoolExecutor() as pool:
            deleting = pool.submit(operator.answer, "DELETE", f"{DEVICES}/{uuid}")
            binding = pool.submit(nova.answer, "PATCH", ARQS, body)
        got = result(deleting), result(binding)
        assert got in {(204, 409), (409, 202), (204, 404)}
        if got[1] == 202:
            # Whoever has it keeps it until the end.
            became(nova, instance, "Bound")
            assert uuid in listed(operator)
            delete_arqs(nova, instance)
            eventually_idle(database)
        if got[0] == 409:
            operator.delete(f"{DEVICES}/{uuid}")
        gone(operator, uuid)
        assert shown(placement, provider) is None


def became(nova: Client, instance: str, state: str) -> None:
    eventually(lambda: of_instance(nova, instance)[0]["state"] == state)


def gone(operator: Client, uuid: str) -> None:
    eventually(lambda: uuid not in listed(operator))


def test_operators_update_facts_of_created_accelerators(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    uuid = make(operator, bench.wish(traits=["CUSTOM_SOFT"]))
    provider = made.provider(database, uuid)
    eventually(lambda: shown(placement, provider) == (1, {"OWNER_CYBORG", "CUSTOM_SOFT"}))
    news = {"model": "softer", "traits": ["CUSTOM_SOFTER", "CUSTOM_NEW"], "labels": {"a": "b"}}
    changed = operator.patch(f"{DEVICES}/{uuid}", news, status=200)
    assert (changed["model"], changed["labels"]) == ("softer", {"a": "b"})
    (part,) = operator.get(f"{DEVICES}/{uuid}")["providers"]
    assert part["product_traits"] == ["CUSTOM_SOFTER", "CUSTOM_NEW"]
    traits = {"OWNER_CYBORG", "CUSTOM_SOFTER", "CUSTOM_NEW"}
    eventually(lambda: shown(placement, provider) == (1, traits))
    ended(operator, operator.post("/services/discover", {}, status=202))
    assert operator.get(f"{DEVICES}/{uuid}")["model"] == "softer"
    (found,) = [one for one in listed(operator, backend="left") if one != uuid]
    bodies: list[dict[str, Any]] = [{"model": "mine"}, {"traits": []}]
    for body in (*bodies, {"traits": [], "status": "maintaining"}):
        answer = operator.patch(f"{DEVICES}/{found}", body, status=409)
        assert DRIVER in answer["error_message"]
    assert operator.get(f"{DEVICES}/{found}")["status"] == "enabled"


def test_function_without_backend_match_is_offered(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    uuid = make(operator, bench.wish("cards", handles=[servers.FPGA]))
    provider = made.provider(database, uuid)
    assert provider == provider_uuid(f"{bench.compute}_{servers.FPGA}")
    eventually_offered(placement, provider, 1)
    # Pulled, it is lost like any other, and it comes back.
    bench.machine.remove(f"/sys/bus/pci/devices/{servers.FPGA}")
    eventually(lambda: operator.get(f"{DEVICES}/{uuid}")["status"] == "lost")
    eventually_offered(placement, provider, 0)
    servers.add_function(bench.machine, servers.FPGA, "10ee:5001:120000", node=1)
    eventually(lambda: operator.get(f"{DEVICES}/{uuid}")["status"] == "enabled")


def test_refused_create_requests_change_nothing(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    before = everything(database)
    for change, status, named in (
        ({"host": "nowhere"}, 404, "Host nowhere"),
        ({"driver": "other_driver"}, 404, "Driver other_driver"),
        ({"backend": "middle"}, 404, "Backend middle"),
        ({"backend": "parts"}, 409, "cannot be created on backend parts"),
        ({"backend": "cards"}, 400, "handles"),
        ({"backend": "cards", "handles": 1}, 400, "handles"),
        ({"backend": "cards", "handles": ["0000:0d:00.0", "0000:0d:00.1"]}, 400, "handles"),
    ):
        answer = operator.post(DEVICES, bench.wish() | change, status=status)
        assert named in answer["error_message"]
    assert everything(database) == before
    # What the host needs itself, only the host can tell.
    before = everything(database, but=STEADY)
    for address, why in (
        (servers.NVME_MOUNTED, "mounted"),
        (servers.NIC_DEFAULT_ROUTE, "route"),
        ("0000:77:00.0", "it is not on the bus"),
    ):
        assert why in refused(operator, bench.wish("cards", handles=[address]))
        eventually(lambda: everything(database, but=STEADY) == before)
        assert shown(placement, provider_uuid(f"{bench.compute}_{address}")) is None


def test_created_accelerators_are_removed_with_their_driver(
    operator: Client, bench: Bench, placement: PlacementService, database: Database
) -> None:
    provider = made.provider(database, make(operator, bench.wish()))
    eventually_offered(placement, provider, 1)
    over = ended(operator, operator.send("DELETE", f"/drivers/{DRIVER}", None, 202))
    assert over["state"] == "succeeded"
    assert listed(operator) == []
    assert shown(placement, provider) is None
    answer = operator.post(DEVICES, bench.wish(), status=409)
    assert f"{DRIVER} is STOPPED" in answer["error_message"]

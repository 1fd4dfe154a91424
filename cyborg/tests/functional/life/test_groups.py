# SPDX-License-Identifier: Apache-2.0
"""Units that guests take in groups: Placement gives out whole groups, and a bind takes no other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Deployable, Host
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.model.audit_findings import Ages
from cyborg.model.pci import PciAddress
from cyborg.testing import servers, situations
from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, requested
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    create,
    delete_arqs,
    eventually_idle,
    eventually_offered,
    everything,
    handle_states,
    hasten,
    meddle,
    of_instance,
    work_left,
)
from cyborg.tests.unit.drivers.configured import written

SIZE = 8
OPTIONS = """\
[generic_driver]
backends = gpus
[generic_driver:gpus]
pci_ids = 10de:2330
resource_class = {resource_class}
unit = all
unit_functions = 8
reset_command = /usr/sbin/wipe {{address}}
"""
#: Vendor, product and class of the GPUs.
GPU_IDS = "10de:2330:030200"
GPUS = tuple(f"0000:{bus}:00.0" for bus in ("0a", "18", "3b", "44", "87", "90", "b8", "c3"))


@pytest.fixture
def server(racked: Callable[..., RackedCompute], resource_class: str) -> RackedCompute:
    """A compute whose agent offers eight functions, all or none."""
    traits = Traits(resource_class, prepare=True, group_size=SIZE)
    return racked(traits, cards={CARD: SIZE})


@pytest.fixture
def inventory(server: RackedCompute, placement: PlacementService) -> Callable[[], dict[str, Any]]:
    """Return what Placement has of the functions."""

    def read() -> dict[str, Any]:
        _, inventories = Placement(placement.adapter()).inventories(server.provider())
        return dict(inventories[server.resource_class])

    return read


@pytest.fixture
def candidates(server: RackedCompute, placement: PlacementService) -> Callable[[int], int]:
    """Return how many ways Placement knows to give a new guest so many functions."""

    def count(amount: int) -> int:
        group = {f"resources:{server.resource_class}": str(amount)}
        return len(placement.candidates(requested([group])))

    return count


def refused(answer: Any) -> str:
    return str(answer["error_message"])


def test_placement_allocates_whole_groups(
    server: RackedCompute,
    inventory: Callable[[], dict[str, Any]],
    candidates: Callable[[int], int],
    placement: PlacementService,
) -> None:
    fields = inventory()
    sizes = {name: fields[name] for name in ("min_unit", "step_size", "max_unit", "total")}
    assert sizes == {"min_unit": SIZE, "step_size": SIZE, "max_unit": SIZE, "total": SIZE}
    assert [candidates(amount) for amount in (1, 4, 7, 8)] == [0, 0, 0, 1]
    provider, units = server.provider(), server.resource_class
    assert not placement.claim(str(uuid4()), {provider: {units: 4}})
    guest = str(uuid4())
    assert placement.claim(guest, {provider: {units: SIZE}})
    assert candidates(SIZE) == 0
    placement.free(guest)
    assert candidates(SIZE) == 1


def test_unavailable_member_makes_the_group_unavailable(
    server: RackedCompute,
    inventory: Callable[[], dict[str, Any]],
    candidates: Callable[[int], int],
    placement: PlacementService,
    *,
    database: Database,
) -> None:
    member = sa.update(AttachHandle).where(AttachHandle.handle_key == min(handle_states(database)))
    changed = sa.update(Host).where(Host.name == server.compute)
    publish = changed.values(desired_generation=Host.desired_generation + 1)
    whole = {server.provider(): {server.resource_class: SIZE}}
    for fault, repair in (
        ({"state": "quarantined"}, {"state": "ready"}),
        ({"lost_ms": 1}, {"lost_ms": None}),
    ):
        meddle(database, member.values(**fault))
        meddle(database, publish)
        eventually(lambda: inventory()["reserved"] == 1)
        assert [candidates(amount) for amount in (1, 7, SIZE)] == [0, 0, 0]
        assert not placement.claim(str(uuid4()), whole)
        meddle(database, member.values(**repair))
        meddle(database, publish)
        eventually_offered(placement, server.provider(), SIZE)
        assert candidates(SIZE) == 1


def test_audit_and_placement_follow_the_size_of_a_group(
    server: RackedCompute,
    inventory: Callable[[], dict[str, Any]],
    placement: PlacementService,
    nova_api: SimulatedNova,
    *,
    database: Database,
) -> None:
    auditor = Auditor(
        db=database,
        placement=Placement(placement.adapter()),
        servers=Servers(nova_api.adapter()),
        ages=Ages(),
    )

    def resize(size: int) -> None:
        server.driver.traits.group_size = size
        eventually(lambda: (inventory()["min_unit"], inventory()["step_size"]) == (size, size))
        assert not auditor.look(server.compute).findings

    for size in (SIZE, 4, 1):
        resize(size)
    with database.reader() as tx:
        assert tx.execute(sa.select(Deployable.group_size)).scalars().all() == [None]
    resize(SIZE)
    generation, inventories = Placement(placement.adapter()).inventories(server.provider())
    (fields,) = inventories.values()
    single = {server.resource_class: {**fields, "min_unit": 1, "step_size": 1}}
    Placement(placement.adapter()).set_inventories(server.provider(), generation, single)
    (finding,) = auditor.look(server.compute).findings
    units = server.resource_class
    assert f"min_unit of {units} is 1 instead of 8" in finding.cause
    assert f"step_size of {units} is 1 instead of 8" in finding.cause


def test_group_is_bound_and_released(
    server: RackedCompute,
    walk: Callable[..., ComputeWalk],
    profile: Callable[..., str],
    member: Client,
    *,
    nova: Client,
    database: Database,
    placement: PlacementService,
) -> None:
    with database.reader() as tx:
        assert tx.execute(sa.select(Deployable.group_size)).scalars().all() == [SIZE]
    name = profile({f"resources:{server.resource_class}": str(SIZE)})
    guest = walk("member", member.project).boot(name)
    assert {arq["state"] for arq in of_instance(nova, guest.uuid)} == {"Bound"}
    assert len(guest.arqs) == SIZE
    assert set(handle_states(database).values()) == {"held"}
    assert server.driver.ready == set(handle_states(database))
    # A second guest finds no host, whatever it asks for.
    assert placement.candidates(requested([{f"resources:{server.resource_class}": "8"}])) == []
    delete_arqs(nova, guest.uuid)
    placement.free(guest.uuid)
    eventually_idle(database)
    assert set(handle_states(database).values()) == {"free"}
    assert server.driver.ready == set()
    again = walk("member", member.project).boot(name)
    assert len(again.arqs) == SIZE


@pytest.mark.parametrize("count", [1, 4, 7])
def test_bind_of_a_part_of_a_group_changes_nothing(
    server: RackedCompute,
    profile: Callable[..., str],
    nova: Client,
    database: Database,
    *,
    count: int,
) -> None:
    """A caller that does not ask Placement gets no part of a group."""
    arqs = create(nova, profile({f"resources:{server.resource_class}": str(count)}))
    before = everything(database)
    instance = str(uuid4())
    body = bind_body(arqs, server.compute, server.provider(), instance)
    said = refused(nova.patch(ARQS, body, status=400))
    assert "device_rp_uuid" in said
    assert (
        f"provider {server.provider()} gives out {server.resource_class} in groups of 8 units, "
        f"and instance {instance} would get {count}"
    ) in said
    assert everything(database) == before


def test_two_instances_do_not_share_a_group(
    server: RackedCompute, profile: Callable[..., str], nova: Client, database: Database
) -> None:
    arqs = create(nova, profile({f"resources:{server.resource_class}": str(SIZE)}))
    body = bind_body(arqs[:4], server.compute, server.provider(), str(uuid4()))
    body |= bind_body(arqs[4:], server.compute, server.provider(), str(uuid4()))
    assert "in groups of 8 units" in refused(nova.patch(ARQS, body, status=400))
    assert set(handle_states(database).values()) == {"free"}


def test_groups_are_attached_and_detached_whole(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    walk: Callable[..., ComputeWalk],
    profile: Callable[..., str],
    member: Client,
    *,
    operator: Client,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host = racked(Traits(resource_class, group_size=SIZE), cards={CARD: 2 * SIZE})
    whole = profile({f"resources:{resource_class}": str(SIZE)})
    part = profile({f"resources:{resource_class}": "4"})
    guest = walk("member", member.project).boot(whole)
    nova_api.own(guest.uuid, member.project, host.compute, whole).has = _uuids(guest.arqs)
    service, path = member.with_service_token(), f"/instances/{guest.uuid}/accelerators"

    def settle() -> None:
        def over() -> bool:
            hasten(database)
            return not work_left(database)

        eventually(over)

    settle()
    before = everything(database)
    said = refused(operator.post(path, {"device_profile": part}, status=409))
    assert f"no free accelerators for device profile {part}" in said
    assert f"it gives out {resource_class} in groups of 8 units" in said
    assert everything(database) == before
    nova_api.guests.listed = lambda uuid: _uuids(of_instance(service, uuid))
    try:
        operator.post(path, {}, status=202)
        settle()
        arqs = _uuids(of_instance(member, guest.uuid))
        assert len(arqs) == 2 * SIZE
        attached = next(uuid for uuid in arqs if uuid not in _uuids(guest.arqs))
        said = refused(operator.delete(f"{path}/{attached}", status=409))
        assert f"accelerator request {attached} has one unit of a group of 8" in said
        operator.delete(path, status=202)
        settle()
    finally:
        nova_api.guests.listed = lambda _uuid: []
    assert set(_uuids(of_instance(member, guest.uuid))) == set(_uuids(guest.arqs))
    assert sorted(handle_states(database).values()) == ["free"] * SIZE + ["held"] * SIZE


def _uuids(arqs: list[dict[str, Any]]) -> list[str]:
    return [str(arq["uuid"]) for arq in arqs]


@pytest.fixture
def hgx(
    beside: Callable[..., Stack], resource_class: str, tmp_path: Path, placement: PlacementService
) -> ComputeHost:
    """A compute whose eight GPUs the generic_driver offers as one unit."""
    machine = servers.bare()
    machine.programs["/usr/sbin/wipe"] = lambda _host, _argv: Completed(0, "", "")
    for address in GPUS:
        servers.add_function(machine, address, GPU_IDS, driver="nvidia")
    host = compute_host(beside(agent_heartbeat=0.2, scan=0.2), tmp_path / "state", machine)
    options = OPTIONS.format(resource_class=resource_class)
    conf = written(tmp_path / "cyborg.conf", options, host=host.compute)
    host.start(LoadResult(GenericDriver.name, GenericDriver(machine, conf)))
    eventually_offered(placement, host.provider(GPUS[0]), SIZE)
    return host


def test_guest_gets_all_gpus_of_a_server(
    hgx: ComputeHost,
    resource_class: str,
    profile: Callable[..., str],
    walk: Callable[..., ComputeWalk],
    member: Client,
    *,
    nova: Client,
    database: Database,
    placement: PlacementService,
) -> None:
    user, whole = walk("member", member.project), profile({f"resources:{resource_class}": "8"})
    with pytest.raises(NovaFault):
        user.boot(profile({f"resources:{resource_class}": "4"}))
    guest = user.boot(whole)
    infos = [arq["attach_handle_info"] for arq in of_instance(nova, guest.uuid)]
    assert {str(PciAddress.from_info(info)) for info in infos} == set(GPUS)
    for address in GPUS:
        situations.hold(hgx.machine, address)
    with pytest.raises(NovaFault):
        user.boot(whole)
    # libvirt gives the cards back to the driver of the host before Nova deletes the requests.
    for address in GPUS:
        servers.add_function(hgx.machine, address, GPU_IDS, driver="nvidia")
    delete_arqs(nova, guest.uuid)
    placement.free(guest.uuid)
    eventually_idle(database)
    assert sorted(argv[1] for argv in hgx.machine.commands) == sorted(GPUS)
    assert set(handle_states(database).values()) == {"free"}
    eventually_offered(placement, hgx.provider(GPUS[0]), SIZE)
    assert len(user.boot(whole).arqs) == SIZE


def test_refused_function_withdraws_all_gpus_of_a_server(
    hgx: ComputeHost,
    resource_class: str,
    profile: Callable[..., str],
    walk: Callable[..., ComputeWalk],
    member: Client,
    *,
    operator: Client,
    placement: PlacementService,
) -> None:
    user, whole = walk("member", member.project), profile({f"resources:{resource_class}": "8"})
    splitting = f"{servers.place(GPUS[5])}/sriov_numvfs"
    hgx.machine.add_file(splitting, "2\n")
    eventually_offered(placement, hgx.provider(GPUS[0]), 0)
    with pytest.raises(NovaFault):
        user.boot(whole)

    def reason() -> str | None:
        (row,) = operator.get("/hardware", host=hgx.compute)["hardware"]
        found: str | None = row["acc_status"]["reason"]
        return found

    eventually(lambda: (reason() or "").startswith(f"function {GPUS[5]} of the unit: its sriov"))
    hgx.machine.remove(splitting)
    eventually_offered(placement, hgx.provider(GPUS[0]), SIZE)
    assert len(user.boot(whole).arqs) == SIZE

# SPDX-License-Identifier: Apache-2.0
"""Life cycles of servers as Nova runs them."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk, Server
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    eventually,
    eventually_idle,
    everything,
    handle_states,
    of_instance,
)

Racks = Callable[..., RackedCompute]
Profiles = Callable[..., str]


@pytest.fixture
def user(member: Client, walk: Callable[..., ComputeWalk]) -> ComputeWalk:
    return walk("member", member.project)


@pytest.fixture
def one(profile: Profiles, resource_class: str) -> str:
    """A profile for one unit of this test's cards."""
    return profile({f"resources:{resource_class}": "1"})


def all_free(database: Database) -> bool:
    return set(handle_states(database).values()) == {"free"}


def uuids(server: Server) -> set[str]:
    return {arq["uuid"] for arq in server.arqs}


def test_boot_attaches_device_and_delete_releases_it(
    racked: Racks, user: ComputeWalk, one: str, database: Database
) -> None:
    racked(cards={CARD: 1})
    server = user.boot(one)
    assert server.hostdevs == ["0000:81:00.1"]
    with pytest.raises(NovaFault):
        user.boot(one)
    user.delete(server)
    assert all_free(database)


def test_server_gets_two_units_of_one_provider(
    racked: Racks, user: ComputeWalk, profile: Profiles, resource_class: str
) -> None:
    racked(cards={CARD: 2})
    server = user.boot(profile({f"resources:{resource_class}": "2"}))
    assert server.hostdevs == ["0000:81:00.1", "0000:81:00.2"]


def test_reboot_and_rebuild_change_no_row(
    racked: Racks, user: ComputeWalk, one: str, database: Database
) -> None:
    """Reboot in all its forms reads; pause, snapshot and rescue do not even ask."""
    racked(cards={CARD: 2})
    server = user.boot(one)
    eventually_idle(database)
    before, hostdevs = everything(database), server.hostdevs
    user.reboot(server)
    user.rebuild(server)
    assert server.hostdevs == hostdevs
    assert everything(database) == before


def test_unshelve_binds_new_arqs(
    racked: Racks, user: ComputeWalk, one: str, database: Database
) -> None:
    racked(cards={CARD: 1})
    server = user.boot(one)
    before = uuids(server)
    user.shelve_offload(server)
    assert all_free(database)
    # Nova would wait 300 s for what is not resolved when the bind is answered; nothing is waited.
    user.unshelve(server)
    assert uuids(server).isdisjoint(before)
    assert len(server.hostdevs) == 1


def test_failed_bind_leaves_no_arqs(
    racked: Racks,
    user: ComputeWalk,
    profile: Profiles,
    resource_class: str,
    member: Client,
) -> None:
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    host.driver.behaviour.fault = RuntimeError("broken")
    with pytest.raises(NovaFault, match="binding failed"):
        user.boot(profile({f"resources:{resource_class}": "1"}))
    assert member.get(ARQS)["arqs"] == []


def test_evacuation_from_dead_host_releases_its_units(
    racked: Racks, user: ComputeWalk, one: str, database: Database, member: Client
) -> None:
    hosts = {host.compute: host for host in (racked(cards={CARD: 1}), racked(cards={CARD: 1}))}
    server = user.boot(one)
    dead, before = server.host, uuids(server)
    hosts[dead].stop()
    user.evacuate(server)
    assert server.host != dead
    assert uuids(server).isdisjoint(before)
    assert {arq["uuid"] for arq in of_instance(member, server.uuid)} == uuids(server)
    assert sorted(state for state in _all_states(database)) == ["free", "held"]


def _all_states(database: Database) -> list[str]:
    rows = everything(database)["attach_handles"]
    return [value for row in rows for value in row if value in ("free", "held", "releasing")]


def test_prepared_unit_of_dead_host_is_released_when_agent_returns(
    racked: Racks, user: ComputeWalk, one: str, resource_class: str
) -> None:
    traits = Traits(resource_class, prepare=True)
    hosts = [racked(traits, cards={CARD: 1}) for _ in range(2)]
    server = user.boot(one)
    (old,) = [host for host in hosts if host.compute == server.host]
    old.stop()
    user.evacuate(server)
    assert len(old.driver.ready) == 1
    old.start()
    eventually(lambda: old.driver.ready == set())


def test_local_delete_releases_units_while_agent_is_down(
    racked: Racks, user: ComputeWalk, one: str, database: Database
) -> None:
    host = racked(cards={CARD: 1})
    server = user.boot(one)
    host.stop()
    user.local_delete(server)
    assert all_free(database)


def test_rescheduled_server_leaves_nothing_on_the_failed_host(
    racked: Racks, user: ComputeWalk, one: str, database: Database, member: Client
) -> None:
    names = {racked(cards={CARD: 1}).compute for _ in range(2)}
    for bad in names:
        server = user.boot(one, breaks_on=[bad])
        assert {server.host} == names - {bad}
        assert {arq["uuid"] for arq in member.get(ARQS)["arqs"]} == uuids(server)
        user.delete(server)
    with pytest.raises(NovaFault):
        user.boot(one, breaks_on=names)
    assert member.get(ARQS)["arqs"] == []
    assert all_free(database)


def test_fake_device_is_not_attached_to_the_guest(
    compute: Callable[..., ComputeHost],
    user: ComputeWalk,
    profile: Profiles,
    placement: PlacementService,
) -> None:
    host = compute()
    everybody = placement.call("GET", "/resource_providers")["resource_providers"]
    others = {each["name"] for each in everybody} - {host.compute}
    server = user.boot(profile(FPGA), avoid=others)
    assert [arq["attach_handle_type"] for arq in server.arqs] == ["TEST_PCI"]
    assert server.hostdevs == []


def test_port_and_flavor_each_get_a_device(
    racked: Racks, user: ComputeWalk, one: str, resource_class: str, database: Database
) -> None:
    racked(Traits(resource_class, network="physnet1"), cards={CARD: 2})
    port = str(uuid4())
    server = user.boot(one, ports={port: one})
    filled = server.binding_profiles[port]
    assert filled["physical_network"] == "physnet1"
    assert filled["arq_uuid"] == server.port_arqs[port]
    assert filled["pci_slot"] not in server.hostdevs
    assert len(server.hostdevs) == 1
    user.delete(server)
    assert all_free(database)


def test_port_without_flavor_profile_gets_a_device(
    racked: Racks, user: ComputeWalk, one: str, resource_class: str, database: Database
) -> None:
    racked(Traits(resource_class, network="physnet1"), cards={CARD: 1})
    server = user.boot(None, ports={str(uuid4()): one})
    assert server.hostdevs == []
    user.delete(server)
    assert all_free(database)


def test_member_reboots_server_evacuated_by_admin(
    racked: Racks, user: ComputeWalk, walk: Callable[..., ComputeWalk], one: str
) -> None:
    for _ in range(2):
        racked(cards={CARD: 1})
    server = user.boot(one)
    operator = walk("admin", "operators")
    operator.evacuate(server)
    user.reboot(server)
    user.shelve_offload(server)
    operator.unshelve(server)
    user.reboot(server)
    assert len(server.hostdevs) == 1


def test_idle_server_causes_no_calls_and_no_row_changes(
    racked: Racks, user: ComputeWalk, one: str, nova_api: SimulatedNova, database: Database
) -> None:
    """Nova refuses resize, suspend and live migration by itself; nothing happens by itself here."""
    host = racked(cards={CARD: 1})
    user.boot(one)
    eventually_idle(database)
    before, calls, scans = everything(database), len(nova_api.calls), host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)
    assert everything(database) == before
    assert len(nova_api.calls) == calls

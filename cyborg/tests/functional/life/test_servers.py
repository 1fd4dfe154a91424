# SPDX-License-Identifier: Apache-2.0
"""Life cycles of servers and ports as Nova runs them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.whitelist import network_trait
from cyborg.testing import servers
from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk, Server
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    eventually_idle,
    eventually_offered,
    everything,
    handle_states,
    of_instance,
)
from cyborg.tests.unit.drivers.configured import configured

Racks = Callable[..., RackedCompute]
Profiles = Callable[..., str]
VFS = ("0000:18:02.0", "0000:18:02.1")


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


def test_boot_attaches_devices_and_delete_releases_them(
    racked: Racks,
    user: ComputeWalk,
    one: str,
    profile: Profiles,
    resource_class: str,
    database: Database,
) -> None:
    host = racked(cards={CARD: 2})
    server = user.boot(profile({f"resources:{resource_class}": "2"}))
    assert server.hostdevs == ["0000:81:00.1", "0000:81:00.2"]
    with pytest.raises(NovaFault):
        user.boot(one)
    user.delete(server)
    assert all_free(database)
    # What needs no work of the host needs no agent to be released.
    server = user.boot(one)
    host.stop()
    user.local_delete(server)
    assert all_free(database)


def test_idle_reboot_and_rebuild_change_no_row(
    racked: Racks, user: ComputeWalk, one: str, nova_api: SimulatedNova, database: Database
) -> None:
    """Reboot in all its forms reads; pause, snapshot and rescue do not even ask.

    Nova refuses resize, suspend and live migration by itself; nothing happens by itself here.
    """
    host = racked(cards={CARD: 2})
    server = user.boot(one)
    eventually_idle(database)
    before, hostdevs = everything(database), server.hostdevs
    calls, scans = len(nova_api.calls), host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)
    assert len(nova_api.calls) == calls
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
    racked: Racks,
    user: ComputeWalk,
    one: str,
    database: Database,
    member: Client,
    resource_class: str,
) -> None:
    traits = Traits(resource_class, prepare=True)
    hosts = [racked(traits, cards={CARD: 1}) for _ in range(2)]
    server = user.boot(one)
    (dead,), before = [host for host in hosts if host.compute == server.host], uuids(server)
    dead.stop()
    user.evacuate(server)
    assert server.host != dead.compute
    assert uuids(server).isdisjoint(before)
    assert {arq["uuid"] for arq in of_instance(member, server.uuid)} == uuids(server)
    # Nobody cleans its unit before its agent is back.
    assert len(dead.driver.ready) == 1
    dead.start()
    eventually_idle(database)
    assert dead.driver.ready == set()
    query = sa.select(UNIT).order_by(UNIT)
    with database.reader() as tx:
        assert list(tx.execute(query).scalars()) == ["free", "held"]


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
    # A port needs no accelerators of the flavor.
    server = user.boot(None, ports={port: one})
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


@dataclass(kw_only=True)
class Site(ComputeHost):
    """A compute with a network card that is split in two virtual functions."""

    def run(self, network: str | None) -> None:
        """Have the agent run, anew if it does already, with this network on the whitelist."""
        if self.agent is not None:
            self.stop()
        entry = {"address": servers.NIC_IDLE} | ({"physical_network": network} if network else {})
        driver = PciDriver(self.machine, configured(json.dumps(entry), host=self.compute))
        self.start(LoadResult(driver.name, driver))

    @property
    def providers(self) -> list[str]:
        return [self.provider(address) for address in VFS]


@pytest.fixture
def site(beside: Callable[..., Stack], tmp_path: Path) -> Site:
    machine = servers.server()
    servers.add_vfs(machine, servers.NIC_IDLE, VFS, "8086:154c:020000")
    own = beside(agent_heartbeat=0.2, scan=0.2)
    return Site(**vars(compute_host(own, tmp_path, machine)))


@pytest.fixture
def networks() -> tuple[str, str]:
    """Two physical networks that no other test has."""
    return f"physnet-{uuid4().hex[:12]}", f"physnet-{uuid4().hex[:12]}"


def on(profile: Callable[..., str], network: str) -> str:
    """A profile for a function on this network."""
    return profile({"resources:CUSTOM_PCI": "1", f"trait:{network_trait(network)}": "required"})


def traits(placement: PlacementService, provider: str) -> set[str]:
    return set(placement.call("GET", f"/resource_providers/{provider}/traits")["traits"])


def handles(database: Database) -> dict[str, tuple[str, str, str | None]]:
    """Uuid, state of the unit and network of every attach handle by its key."""
    query = sa.select(AttachHandle.__table__, UNIT.label("unit"))
    with database.reader() as tx:
        return {
            row.handle_key: (
                row.uuid,
                row.unit,
                json.loads(row.attach_info).get("physical_network"),
            )
            for row in tx.execute(query)
        }


def eventually_cabled(database: Database, uuids: dict[str, str], network: str) -> None:
    """Wait until just these handles, by key, are on this network."""
    wanted = {key: (uuid, network) for key, uuid in uuids.items()}
    eventually(
        lambda: {key: (uuid, net) for key, (uuid, _, net) in handles(database).items()} == wanted
    )


def eventually_with(placement: PlacementService, provider: str, trait: str) -> None:
    """Wait until a provider has a trait."""
    eventually(lambda: trait in traits(placement, provider))


def boot(user: ComputeWalk, profile: str) -> tuple[Server, dict[str, str]]:
    """A server with a port of this profile, and what Neutron knows of that."""
    port = str(uuid4())
    server = user.boot(None, ports={port: profile})
    return server, server.binding_profiles[port]


def test_changed_network_updates_handles_in_place(
    site: Site,
    user: ComputeWalk,
    profile: Callable[..., str],
    placement: PlacementService,
    networks: tuple[str, str],
    database: Database,
) -> None:
    """From none to one to another: none is doubled or lost, and no guest loses its own."""
    site.run(None)
    for provider in site.providers:
        eventually_offered(placement, provider, 1)
    before = handles(database)
    uuids = {key: uuid for key, (uuid, _, _) in before.items()}
    for network in networks:
        site.run(network)
        eventually_cabled(database, uuids, network)
        for provider in site.providers:
            eventually_with(placement, provider, network_trait(network))
        _, told = boot(user, on(profile, network))
        assert told["physical_network"] == network
    assert [state for _, state, _ in handles(database).values()] == ["held", "held"]
    for provider in site.providers:
        assert network_trait(networks[0]) not in traits(placement, provider)

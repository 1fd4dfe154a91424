# SPDX-License-Identifier: Apache-2.0
"""Ports of Neutron with an accelerator: the physical network from the whitelist to the port."""

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
from cyborg.drivers.pci import PciDriver, network_trait
from cyborg.testing import servers
from cyborg.tests.fixtures.compute import ComputeWalk, Server
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import eventually, eventually_offered, of_instance
from cyborg.tests.unit.drivers.configured import configured

VFS = ("0000:18:02.0", "0000:18:02.1")


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


@pytest.fixture
def user(member: Client, walk: Callable[..., ComputeWalk]) -> ComputeWalk:
    return walk("member", member.project)


def on(profile: Callable[..., str], network: str) -> str:
    """A profile for a function on this network."""
    return profile({"resources:CUSTOM_PCI": "1", f"trait:{network_trait(network)}": "required"})


def traits(placement: PlacementService, provider: str) -> set[str]:
    return set(placement.call("GET", f"/resource_providers/{provider}/traits")["traits"])


def handles(database: Database) -> dict[str, tuple[str, str, str | None]]:
    """Uuid, state and network of every attach handle by its key."""
    columns = (
        AttachHandle.uuid,
        AttachHandle.handle_key,
        AttachHandle.state,
        AttachHandle.attach_info,
    )
    with database.reader() as tx:
        return {
            row.handle_key: (
                row.uuid,
                row.state,
                json.loads(row.attach_info).get("physical_network"),
            )
            for row in tx.execute(sa.select(*columns))
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


def test_port_gets_function_on_its_physical_network(
    site: Site,
    user: ComputeWalk,
    profile: Callable[..., str],
    placement: PlacementService,
    networks: tuple[str, str],
    member: Client,
) -> None:
    site.run(networks[0])
    for provider in site.providers:
        eventually_offered(placement, provider, 1)
    server, told = boot(user, on(profile, networks[0]))
    assert told["physical_network"] == networks[0]
    assert told["pci_slot"] in VFS
    (arq,) = of_instance(member, server.uuid)
    assert arq["attach_handle_info"]["physical_network"] == networks[0]


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

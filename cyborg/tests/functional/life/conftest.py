# SPDX-License-Identifier: Apache-2.0
"""Every test of a life begins with an empty database; what more than one file of them starts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest

from cyborg.tests.fixtures.accelerators import AcceleratorClient
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.deployments import HAS_BROKER
from cyborg.tests.functional.life.cards import CARD, CardDriver, Rack, Traits
from cyborg.tests.functional.life.http import Client, TokenReader
from cyborg.tests.functional.life.steps import eventually_offered

# The in-process bus leaves nothing behind.
collect_ignore = [] if HAS_BROKER else ["test_broker.py"]


@pytest.fixture(autouse=True)
def _clean(clean: None) -> None:
    """Applied to every test here."""


@pytest.fixture
def nova(member: Client) -> Client:
    """Nova, which acts for a user of a project with its own token beside."""
    return member.with_service_token()


@dataclass(kw_only=True)
class RackedCompute(Rack, ComputeHost):
    """A compute with a running agent for its cards."""


@pytest.fixture
def resource_class() -> str:
    """A resource class that no other test has providers of."""
    return f"CUSTOM_CARD_{uuid4().hex[:12].upper()}"


@pytest.fixture
def racked(
    beside: Callable[..., Stack], placement: PlacementService, resource_class: str, tmp_path: Path
) -> Iterator[Callable[..., RackedCompute]]:
    """Start computes with cards, published in Placement; all are stopped at the end.

    One that is not ``started`` has no agent yet.
    """
    own = beside(agent_heartbeat=0.2, scan=0.2)
    drivers: list[CardDriver] = []

    def start(
        traits: Traits | None = None,
        *,
        cards: Mapping[str, int] = MappingProxyType({CARD: 2}),
        on: Stack = own,
        started: bool = True,
    ) -> RackedCompute:
        name = fresh_host("racked")
        placement.make_compute(name)
        rack = Rack.build(name, traits or Traits(resource_class), cards)
        drivers.append(rack.driver)
        host = RackedCompute(**vars(rack), stack=on, state_path=tmp_path, drivers=[rack.loaded])
        if started:
            host.start()
            for address, units in cards.items():
                eventually_offered(placement, host.provider(address), units)
        return host

    yield start
    for driver in drivers:
        driver.behaviour.open()


@pytest.fixture(scope="session")
def url(app: Any) -> Iterator[str]:
    """The API on a real port, for those who bring tokens (see TokenReader)."""
    with Loopback(TokenReader(app.app)) as server:
        yield f"{server.url}/v2"


@pytest.fixture
def walk(
    url: str, placement: PlacementService, nova_api: SimulatedNova
) -> Callable[..., ComputeWalk]:
    """Nova, asked by a user with a role in a project."""

    def make(role: str, project: str) -> ComputeWalk:
        client = AcceleratorClient(url, f"{role}:{project}", "service")
        return ComputeWalk(client, placement, nova_api, project=project)

    return make

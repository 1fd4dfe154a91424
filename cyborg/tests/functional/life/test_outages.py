# SPDX-License-Identifier: Apache-2.0
"""Agents without conductor, Placement or provider, and after a restore: they wait and repair."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from cyborg import service
from cyborg.db.engine import Database
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack, fresh_exchange
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER, Rack, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    handle_states,
)

#: The ids of work begin again, as after a restore.
BEGIN_AGAIN = {
    "sqlite": "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'work'",
    "mysql": "ALTER TABLE work AUTO_INCREMENT = 1",
    "postgresql": "SELECT setval(pg_get_serial_sequence('work', 'id'), 1)",
}


def test_agent_publishes_when_compute_provider_appears_later(
    stack: Stack, placement: PlacementService, resource_class: str, tmp_path: Path
) -> None:
    rack = Rack.build(fresh_host(), Traits(resource_class), {CARD: 1})
    host = ComputeHost(compute=rack.compute, machine=rack.machine, stack=stack, state_path=tmp_path)
    host.start(rack.loaded)
    eventually(lambda: rack.driver.scans > 1)
    assert offered(placement, rack.provider()) == 0
    placement.make_compute(rack.compute)
    eventually_offered(placement, rack.provider(), 1)
    host.stop()


def test_agent_publishes_when_placement_starts_later(
    racked: Callable[..., RackedCompute], stack: Stack, placement: PlacementService
) -> None:
    closable = _ClosablePlacement(placement.url)
    peers = replace(stack.peers, placement=closable.adapter)
    with Loopback(closable) as loopback, stack.beside(peers=peers) as own:
        closable.url = loopback.url
        host = racked(cards={CARD: 1}, on=own, started=False)
        host.start()
        eventually(lambda: host.driver.scans > 1 and closable.refused > 1)
        assert offered(placement, host.provider()) == 0
        closable.is_open = True
        eventually_offered(placement, host.provider(), 1)


class _ClosablePlacement:
    """Placement behind a door that is closed at first."""

    def __init__(self, behind: str) -> None:
        self._behind = Session(auth=Token(behind, "admin"))
        self.url = ""
        self.is_open = False
        self.refused = 0

    def adapter(self) -> Adapter:
        return Adapter(Session(auth=Token(self.url, "admin")), service_type="placement")

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if not self.is_open:
            self.refused += 1
            start_response("503 Service Unavailable", [])
            return [b""]
        query = environ["QUERY_STRING"]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        answer = self._behind.request(
            environ["PATH_INFO"] + (f"?{query}" if query else ""),
            environ["REQUEST_METHOD"],
            endpoint_filter={"service_type": "placement"},
            data=environ["wsgi.input"].read(length) or None,
            headers={
                "Content-Type": "application/json",
                "OpenStack-API-Version": environ.get("HTTP_OPENSTACK_API_VERSION", ""),
            },
            raise_exc=False,
        )
        start_response(f"{answer.status_code} Passed on", [("Content-Type", "application/json")])
        return [answer.content]


def test_agent_reports_when_conductor_starts_later(
    racked: Callable[..., RackedCompute],
    beside: Callable[..., Stack],
    placement: PlacementService,
) -> None:
    # A bus of its own, on which nobody answers yet.
    own = beside(exchange=fresh_exchange(), rpc=2.0)
    host = racked(cards={CARD: 1}, on=own, started=False)
    host.start()
    own.start_conductor()
    eventually_offered(placement, host.provider(), 1)


@dataclass
class Island:
    """A compute on a bus of its own, and its only conductor."""

    host: RackedCompute
    stack: Stack
    conductor: service.Daemon

    def scanned_again(self) -> None:
        """Wait until the agent has looked at its host from beginning to end once more."""
        scans = self.host.driver.scans
        eventually(lambda: self.host.driver.scans > scans + 2)


@pytest.fixture
def island(beside: Callable[..., Stack], racked: Callable[..., RackedCompute]) -> Island:
    own = beside(exchange=fresh_exchange(), agent_heartbeat=0.2, scan=0.2, rpc=2.0)
    conductor = own.start_conductor()
    return Island(racked(cards={CARD: 2, OTHER: 1}, on=own), own, conductor)


def test_agent_alone_reserves_lost_card_until_conductor_knows(
    island: Island, placement: PlacementService
) -> None:
    host = island.host
    island.conductor.stop()
    host.pull(CARD)
    eventually_offered(placement, host.provider(), 0)
    assert offered(placement, host.provider(OTHER)) == 1
    # A new agent knows it from its file.
    host.restart()
    island.scanned_again()
    assert offered(placement, host.provider()) == 0
    assert offered(placement, host.provider(OTHER)) == 1
    host.plug(CARD, 2)
    island.scanned_again()
    assert offered(placement, host.provider()) == 0
    island.stack.start_conductor()
    eventually_offered(placement, host.provider(), 2)
    assert offered(placement, host.provider(OTHER)) == 1


def test_agent_works_without_state_path(
    stack: Stack,
    placement: PlacementService,
    racked: Callable[..., RackedCompute],
    resource_class: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = racked(Traits(resource_class), cards={CARD: 2})
    host.stop()
    caplog.clear()
    # Not even root can make a directory below a file.
    way = host.state_path / "file"
    way.write_text("in the way")
    host.state_path = way / "state"
    host.start()
    for units in (3, 4, 5):
        host.plug(CARD, units)
        eventually_offered(placement, host.provider(), units)
    said = [one.getMessage() for one in caplog.records]
    assert len([one for one in said if "works without it" in one]) == 1


def test_agents_follow_a_restored_database(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Callable[..., str],
    member: Client,
    *,
    database: Database,
) -> None:
    nova = member.with_service_token()
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    name = profile({f"resources:{resource_class}": "1"})

    def boot() -> str:
        instance = bind(nova, create(nova, name), host.provider())
        eventually_bound(nova, instance)
        eventually_idle(database)
        return instance

    nova.delete(f"{ARQS}?instance={boot()}")
    instance = boot()
    with database.writer() as tx:
        tx.execute(sa.text(BEGIN_AGAIN[tx.dialect.name]))
    delete_arqs(nova, instance)
    eventually(lambda: set(handle_states(database).values()) == {"free"})
    assert host.driver.ready == set()

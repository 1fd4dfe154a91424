# SPDX-License-Identifier: Apache-2.0
"""Agents that start before whomever they need: they wait, and put all right when it is there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack, fresh_exchange
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.steps import eventually, eventually_offered


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

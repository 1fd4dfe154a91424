# SPDX-License-Identifier: Apache-2.0
"""Peers for the tests of the clients: one Placement per process, fresh hosts per test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN, PlacementService


class Wire(Adapter):
    """An adapter that keeps the requests that passed, and lets a test act before each of them.

    ``before`` may return a status: the request is then answered so, and does not pass.
    """

    def __init__(self, url: str) -> None:
        super().__init__(Session(auth=Token(url, TOKEN)), service_type="placement")
        self.calls: list[str] = []
        self.before: Callable[[str], int | None] = lambda _call: None

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        call = f"{method} {url}"
        status = self.before(call)
        self.calls.append(call)
        if status is None:
            return super().request(url, method, **kwargs)
        answer = requests.Response()
        answer.status_code = status
        return answer

    def take(self) -> list[str]:
        """The requests since the last time, without their identifiers and queries."""
        taken, self.calls = self.calls, []
        return [_shape(call) for call in taken]


def _shape(call: str) -> str:
    method, _, path = call.partition(" ")
    plain, _, query = path.partition("?")
    first, *rest = plain.strip("/").split("/")
    kept = [first, *(("*", *rest[1:]) if rest else ())]
    return f"{method} /{'/'.join(kept)}" + (f"?{query.partition('=')[0]}" if query else "")


@pytest.fixture
def wire(placement: PlacementService) -> Wire:
    return Wire(placement.url)


@pytest.fixture
def client(wire: Wire) -> Placement:
    return Placement(wire)


@pytest.fixture
def publisher(client: Placement) -> Publisher:
    return Publisher(client)


@pytest.fixture
def nova() -> Iterator[SimulatedNova]:
    with SimulatedNova() as service:
        yield service


@pytest.fixture
def glance() -> Iterator[SimulatedGlance]:
    with SimulatedGlance() as service:
        yield service

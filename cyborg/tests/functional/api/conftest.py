# SPDX-License-Identifier: Apache-2.0
"""The API's own fixtures, with a real conductor in the place of the one that behaves."""

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from cyborg.db.engine import Database, Reader
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.unit.api import world
from cyborg.tests.unit.api.conftest import make_client, make_conf, statements, tokens

__all__ = ["make_client", "make_conf", "statements", "tokens"]

pytest.register_assert_rewrite(
    "cyborg.tests.unit.api.test_arqs",
    "cyborg.tests.unit.api.test_authorization",
    "cyborg.tests.unit.api.test_binding",
    "cyborg.tests.unit.api.test_device_profiles",
    "cyborg.tests.unit.api.test_hardware",
    "cyborg.tests.unit.api.test_lists",
    "cyborg.tests.unit.api.test_reasons",
)


class Recording:
    """Hands every verb on to a conductor's client, and keeps a note of it."""

    def __init__(self, client: ConductorClient) -> None:
        self._client = client
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []

    def reached(self) -> bool:
        return self._client.reached()

    def __getattr__(self, verb: str) -> Any:
        return partial(self._call, verb)

    def _call(self, verb: str, *given: Any, **named: Any) -> Any:
        method = getattr(self._client, verb)
        arguments = dict(inspect.signature(method).bind(*given, **named).arguments)
        caller = arguments.pop("caller")
        del arguments["request_key"]
        self.calls.append((verb, caller, arguments))
        return method(*given, **named)


@pytest.fixture(scope="package")
def bus_client(stack: Stack) -> Iterator[ConductorClient]:
    """A process's connection to the conductor."""
    client = reach(ConductorClient(stack.bus(), timeout=stack.times.rpc))
    yield client
    client.close()


@pytest.fixture
def conductor(bus_client: ConductorClient) -> Recording:
    """What the API is given of the bus."""
    return Recording(bus_client)


@pytest.fixture
def db(database: Database, clean: None) -> Database:
    """The database, with nothing of other tests in it."""
    return database


@pytest.fixture
def facts(db: Database) -> Mapping[str, str]:
    """The small cloud, and what requests refer to as ``<name>``."""
    return world.populate(db)


@pytest.fixture
def reader(database_url: str) -> Iterator[Reader]:
    """What the API is given of the database."""
    reader = Reader(database_url)
    yield reader
    reader.close()


@pytest.fixture
def client(make_client: Any) -> world.Client:
    """A client of an API with the default configuration."""
    made: world.Client = make_client()
    return made

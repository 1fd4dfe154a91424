# SPDX-License-Identifier: Apache-2.0
"""How often each race is run, from which seeds, and how often the database made it begin again.

``CYBORG_TEST_FULL=1`` runs 200 rounds of each instead of 10; SQLite, which has one writer at a
time, gets few.
"""

import logging
import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from _pytest.terminal import TerminalReporter

from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_manager import DriverManager, load_nothing
from cyborg.agent.endpoint import Endpoint
from cyborg.agent.health import HealthChecks
from cyborg.agent.operations import Operations
from cyborg.agent.reporter import Reporter
from cyborg.agent.state_store import OperationJournal, StateStore
from cyborg.clients.glance import Glance
from cyborg.clients.nova import Nova
from cyborg.db import schema
from cyborg.drivers.base import EMPTY_CONTEXT
from cyborg.drivers.loader import LoadResult
from cyborg.rpc.transport import AGENT_TOPIC
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.races.arena import Arena, Conductor
from cyborg.tests.functional.schema.databases import SERVER, empty_database

HOST = "plain"
#: What each of its devices has.
UNITS = 5
DEVICES = 4
#: What the card of the other host has, whose binds need preparation.
PREPARED_UNITS = 8
_ROUNDS = 200 if os.environ.get("CYBORG_TEST_FULL") == "1" else 10 if SERVER else 3
_REPEATS = "repeats"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that throws dice is a race: one test for each round."""
    if "dice" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(_ROUNDS))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say how often use cases were begun again; those that gave up have failed their test."""
    repeats: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    # Those of teardowns that passed have no name there.
    for report in terminalreporter.stats.get("", []):
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        for key, value in report.user_properties:
            if key == _REPEATS:
                repeats[name] += value
                rounds[name] += 1
    if rounds:
        terminalreporter.section("races: use cases begun again after a deadlock")
        for name, count in sorted(rounds.items()):
            terminalreporter.line(f"{repeats[name]:5} in {count} rounds of {name}")


class _Counter(logging.Handler):
    """Counts the use cases that the engine begins again."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += "Repeating %s after" in record.msg


@pytest.fixture(scope="package")
def exchange() -> Exchange:
    """The bus between the conductors and the agents of these tests."""
    return Exchange()


@pytest.fixture(scope="package")
def nova() -> Iterator[SimulatedNova]:
    with SimulatedNova() as service:
        yield service


@pytest.fixture(scope="package")
def shared_arena(
    tmp_path_factory: pytest.TempPathFactory, exchange: Exchange, nova: SimulatedNova
) -> Iterator[Arena]:
    """Two conductors on a database that no process works on."""
    with empty_database(tmp_path_factory.mktemp("races")) as db:
        schema.upgrade(db)
        url = db.engine.url.render_as_string(hide_password=False)
        conductors = tuple(
            Conductor.build(one, url=url, bus=DirectBus(exchange), nova=Nova(nova.adapter()))
            for one in ("control-1", "control-2")
        )
        arena = Arena(conductors)
        arena.report(HOST, report_of(HOST, DEVICES, handles=UNITS))
        yield arena
        for one in conductors:
            one.stop()


@pytest.fixture
def arena(shared_arena: Arena, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """A round: everything as at the start, and its repetitions counted."""
    shared_arena.reset()
    counter, log = _Counter(), logging.getLogger("cyborg.db.engine")
    level = log.level
    log.addHandler(counter)
    log.setLevel(logging.DEBUG)
    yield shared_arena
    log.setLevel(level)
    log.removeHandler(counter)
    request.node.user_properties.append((_REPEATS, counter.seen))


@pytest.fixture
def dice(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """What chance decides in this round."""
    return random.Random(f"{request.function.__name__} {seed}")


@pytest.fixture(scope="package")
def racked(
    shared_arena: Arena, exchange: Exchange, tmp_path_factory: pytest.TempPathFactory
) -> Rack:
    """A host whose agent prepares and releases what it is told to."""
    rack = Rack.build("racked", Traits(RESOURCE_CLASS, prepare=True), {CARD: PREPARED_UNITS})
    driver_manager = DriverManager([LoadResult(rack.driver.name, rack.driver)], load_nothing)
    checks = HealthChecks(
        drivers={}, devices=tuple, last_report=None, on_change=lambda: None, enabled=False
    )
    shared_arena.report(rack.compute, Reporter(driver_manager, checks).scan(EMPTY_CONTEXT))

    def no_glance() -> Glance:
        raise AssertionError("nothing is programmed here")

    state_path = tmp_path_factory.mktemp("agent")
    operations = Operations(
        drivers=driver_manager.drivers,
        journal=OperationJournal(StateStore(state_path, rack.compute)),
        glance=no_glance,
        images=state_path,
        timeout=10.0,
        request_scan=lambda: None,
    )
    endpoint = Endpoint(
        operations,
        discoveries=DiscoveryRequests(timeout=10.0),
        on_desired_changed=lambda: None,
        check=lambda _epoch: None,
    )
    DirectBus(exchange).server(AGENT_TOPIC, rack.compute, endpoint).start()
    return rack


@pytest.fixture
def rack(racked: Rack) -> Iterator[Rack]:
    """The same, with nothing prepared and nothing held back."""
    racked.driver.calls.clear()
    racked.boot()
    yield racked
    racked.driver.behaviour.open()

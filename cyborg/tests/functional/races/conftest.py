# SPDX-License-Identifier: Apache-2.0
"""How often each race is run, from which seeds, and how often the database made it begin again.

A full run has 200 rounds of each instead of 10. PostgreSQL gets few, because what it adds is its
locks; so does SQLite, which has one writer at a time. The commit decides the seeds.
"""

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from _pytest.terminal import TerminalReporter

from cyborg.db.engine import Settings
from cyborg.tests.fixtures.choice import FULL, generator
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.single_step import Environment, RunningClock
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.races.arena import Arena
from cyborg.tests.functional.schema.databases import SERVER, upgraded_database

HOST = "plain"
#: What each of its devices has.
UNITS = 5
DEVICES = 4
#: What the card of the other host has, whose binds need preparation.
PREPARED_UNITS = 8
_ROUNDS = 200 if FULL else 10 if SERVER.startswith("mysql") else 3
_REPEATS = "repeats"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that throws dice is a race: one test for each round."""
    if "dice" in metafunc.fixturenames:
        # Some have two or three kinds of rounds, by the seed.
        first = generator("races").randrange(1000)
        metafunc.parametrize("seed", range(first, first + _ROUNDS))


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
def nova() -> Iterator[SimulatedNova]:
    with SimulatedNova() as service:
        yield service


@pytest.fixture(scope="package")
def shared_arena(
    tmp_path_factory: pytest.TempPathFactory, placement: PlacementService, nova: SimulatedNova
) -> Iterator[Arena]:
    """Two conductors on a database that no process works on."""
    with upgraded_database(tmp_path_factory.mktemp("races")) as db:
        environment = Environment(
            database_url=db.engine.url.render_as_string(hide_password=False),
            state_path=tmp_path_factory.mktemp("agent"),
            placement=placement.adapter(),
            nova=nova.adapter(),
            clock=RunningClock(),
            engine=Settings(),
        )
        conductors = tuple(
            environment.conductor(one, threads=4, heartbeat_interval=200.0)
            for one in ("control-1", "control-2")
        )
        # The hosts send their heartbeats once, to whichever of them.
        conductors[1].epochs = conductors[0].epochs
        arena = Arena(environment, conductors)
        arena.first.report(HOST, report_of(HOST, DEVICES, handles=UNITS))
        yield arena
        for one in conductors:
            one.stop()
        environment.close()


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
def racked(shared_arena: Arena, placement: PlacementService) -> Iterator[Rack]:
    """A host whose agent prepares and releases what it is told to."""
    rack = Rack.build(fresh_host(), Traits(RESOURCE_CLASS, prepare=True), {CARD: PREPARED_UNITS})
    placement.make_compute(rack.compute)
    agent = shared_arena.environment.agent(rack.compute, rack.loaded, scan=1.0)
    shared_arena.first.serve()
    agent.serve()
    agent.run_once()
    yield rack
    agent.stop()


@pytest.fixture
def rack(racked: Rack) -> Iterator[Rack]:
    """The same, with nothing prepared and nothing held back."""
    racked.driver.calls.clear()
    racked.boot()
    yield racked
    racked.driver.behaviour.open()

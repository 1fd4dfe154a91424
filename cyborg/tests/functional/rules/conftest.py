# SPDX-License-Identifier: Apache-2.0
"""One conductor whose use cases a test calls itself; nothing runs beside the test."""

from collections.abc import Iterator

import pytest

from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.functional.races.arena import Arena, Conductor
from cyborg.tests.functional.rules.pair import Pair, emptied
from cyborg.tests.functional.schema.databases import SERVER, upgraded_database

# SQLite has one writer at a time: no transaction comes between the statements of another.
collect_ignore = [] if SERVER else ["test_first_bind.py"]
#: A host whose devices need no work of the host, and one that prepares each bind.
PLAIN, PREPARING = "plain", "preparing"
UNITS = 2


@pytest.fixture(scope="package")
def shared_arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A database with two hosts that no process works on."""
    with upgraded_database(tmp_path_factory.mktemp("rules")) as db:
        url = db.engine.url.render_as_string(hide_password=False)
        made = Conductor("control", url=url, bus=DirectBus(Exchange()))
        arena = Arena((made,))
        arena.report(PLAIN, report_of(PLAIN, 1, handles=UNITS))
        arena.report(PREPARING, report_of(PREPARING, 1, handles=UNITS, prepare=True))
        yield arena
        made.stop()


@pytest.fixture
def arena(shared_arena: Arena) -> Arena:
    """Every device is there, in service and free; there is no ARQ, no work and no history."""
    shared_arena.reset()
    return shared_arena


@pytest.fixture
def conductor(arena: Arena) -> Conductor:
    (made,) = arena.conductors
    return made


@pytest.fixture(scope="package")
def pair_conductor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conductor]:
    """A conductor with a database of its own."""
    with upgraded_database(tmp_path_factory.mktemp("pair")) as db:
        url = db.engine.url.render_as_string(hide_password=False)
        made = Conductor("control", url=url, bus=DirectBus(Exchange()))
        yield made
        made.stop()


@pytest.fixture
def pair(pair_conductor: Conductor) -> Pair:
    return emptied(pair_conductor)

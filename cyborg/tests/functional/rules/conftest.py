# SPDX-License-Identifier: Apache-2.0
"""One conductor whose use cases a test calls itself; nothing runs beside the test."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.contexts import SECONDS_PER_DAY
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.rules.pair import DOWN_AFTER, RETENTION
from cyborg.tests.functional.schema.databases import SERVER, upgraded_database

# SQLite has one writer at a time: no transaction comes between the statements of another.
collect_ignore = [] if SERVER else ["test_first_bind.py"]
#: A host whose devices need no work of the host, and one that prepares each bind.
PLAIN, PREPARING = "plain", "preparing"
UNITS = 2


@pytest.fixture(scope="package")
def shared_conductor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UseCases]:
    """A database with two hosts that no process works on."""
    with upgraded_database(tmp_path_factory.mktemp("rules")) as db:
        made = UseCases(db, heartbeat_interval=200.0)
        made.report(PLAIN, report_of(PLAIN, 1, handles=UNITS))
        made.report(PREPARING, report_of(PREPARING, 1, handles=UNITS, prepare=True))
        yield made


@pytest.fixture
def conductor(shared_conductor: UseCases) -> UseCases:
    """Every device is there, in service and free; there is no ARQ, no work and no history."""
    shared_conductor.reset()
    shared_conductor.lease.renew()
    shared_conductor.listen()
    return shared_conductor


@pytest.fixture
def other_conductor(conductor: UseCases) -> Iterator[UseCases]:
    """Another conductor on the same database."""
    url = conductor.db.engine.url.render_as_string(hide_password=False)
    with closing(Database(url)) as db:
        yield UseCases(db, host="other", heartbeat_interval=200.0)


@pytest.fixture(scope="package")
def pair_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database for two hosts that each test reports itself."""
    with upgraded_database(tmp_path_factory.mktemp("pair")) as db:
        yield db


@pytest.fixture
def pair(pair_database: Database) -> UseCases:
    """The use cases on a database without any host."""
    made = UseCases(
        pair_database,
        lost_retention=RETENTION / 1000 / SECONDS_PER_DAY,
        heartbeat_interval=DOWN_AFTER / 3000,
    )
    made.empty()
    made.lease.renew()
    return made

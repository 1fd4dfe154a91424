# SPDX-License-Identifier: Apache-2.0
"""Every test of the audit begins with an empty database and makes its own hosts.

The database is not that of the other tests: a conductor of theirs lives on it, and of those that
live only the first one audits.
"""

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import schema
from cyborg.db.engine import Database
from cyborg.db.models import METADATA
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.audit.cloud import ListingNova, SmallCloud
from cyborg.tests.functional.schema.databases import empty_database


@pytest.fixture
def nova() -> Iterator[ListingNova]:
    with ListingNova() as service:
        yield service


@pytest.fixture(scope="package")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database that no process works on."""
    with empty_database(tmp_path_factory.mktemp("audit")) as db:
        schema.upgrade(db)
        yield db


@pytest.fixture
def quiet_url(quiet: Database) -> str:
    """Where it is; nothing of earlier tests is in it."""
    with quiet.writer() as tx:
        for table in reversed(METADATA.sorted_tables):
            if table.name != "alembic_version":
                tx.execute(sa.delete(table))
    return quiet.engine.url.render_as_string(hide_password=False)


@pytest.fixture
def cloud(
    quiet: Database, quiet_url: str, placement: PlacementService, nova: ListingNova
) -> SmallCloud:
    return SmallCloud(quiet, placement, nova)


@pytest.fixture
def keeping(stack: Stack, quiet_url: str) -> Iterator[Stack]:
    """A service of its own whose conductor tidies up all the time."""
    times = replace(stack.times, housekeeping=0.3, agent_heartbeat=0.2, scan=0.2, full_check=1.0)
    own = replace(
        stack,
        database_url=quiet_url,
        times=times,
        exchange=f"cyborg-{uuid4().hex[:12]}",
        _endings=[],
    )
    own.start_conductor("keeping")
    yield own
    own.stop()

# SPDX-License-Identifier: Apache-2.0
"""A database with nothing in it, and a conductor's lease."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.conductor.leases import ConductorLease
from cyborg.db.engine import Database
from cyborg.db.models import METADATA
from cyborg.db.services import Process
from cyborg.model.process import CONDUCTOR


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/work.sqlite")
    METADATA.create_all(database.engine)
    yield database
    database.close()


@pytest.fixture
def lease(db: Database) -> ConductorLease:
    return ConductorLease(db=db, process=Process("control", CONDUCTOR, "0", "here", "1"))

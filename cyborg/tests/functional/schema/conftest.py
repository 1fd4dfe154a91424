# SPDX-License-Identifier: Apache-2.0
"""A database a test, fresh or used by the existing service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.db.engine import Database
from cyborg.tests.functional.schema.databases import (
    SERVER,
    empty_database,
    load_existing_service,
    upgraded_database,
)

# A test that needs a server, or MariaDB, is not collected elsewhere.
collect_ignore = [] if SERVER else ["test_lock.py", "test_servers.py"]
for server, file in (("mysql", "test_mariadb.py"), ("postgresql", "test_postgresql.py")):
    if not SERVER.startswith(server):
        collect_ignore.append(file)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    """A database without any table."""
    with empty_database(tmp_path) as db:
        yield db


@pytest.fixture
def current(tmp_path: Path) -> Iterator[Database]:
    """A database at the newest revision, without rows."""
    with upgraded_database(tmp_path) as db:
        yield db


@pytest.fixture
def existing(empty: Database) -> Database:
    """A database that the existing service has made and used."""
    load_existing_service(empty)
    return empty

# SPDX-License-Identifier: Apache-2.0
"""The schema's life: made, upgraded, stamped and told apart from schemas that are not ours.

Everything here is called by ``cyborg-dbsync`` or by whatever starts a service in one process. Each
function raises SchemaError with a sentence for the operator when it cannot do what was asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy.dialects import mysql

from cyborg import exception
from cyborg.db import faults
from cyborg.db.connections import WRITES
from cyborg.db.engine import Database, Reader
from cyborg.db.migrations import ground_preflight
from cyborg.db.models import METADATA

#: The existing service's own revisions before the one that we begin with.
FOREIGN = frozenset(
    {
        "f50980397351",
        "d6f033d8fa5b",
        "ede4e3f1a232",
        "589ff20545b7",
        "c1b5abada09c",
        "57539722e5cf",
        "22fb1af2d51e",
        "7b696fd94949",
        "62bcf2610c5d",
        "7a4fd0fc3f8c",
        "60d8ac91fd20",
        "7e6f1f107f2b",
        "899cead40bc9",
        "4cc1d79978fc",
        "6c77bd6afea5",
        "9625668549b5",
        "a35b4295a0e5",
    }
)
#: The existing service's schema, release 17.0.0.
EXISTING = "b47c8f2d1e3a"


def upgrade(db: Database, revision: str = "head") -> None:
    """Bring the database to ``revision``; nothing happens when it stands there already.

    Raises SchemaError, before any change, for a schema that we cannot start from, and with a list
    of all rows that the new unique keys would refuse.
    """
    _check_start(db)
    with _alembic(db) as config:
        command.upgrade(config, revision)


def revision(db: Database, message: str | None = None, *, autogenerate: bool = False) -> None:
    """Write a new revision file below ``migrations/versions``, for developers."""
    with _alembic(db) as config:
        command.revision(config, message=message, autogenerate=autogenerate)


def stamp(db: Database, revision: str | None = None) -> None:
    """Note ``revision`` in the database without running anything; None clears the note."""
    with _alembic(db) as config:
        command.stamp(config, revision or "base", purge=True)


def version(db: Reader) -> str | None:
    """The revision that the database notes, ours or not; None when it notes none."""
    with db.reader() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        noted: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return noted


def head() -> str:
    """The newest revision of this release."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise exception.SchemaError(reason="No revisions are installed beside cyborg/db.")
    return found


def check(db: Reader) -> None:
    """Raise SchemaError, with what to run, unless the schema is this release's."""
    current, wanted = version(db), head()
    if current != wanted:
        raise exception.SchemaError(
            reason=f"The schema stands at {current}, this release needs {wanted}: run "
            "'cyborg-dbsync upgrade'."
        )


def create_schema(db: Database) -> None:
    """Create all tables in an empty database and stamp it as newest."""
    current = version(db)
    if current is not None:
        raise exception.SchemaError(
            reason=f"The database is under version control already, at revision {current}; use "
            "'cyborg-dbsync upgrade'."
        )
    with db.writer() as connection:
        METADATA.create_all(connection)
    stamp(db, "head")


def preflight(db: Reader) -> list[str]:
    """What would keep ``upgrade`` from starting on the existing service's schema, a line each."""
    if version(db) != EXISTING:
        return []
    with db.reader() as connection:
        return [str(problem) for problem in ground_preflight.problems(connection)]


def same_type(  # noqa: PLR0917 - alembic's signature
    context: MigrationContext,
    inspected: sa.Column[Any],
    model: sa.Column[Any],
    inspected_type: sa.types.TypeEngine[Any],
    model_type: sa.types.TypeEngine[Any],
) -> bool | None:
    """For alembic's comparison: whether the types differ; None leaves it to alembic.

    MariaDB has no JSON type of its own: the word makes a LONGTEXT that must hold valid JSON.
    """
    is_mysql = context.connection is not None and context.connection.dialect.name == "mysql"
    if is_mysql and isinstance(model_type, sa.JSON):
        return not isinstance(inspected_type, mysql.LONGTEXT | mysql.JSON)
    return None


def _check_start(db: Reader) -> None:
    """Raise SchemaError for a database that no revision of ours leads on from."""
    current = version(db)
    if current in FOREIGN:
        raise exception.SchemaError(
            reason=f"The database stands at revision {current} of the existing service; run that "
            f"service's (release 17.0.0) 'cyborg-dbsync upgrade' first, to get to {EXISTING}."
        )
    if current is not None and not _is_known(current):
        raise exception.SchemaError(
            reason=f"The database stands at revision {current}, which this release does not know; "
            "it was made by a newer release, or by something else: see [database] connection."
        )
    if current is None and (strangers := _unversioned(db)):
        raise exception.SchemaError(
            reason=f"The database has the tables {', '.join(strangers)}, but notes no revision: "
            "nobody can tell what they are. See [database] connection; if they are the existing "
            f"service's, of release 17.0.0, run 'cyborg-dbsync stamp --revision {EXISTING}' first."
        )


def _unversioned(db: Reader) -> list[str]:
    """Tables named like ours in a database without a place for revisions.

    A first upgrade that was killed leaves that place behind, and so does a note that was cleared.
    """
    with db.reader() as connection:
        there = set(sa.inspect(connection).get_table_names())
    return [] if "alembic_version" in there else sorted(there & METADATA.tables.keys())


def _is_known(name: str) -> bool:
    return any(
        script.revision == name
        for script in ScriptDirectory.from_config(_config()).walk_revisions()
    )


def _config() -> Config:
    return Config(str(Path(__file__).with_name("alembic.ini")))


@contextmanager
def _alembic(db: Database) -> Iterator[Config]:
    config = _config()
    with faults.connecting(db.place):
        connection = db.engine.connect().execution_options(**{WRITES: True})
    with connection:
        _prepare(connection)
        config.attributes["connection"] = connection
        try:
            yield config
        except CommandError as error:
            raise exception.SchemaError(reason=str(error)) from error
        finally:
            # Closed for good: nobody else may get its lock, or its lack of foreign keys.
            connection.invalidate()


def _prepare(connection: sa.Connection) -> None:
    if connection.dialect.name == "sqlite":
        # Tables are replaced by rebuilt ones; the switch has no effect within a transaction.
        raw: Any = connection.connection.dbapi_connection
        raw.execute("PRAGMA foreign_keys = OFF")
        return
    # Two upgrades at once (containers like to start together): the second waits, then finds
    # nothing left to do.
    with connection.begin():
        if connection.dialect.name == "mysql":
            lock = "SELECT GET_LOCK(LEFT(CONCAT('cyborg-dbsync.', DATABASE()), 64), 86400)"
        else:
            lock = "SELECT pg_advisory_lock(hashtext('cyborg-dbsync'))"
        connection.exec_driver_sql(lock)

# SPDX-License-Identifier: Apache-2.0
"""Create, upgrade, stamp and check the database schema, and reject schemas of other origin.

``cyborg-dbsync`` calls these functions, and so does code that starts a service in one process. Each
function raises SchemaError with a sentence for the operator when it cannot complete its task.
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
from cyborg.db.engine import WRITES, Database, Reader
from cyborg.db.migrations import initial_preflight
from cyborg.db.models import METADATA

#: Revisions of the existing service before EXISTING, from which this service cannot upgrade.
TOO_OLD = frozenset(
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
#: The revision of the existing service's schema in release 17.0.0.
EXISTING = "b47c8f2d1e3a"


def upgrade(db: Database, revision: str = "head") -> None:
    """Upgrade the database to ``revision``; does nothing if the database is at this revision.

    Raises SchemaError, before any change, for a schema that cannot be upgraded, and with a list of
    all rows that violate the new unique keys.
    """
    current = version(db)
    if current in TOO_OLD:
        raise exception.SchemaError(
            reason=f"The database is at revision {current} of the existing service. First run "
            f"'cyborg-dbsync upgrade' of that service (release 17.0.0), to reach {EXISTING}."
        )
    revisions = ScriptDirectory.from_config(_config()).walk_revisions()
    if current is not None and all(script.revision != current for script in revisions):
        raise exception.SchemaError(
            reason=f"The database is at revision {current}, which this release does not know. A "
            "newer release or another service created it. Check [database] connection."
        )
    if current is None:
        with db.reader() as tx:
            existing = set(sa.inspect(tx.connection).get_table_names())
        tables = sorted(existing & METADATA.tables.keys())
        # An interrupted first upgrade leaves alembic's table behind, and so does a removed record.
        if tables and "alembic_version" not in existing:
            raise exception.SchemaError(
                reason=f"The database has the tables {', '.join(tables)}, but records no revision, "
                "so their origin is unknown. Check [database] connection. If the existing service, "
                "release 17.0.0, created them, first run 'cyborg-dbsync stamp --revision "
                f"{EXISTING}'."
            )
    with _alembic(db) as config:
        command.upgrade(config, revision)


def revision(db: Database, message: str | None = None, *, autogenerate: bool = False) -> None:
    """Write a new revision file below ``migrations/versions``, for developers."""
    with _alembic(db) as config:
        command.revision(config, message=message, autogenerate=autogenerate)


def stamp(db: Database, revision: str | None = None) -> None:
    """Record ``revision`` in the database without running it; None removes the record."""
    with _alembic(db) as config:
        command.stamp(config, revision or "base", purge=True)


def version(db: Reader) -> str | None:
    """Return the revision that the database records, of any service; None if it records none."""
    with db.reader() as tx:
        if not sa.inspect(tx.connection).has_table("alembic_version"):
            return None
        recorded: str | None = tx.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return recorded


def head() -> str:
    """Return the newest revision of this release."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise exception.SchemaError(
            reason="No revisions are installed in cyborg/db/migrations/versions. Install the "
            "package again."
        )
    return newest


def check(db: Reader) -> None:
    """Raise SchemaError, with the command to run, unless the schema is that of this release."""
    current, required = version(db), head()
    if current != required:
        raise exception.SchemaError(
            reason=f"The schema is at revision {current}, but this release needs {required}: run "
            "'cyborg-dbsync upgrade'."
        )


def create_schema(db: Database) -> None:
    """Create all tables in an empty database and record the newest revision."""
    current = version(db)
    if current is not None:
        raise exception.SchemaError(
            reason=f"The database already has a schema, at revision {current}: run "
            "'cyborg-dbsync upgrade'."
        )
    with db.writer() as tx:
        METADATA.create_all(tx.connection)
    stamp(db, "head")


def preflight(db: Reader) -> list[str]:
    """Return the problems that prevent an upgrade of the existing service's schema, a line each."""
    if version(db) != EXISTING:
        return []
    with db.reader() as tx:
        return [str(problem) for problem in initial_preflight.problems(tx.connection)]


def same_type(  # noqa: PLR0917 - alembic's signature
    context: MigrationContext,
    inspected: sa.Column[Any],
    model: sa.Column[Any],
    inspected_type: sa.types.TypeEngine[Any],
    model_type: sa.types.TypeEngine[Any],
) -> bool | None:
    """Return whether two types differ, for alembic's comparison; None lets alembic decide.

    MariaDB has no JSON type: its JSON is a LONGTEXT column that accepts only valid JSON.
    """
    is_mysql = context.connection is not None and context.connection.dialect.name == "mysql"
    if is_mysql and isinstance(model_type, sa.JSON):
        return not isinstance(inspected_type, mysql.LONGTEXT | mysql.JSON)
    return None


def _config() -> Config:
    return Config(str(Path(__file__).with_name("alembic.ini")))


@contextmanager
def _alembic(db: Database) -> Iterator[Config]:
    config = _config()
    with faults.connecting(db.place):
        connection = db.engine.connect().execution_options(**{WRITES: True})
    with connection:
        if connection.dialect.name == "sqlite":
            # Revisions rebuild tables. The pragma has no effect within a transaction.
            raw: Any = connection.connection.dbapi_connection
            raw.execute("PRAGMA foreign_keys = OFF")
        else:
            # If two upgrades start at the same time, as containers do, the second one waits for
            # the first one and then has nothing left to do.
            lock = "SELECT pg_advisory_lock(hashtext('cyborg-dbsync'))"
            if connection.dialect.name == "mysql":
                lock = "SELECT GET_LOCK(LEFT(CONCAT('cyborg-dbsync.', DATABASE()), 64), 86400)"
            with connection.begin():
                connection.exec_driver_sql(lock)
        config.attributes["connection"] = connection
        try:
            yield config
        except CommandError as error:
            raise exception.SchemaError(reason=str(error)) from error
        finally:
            # Close the connection permanently: the pool must not hand out a connection that holds
            # the lock or has foreign keys off.
            connection.invalidate()

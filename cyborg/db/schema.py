# SPDX-License-Identifier: Apache-2.0
"""Create, upgrade and stamp the database schema, and reject schemas of other origin.

``cyborg-dbsync`` calls these functions, and so does code that starts a service in one process. Each
function raises SchemaError with a sentence for the operator when it cannot complete its task.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from oslo_db import exception as db_exc
from sqlalchemy.dialects import mysql

from cyborg import exception
from cyborg.db import faults, schema_lock
from cyborg.db.engine import WRITES, Database, Reader
from cyborg.db.migrations import initial_preflight
from cyborg.db.models import METADATA
from cyborg.db.revisions import version
from cyborg.db.schema_lock import Rules, SchemaLock

LOG = logging.getLogger(__name__)

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
#: Later revisions of the existing service that only add tables and columns to EXISTING, each of
#: them nullable or with a default. None is known yet.
ADDITIONS: Collection[str] = frozenset()
_RULES: Final = Rules()
#: Pauses before a refused change is repeated, in seconds.
_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)


def upgrade(
    db: Database,
    revision: str = "head",
    *,
    rules: Rules = _RULES,
    additions: Collection[str] = ADDITIONS,
) -> None:
    """Upgrade the database to ``revision``; does nothing if the database is at this revision.

    A database at one of ``additions`` is upgraded like one at EXISTING. On MySQL, MariaDB and
    PostgreSQL the tables and columns that EXISTING does not have stay, unused.

    Processes that change the schema wait for each other; see ``schema_lock``. Raises SchemaError,
    before any change of a table, for a schema that cannot be upgraded, and with a list of all rows
    that violate the new unique keys.
    """
    current = version(db)
    if current in TOO_OLD:
        raise exception.SchemaError(
            reason=f"The database is at revision {current} of the existing service. First run "
            f"'cyborg-dbsync upgrade' of that service (release 17.0.0), to reach {EXISTING}."
        )
    revisions = ScriptDirectory.from_config(_config()).walk_revisions()
    accepted = {*additions, *(script.revision for script in revisions)}
    if current is not None and current not in accepted:
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

    def change(config: Config) -> None:
        # Read again: another upgrade may have finished while this one waited for the lock.
        if version(db) in additions:
            with db.reader() as tx:
                initial_preflight.check(tx.connection)
            command.stamp(config, EXISTING, purge=True)
        command.upgrade(config, revision)

    _change(db, rules, change)


def revision(db: Database, message: str | None = None, *, autogenerate: bool = False) -> None:
    """Write a new revision file below ``migrations/versions``, for developers."""
    _change(
        db,
        _RULES,
        lambda config: command.revision(config, message=message, autogenerate=autogenerate),
    )


def stamp(db: Database, revision: str | None = None, *, rules: Rules = _RULES) -> None:
    """Record ``revision`` in the database without running it; None removes the record."""
    _change(db, rules, lambda config: command.stamp(config, revision or "base", purge=True))


def create_schema(db: Database, *, rules: Rules = _RULES) -> None:
    """Create all tables in an empty database and record the newest revision."""
    current = version(db)
    if current is not None:
        raise exception.SchemaError(
            reason=f"The database already has a schema, at revision {current}: run "
            "'cyborg-dbsync upgrade'."
        )

    def create(config: Config) -> None:
        with config.attributes["connection"].begin():
            METADATA.create_all(config.attributes["connection"])
        command.stamp(config, "head", purge=True)

    _change(db, rules, create)


def preflight(db: Reader) -> list[str]:
    """Return the problems that prevent an upgrade of the existing service's schema, a line each."""
    if version(db) not in {EXISTING, *ADDITIONS}:
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


def is_of_models(name: str | None, kind: str, _parents: object) -> bool:
    """Return whether alembic's comparison considers a table: all but the lock of the schema."""
    return kind != "table" or name != schema_lock.LOCK.name


def _config() -> Config:
    return Config(str(Path(__file__).with_name("alembic.ini")))


def _change(db: Database, rules: Rules, change: Callable[[Config], object]) -> None:
    """Change the schema while no other process does, again if a rival was in the way.

    ``change`` completes what an interrupted run of it has begun. Raises SchemaError if the database
    refuses it.
    """
    is_shared = db.engine.dialect.name != "sqlite"
    alone: AbstractContextManager[SchemaLock | None]
    alone = SchemaLock(db, rules) if is_shared else nullcontext()

    def attempt() -> None:
        with _alembic(db) as config:
            connection = config.attributes["connection"]
            if lock is not None:
                lock.confirm(connection)
            change(config)
            if lock is not None:
                # Alembic leaves a transaction open in which it has read only.
                connection.rollback()
                lock.confirm(connection)

    try:
        if is_shared:
            _repeated(db, lambda: _create_lock(db))
        with alone as lock:
            _repeated(db, attempt)
    except (db_exc.DBError, sa.exc.DBAPIError) as error:
        raise exception.SchemaError(
            reason=f"The database refused a change of the schema: {faults.reason(error, db.place)}."
            " Correct the cause, then run the command again: it completes what is missing."
        ) from error


def _create_lock(db: Database) -> None:
    with db.reader() as tx:
        if sa.inspect(tx.connection).has_table(schema_lock.LOCK.name):
            return
    with db.writer() as tx:
        schema_lock.METADATA.create_all(tx.connection)


def _repeated(db: Database, attempt: Callable[[], None]) -> None:
    """Repeat an attempt that a deadlock, another node or a lost connection has ended.

    Raises the error of the database after the last attempt, and every other error at once.
    """
    for pause in _PAUSES:
        try:
            attempt()
        except (db_exc.DBError, sa.exc.DBAPIError) as error:
            if not faults.is_rivalry(error):
                raise
            LOG.warning("Repeating after %g s: %s", pause, faults.reason(error, db.place))
        except (exception.Unavailable, exception.Conflict) as error:
            if not faults.is_rivalry(error.__cause__):
                raise
            LOG.warning("Repeating after %g s: %s", pause, error)
        else:
            return
        time.sleep(pause)
    attempt()


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
        config.attributes["connection"] = connection
        try:
            yield config
        except CommandError as error:
            raise exception.SchemaError(reason=str(error)) from error
        finally:
            # Close the connection permanently: the pool must not hand out a connection that has
            # foreign keys off.
            connection.invalidate()

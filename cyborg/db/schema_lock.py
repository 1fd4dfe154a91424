# SPDX-License-Identifier: Apache-2.0
"""The lock that lets one process at a time change the schema, also through several cluster nodes.

The lock is a row with an owner and a heartbeat, taken by compare-and-set. A cluster certifies the
row like every other row, so it also excludes an upgrade that is connected to another node. Locks of
the server itself do not: ``GET_LOCK`` is a lock of one node, and Percona XtraDB Cluster and some
releases of MariaDB Galera refuse it; advisory locks of PostgreSQL do not work through a connection
pooler.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self
from uuid import uuid4

import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import exception
from cyborg.db.base import MYSQL
from cyborg.db.engine import Database, retried

LOG = logging.getLogger(__name__)

#: The table is no part of the revisions: it must exist before the first of them.
METADATA: Final = sa.MetaData()
LOCK: Final = sa.Table(
    "schema_lock",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # The process that changes the schema; NULL: none.
    sa.Column("owner", sa.String(255)),
    # The last heartbeat of the owner, by the clock of the database.
    sa.Column("heartbeat_ms", sa.BigInteger, nullable=False),
    **MYSQL,
)
_ID: Final = 1


@dataclass(frozen=True)
class Rules:
    """How processes take turns; all times are in seconds.

    An owner without a heartbeat for ``stale`` has died: the next process takes its place. The
    clocks of the nodes of a cluster must not differ by more than ``stale`` less ``heartbeat``.
    ``progress`` gets a sentence when the wait begins and every ``report`` after that.
    """

    heartbeat: float = 5.0
    stale: float = 30.0
    look: float = 0.5
    report: float = 10.0
    progress: Callable[[str], None] = LOG.info


class SchemaLock:
    """A context manager that waits, without a limit, until this process owns the lock.

    A thread sends the heartbeats until the end of the block. Raises Unavailable if the database
    cannot be reached.
    """

    def __init__(self, db: Database, rules: Rules) -> None:
        self._db = db
        self._rules = rules
        # The last part distinguishes processes of containers with the same name and number.
        self._owner = f"{socket.gethostname()}, process {os.getpid()}, {uuid4().hex[:8]}"
        self._ending = threading.Event()
        self._heartbeats = threading.Thread(
            target=self._send_heartbeats, name="schema-lock", daemon=True
        )

    def __enter__(self) -> Self:
        began = reported = time.monotonic()
        is_first = True
        while (holder := self._try()) is not None:
            now = time.monotonic()
            if is_first or now - reported >= self._rules.report:
                self._rules.progress(
                    f"Waiting for another process that changes the schema ({holder or 'unknown'}), "
                    f"for {now - began:.0f} s now. If it has died, its place is taken "
                    f"{self._rules.stale:g} s after its last heartbeat."
                )
                is_first, reported = False, now
            self._ending.wait(self._rules.look)
        self._heartbeats.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ending.set()
        self._heartbeats.join()
        try:
            self._set(owner=None)
        except exception.Unavailable as error:
            LOG.warning(
                "The lock of the schema is not released, and expires in %g s: %s",
                *(self._rules.stale, error),
            )

    def confirm(self, connection: sa.Connection) -> None:
        """Raise SchemaError unless this process still owns the lock.

        It does not if it was suspended for so long that another process has taken its place. On a
        cluster the node of ``connection`` has afterwards applied all that earlier owners did.
        """
        mine = LOCK.c.owner == self._owner
        with connection.begin():
            update = sa.update(LOCK).where(mine).values(heartbeat_ms=self._db.now)
            if not connection.execute(update).rowcount:
                raise self._lost()

    def _try(self) -> str | None:
        """Take the lock if it is free; return its owner otherwise, "" if that is not known."""
        try:
            return self._take()
        except exception.Conflict:
            return ""
        except exception.Unavailable as error:
            # Another node, or a statement that runs for long, has the row.
            if not isinstance(error.__cause__, db_exc.DBDeadlock):
                raise
            return ""

    @retried
    def _take(self) -> str | None:
        now, stale_ms = self._db.now, int(self._rules.stale * 1000)
        is_stale = LOCK.c.heartbeat_ms < now - stale_ms
        mine = {"owner": self._owner, "heartbeat_ms": now}
        with self._db.writer() as tx:
            row = tx.execute(sa.select(LOCK.c.owner, LOCK.c.heartbeat_ms, is_stale)).first()
            if row is None:
                tx.execute(sa.insert(LOCK).values(id=_ID, **mine))
                return None
            owner, heartbeat_ms, is_dead = row
            if owner is not None and not is_dead:
                return str(owner)
            # The comparison also excludes an owner that has sent a heartbeat since.
            same = LOCK.c.heartbeat_ms == heartbeat_ms
            same &= LOCK.c.owner.is_(None) if owner is None else LOCK.c.owner == owner
            if not tx.execute(sa.update(LOCK).where(same).values(mine)).rowcount:
                return ""
        if owner is not None:
            self._rules.progress(
                f"The process that changed the schema ({owner}) has sent no heartbeat for "
                f"{self._rules.stale:g} s and counts as dead. This process takes its place."
            )
        return None

    @retried
    def _set(self, **values: object) -> bool:
        """Change the row; return whether this process owns it."""
        with self._db.writer() as tx:
            mine = LOCK.c.owner == self._owner
            return bool(tx.execute(sa.update(LOCK).where(mine).values(**values)).rowcount)

    def _send_heartbeats(self) -> None:
        while not self._ending.wait(self._rules.heartbeat):
            try:
                if not self._set(heartbeat_ms=self._db.now):
                    LOG.error("%s", self._lost())
                    return
            except exception.Unavailable as error:
                LOG.warning("A heartbeat of the lock of the schema failed: %s", error)

    def _lost(self) -> exception.SchemaError:
        return exception.SchemaError(
            reason=f"Another process has taken the lock of the schema, because this one sent no "
            f"heartbeat for {self._rules.stale:g} s. Run 'cyborg-dbsync upgrade' again: it waits "
            "for the other process and completes what is missing."
        )

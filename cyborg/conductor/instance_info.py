# SPDX-License-Identifier: Apache-2.0
"""Read names and states of instances from Nova in the background, and store them."""

import logging
import time
from collections.abc import Callable

from cyborg import exception
from cyborg.clients.nova import Nova, ServerInfo
from cyborg.conductor.leases import ConductorLease
from cyborg.db import instances
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried

LOG = logging.getLogger(__name__)

#: Maximum number of instances that a pass reads.
_PASS = 20
#: Milliseconds until an instance that is changing, or could not be read, is read again.
_SOON_MS = 30_000


class InstanceInfoSync:
    """Store what Nova says about instances.

    Every conductor has the job, and the one that has been up for the longest time does it. Two may
    do it at the same time: an answer is only stored while the row is unchanged since it was read.
    ``refresh`` is the age of an answer, in milliseconds, at which it is read again. ``lease_ms`` is
    the time in milliseconds after which a silent conductor is down. A pass sends no further request
    after ``time_limit`` seconds.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: ConductorLease,
        nova: Nova,
        refresh: int,
        lease_ms: int,
        time_limit: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._lease = lease
        self._nova = nova
        self._refresh = refresh
        self._soon = min(refresh, _SOON_MS)
        self._lease_ms = lease_ms
        self._time_limit = time_limit
        self._clock = clock

    def run_once(self) -> None:
        """Do one pass: read the instances that are due.

        Raises exception.Unavailable as soon as Nova does not answer. The next pass begins with
        another instance then, because Nova may fail for this instance only.
        """
        if not self._lease.comes_first(self._lease_ms):
            return
        end = self._clock() + self._time_limit
        with self._db.reader() as tx:
            due = instances.due(tx, self._db.now, _PASS)
        for row in due:
            if self._clock() > end:
                break
            try:
                info = self._nova.server_info(row.uuid)
            except exception.Unavailable:
                self._store(row, None, self._soon)
                raise
            try:
                self._store(row, info, self._soon if info and info.moving else self._refresh)
            except exception.Invalid:
                LOG.warning("Name of instance %s not stored: the database cannot hold it", row.uuid)
                self._store(row, None, self._refresh)

    @retried
    def _store(self, row: Record, info: ServerInfo | None, after_ms: int) -> None:
        """Store the info, if any, and read the instance again after ``after_ms``."""
        values = None if info is None else {"name": info.name, "status": info.status}
        with self._db.writer() as tx:
            instances.set_server_info(tx, self._db.now, row, after_ms=after_ms, answer=values)

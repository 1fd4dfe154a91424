# SPDX-License-Identifier: Apache-2.0
"""What instances are called and how they are: asked of Nova in the background, and kept."""

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

#: How many instances one pass looks up at most.
_PASS = 20
#: When an instance is looked up again that is about to change, or could not be looked up.
_SOON_MS = 30_000


class InstanceInfoSync:
    """A periodic job of every conductor; only the longest-known living one does it.

    That several would do it at once, for a moment, does no harm: what one of them keeps makes the
    answer of the other void. ``refresh`` is the age, in milliseconds, at which what is known is
    asked for again; ``lease_ms`` how long a silent conductor counts as living. After ``patience``
    seconds a pass asks nothing more, however slow Nova is.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: ConductorLease,
        nova: Nova,
        refresh: int,
        lease_ms: int,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._lease = lease
        self._nova = nova
        self._refresh = refresh
        self._soon = min(refresh, _SOON_MS)
        self._lease_ms = lease_ms
        self._patience = patience
        self._clock = clock

    def run_once(self) -> None:
        """One pass: look up those whose turn it is, one by one.

        Raises exception.Unavailable as soon as Nova does not answer. That instance has to wait
        then, so that the next pass begins with another one: it may be the only one that Nova
        cannot tell anything about.
        """
        if not self._lease.comes_first(self._lease_ms):
            return
        end = self._clock() + self._patience
        with self._db.reader() as tx:
            due = instances.due(tx, self._db.now, _PASS)
        for asked in due:
            if self._clock() > end:
                break
            self._look(asked)

    def _look(self, asked: Record) -> None:
        try:
            face = self._nova.server_info(asked.uuid)
        except exception.Unavailable:
            self._keep(asked, None, self._soon)
            raise
        try:
            self._keep(asked, face, self._soon if face and face.moving else self._refresh)
        except exception.Invalid:
            LOG.warning("The database cannot hold the name of instance %s", asked.uuid)
            self._keep(asked, None, self._refresh)

    @retried
    def _keep(self, asked: Record, face: ServerInfo | None, after_ms: int) -> None:
        said = None if face is None else {"name": face.name, "status": face.status}
        with self._db.writer() as tx:
            instances.note(tx, self._db.now, asked, after_ms=after_ms, answer=said)

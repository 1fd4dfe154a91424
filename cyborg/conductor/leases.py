# SPDX-License-Identifier: Apache-2.0
"""The lease of a conductor, and the epoch that fences reports of earlier agent processes."""

import logging

from cyborg import exception
from cyborg.db import services
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.model.names import AGENT, CONDUCTOR
from cyborg.model.report import DriverState

LOG = logging.getLogger(__name__)

#: Rows of conductors that ended under another process id go after a day.
_FORGET_MS = 24 * 3600 * 1000


def check_epoch(host: Record, service_host: str, epoch: int) -> None:
    """Refuse what an agent says that has been superseded; raises StaleEpoch, NotFound."""
    if host is None:
        raise exception.NotFound(noun="Host of agent", key=service_host)
    if host.epoch != epoch:
        raise exception.StaleEpoch(epoch=epoch, binary=AGENT, host=service_host, current=host.epoch)


class ConductorLease:
    """This conductor's own row: its work belongs to it while the row is fresh."""

    def __init__(self, *, db: Database, process: Process) -> None:
        self._db = db
        self._process = process
        self._owner: tuple[int, int] | None = None

    @property
    def owner(self) -> tuple[int, int] | None:
        """(services id, epoch); None before the first renewal succeeded."""
        return self._owner

    def comes_first(self, lease_ms: int) -> bool:
        """Whether this conductor was there before all others that live now.

        It is the one that does what only one should; that two think so for a moment must do no
        harm. ``lease_ms`` is how long a silent conductor counts as living.
        """
        if self._owner is None:
            return False
        with self._db.reader() as tx:
            return services.first(tx, self._db.now, CONDUCTOR, lease_ms) == self._owner[0]

    @retried
    def renew(self, bus_error: str = "") -> None:
        """Write the heartbeat; begin a new epoch when the old one is over.

        ``bus_error`` says why this conductor receives no requests; it is empty while it does.
        """
        with self._db.writer() as tx:
            if self._owner is not None and services.heartbeat(
                tx,
                self._db.now,
                self._process,
                epoch=self._owner[1],
                status=DriverState.READY.value,
                bus_error=bus_error,
            ):
                return
            owner = services.register(
                tx, self._db.now, self._process, DriverState.READY.value, bus_error=bus_error
            )
            services.remove_silent(tx, self._db.now, self._process, silent_ms=_FORGET_MS)
        self._owner = owner

    def end(self) -> None:
        """Delete the row of this conductor, which ends as it was told to.

        Only a conductor that failed then shows as down. Other conductors may take work that is
        still this one's at once. While the database is away the row stays; it is deleted a day
        after another conductor has started on this host.
        """
        if self._owner is None:
            return
        try:
            with self._db.writer() as tx:
                services.end(tx, self._process, epoch=self._owner[1])
        except exception.CyborgError as error:
            LOG.warning(
                "%s on %s could not delete its row at its end and will show as down: %s",
                *(CONDUCTOR, self._process.host, error),
            )
        self._owner = None

# SPDX-License-Identifier: Apache-2.0
"""The lease of a conductor, and the epoch that fences reports of earlier agent processes."""

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from cyborg import exception
from cyborg.db import services
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.report import DriverState

LOG = logging.getLogger(__name__)

#: Rows of earlier conductor processes on this host are removed after a day of silence.
_REMOVE_AFTER_MS = 24 * 3600 * 1000


class HasEpoch(Protocol):
    """A row with the current epoch of the agent of a host; None: the agent has no row."""

    @property
    def epoch(self) -> int | None: ...


H = TypeVar("H", bound=HasEpoch)


def check_epoch(row: H | None, service_host: str, epoch: int) -> H:
    """Return the row of the host of an agent, None when there is none, if its epoch is this one.

    Raises StaleEpoch for an agent process that has been superseded, and NotFound.
    """
    if row is None:
        raise exception.NotFound(noun="Host of agent", key=service_host)
    if row.epoch != epoch:
        raise exception.StaleEpoch(epoch=epoch, binary=AGENT, host=service_host, current=row.epoch)
    return row


class ConductorLease:
    """The row of this conductor; the conductor owns its work while the heartbeat is recent."""

    def __init__(self, *, db: Database, process: Process) -> None:
        self._db = db
        self._process = process
        #: (services id, epoch); None before the first renewal succeeded.
        self.owner: tuple[int, int] | None = None

    def is_oldest(self, lease_ms: int) -> bool:
        """Return whether this conductor has existed longest of all that are alive now.

        It runs the jobs that only one conductor should run. For a moment, two conductors may both
        get True, so such a job must tolerate that. A conductor counts as alive for ``lease_ms``
        milliseconds after its last heartbeat.
        """
        if self.owner is None:
            return False
        with self._db.reader() as tx:
            return services.first_alive(tx, CONDUCTOR, lease_ms) == self.owner[0]

    @retried
    def renew(self, bus_error: str = "") -> None:
        """Write the heartbeat; begin a new epoch when the old one is over.

        ``bus_error`` says why this conductor receives no requests; it is empty while it does.
        """
        with self._db.writer() as tx:
            if self.owner is not None and services.heartbeat(
                tx,
                self._process,
                epoch=self.owner[1],
                status=DriverState.READY.value,
                bus_error=bus_error,
            ):
                return
            owner = services.register(
                tx, self._process, DriverState.READY.value, bus_error=bus_error
            )
            services.remove_silent(tx, self._process, silent_ms=_REMOVE_AFTER_MS)
        self.owner = owner

    def end(self) -> None:
        """Remove the row of this conductor, which stops in an orderly way.

        Without its row it does not show as down, and other conductors may take over its work at
        once. When the database is not available the row stays; it is removed a day after another
        conductor has started on this host.
        """
        if self.owner is None:
            return
        try:
            with self._db.writer() as tx:
                services.deregister(tx, self._process, epoch=self.owner[1])
        except exception.CyborgError as error:
            LOG.warning(
                "%s on host %s could not remove its row when it stopped, and will show as down: %s",
                *(CONDUCTOR, self._process.host, error),
            )
        self.owner = None


def oldest_only(
    lease: ConductorLease,
    lease_ms: int,
    job: Callable[[], object],
    otherwise: Callable[[], object] = lambda: None,
) -> Callable[[], None]:
    """Return a periodic job of every conductor that only the oldest living one carries out.

    For a moment two conductors may carry it out, see ``ConductorLease.is_oldest``. ``otherwise`` is
    what the others do instead: a job forgets what it remembers, which is too old for its next turn.
    """

    def run_once() -> None:
        if lease.is_oldest(lease_ms):
            job()
        else:
            otherwise()

    return run_once

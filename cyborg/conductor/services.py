# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: of agents (hello), of APIs, and the lease of each conductor."""

import contextlib
import logging

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.equipment import introduce
from cyborg.db import hosts, images, services
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.model.names import AGENT, API, CONDUCTOR
from cyborg.model.report import DriverState, Hello, Welcome

LOG = logging.getLogger(__name__)

#: Rows of conductors that ended under another process id go after a day.
_FORGET_MS = 24 * 3600 * 1000


class Greeter:
    """Takes the heartbeats of agents and APIs.

    ``down_after`` is how long, in milliseconds, an epoch may be silent before another process
    that claims the same host may take it over.
    """

    def __init__(self, *, db: Database, down_after: int) -> None:
        self._db = db
        self._down_after = down_after

    def hello(self, hello: Hello) -> Welcome:
        """Renew the agent's lease, or begin its first epoch; raises StaleEpoch.

        An unchanged host costs two statements.
        """
        if not hello.provider_names:
            raise exception.Invalid(field="provider_names", reason="at least one is needed")
        if hello.endpoint.rpartition("@")[2] != hello.host:
            raise exception.Forbidden(
                reason=f"{hello.endpoint} cannot speak for host {hello.host}, only for its own."
            )
        process = Process(hello.host, AGENT, hello.version, hello.endpoint)
        return self._hello(hello, process)

    def api_alive(self, host: str, version: str, endpoint: str) -> None:
        """Note that the API is served on this host; one statement while its row is there."""
        # Of workers that start together one makes the row; it serves for all.
        with contextlib.suppress(exception.Conflict):
            self._api_alive(Process(host, API, version, endpoint))

    @retried
    def _api_alive(self, process: Process) -> None:
        with self._db.writer() as tx:
            if not services.renew(tx, self._db.now, process):
                services.register(tx, self._db.now, process, DriverState.READY.value)

    @retried
    def _hello(self, hello: Hello, process: Process) -> Welcome:
        with self._db.writer() as tx:
            epoch = self._epoch(tx, hello, process)
            host = hosts.of_agent(tx, hello.host)
            if host is None:
                hosts.adopt(tx, self._db.now, hello.host, hello.provider_names)
                host = hosts.of_agent(tx, hello.host)
            elif len(hello.provider_names) == 1 and host.name != hello.provider_names[0]:
                LOG.info("Host %s is now %s in Placement", host.name, hello.provider_names[0])
                hosts.rename(tx, self._db.now, host.id, hello.provider_names[0])
                host = hosts.of_agent(tx, hello.host)
            if hello.epoch is None and host.digest is not None:
                # Of a host that is news, the report that follows tells all.
                introduce(tx, host.id, hello.drivers)
                images.forget_unused(tx, host.id)
        return Welcome(epoch, host.digest, host.desired_generation)

    def _epoch(self, tx: sa.Connection, hello: Hello, process: Process) -> int:
        if hello.epoch is None:
            return self._register(tx, hello, process)
        if services.beat(
            tx,
            self._db.now,
            process,
            epoch=hello.epoch,
            status=hello.status.value,
            status_reason=hello.failure,
            bus_error=hello.bus_error,
        ):
            return hello.epoch
        row = services.current(tx, self._db.now, process)
        if row is None or row.silent_ms > self._down_after:
            return self._register(tx, hello, process)
        raise exception.StaleEpoch(
            epoch=hello.epoch, binary=AGENT, host=hello.host, current=row.epoch
        )

    def _register(self, tx: sa.Connection, hello: Hello, process: Process) -> int:
        """Begin a new epoch of the agent; answers the epoch."""
        return services.register(
            tx,
            self._db.now,
            process,
            hello.status.value,
            status_reason=hello.failure,
            bus_error=hello.bus_error,
        )[1]


def check_epoch(host: Record, service_host: str, epoch: int) -> None:
    """Refuse what an agent says that has been superseded; raises StaleEpoch, NotFound."""
    if host is None:
        raise exception.NotFound(noun="Host of agent", key=service_host)
    if host.epoch != epoch:
        raise exception.StaleEpoch(epoch=epoch, binary=AGENT, host=service_host, current=host.epoch)


class Lease:
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
            if self._owner is not None and services.beat(
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
            services.forget_silent(tx, self._db.now, self._process, silent_ms=_FORGET_MS)
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

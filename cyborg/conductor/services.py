# SPDX-License-Identifier: Apache-2.0
"""Signs of life: agents say hello, APIs that they serve, conductors keep their own lease."""

import contextlib
import logging

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.equipment import introduce
from cyborg.db import hosts, services
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.model.names import AGENT, API, CONDUCTOR
from cyborg.model.report import DriverState, Hello, Welcome

LOG = logging.getLogger(__name__)

#: Rows of conductors that ended under another process id go after a day.
_FORGET_MS = 24 * 3600 * 1000


class Greeter:
    """Takes agents' hellos and the APIs' signs of life.

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
        return Welcome(epoch, host.digest, host.desired_generation)

    def _epoch(self, tx: sa.Connection, hello: Hello, process: Process) -> int:
        if hello.epoch is None:
            return services.register(tx, self._db.now, process, hello.status.value)[1]
        if services.beat(tx, self._db.now, process, epoch=hello.epoch, status=hello.status.value):
            return hello.epoch
        row = services.current(tx, self._db.now, process)
        if row is None or row.silent_ms > self._down_after:
            return services.register(tx, self._db.now, process, hello.status.value)[1]
        raise exception.StaleEpoch(
            epoch=hello.epoch, binary=AGENT, host=hello.host, current=row.epoch
        )


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
    def renew(self) -> None:
        """Write the sign of life; begins a new epoch when the old one is over."""
        with self._db.writer() as tx:
            if self._owner is not None and services.beat(
                tx,
                self._db.now,
                self._process,
                epoch=self._owner[1],
                status=DriverState.READY.value,
            ):
                return
            owner = services.register(tx, self._db.now, self._process, DriverState.READY.value)
            services.forget_silent(tx, self._db.now, self._process, silent_ms=_FORGET_MS)
        self._owner = owner

# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: agents say hello, conductors keep their own lease."""

import logging

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import hosts, services
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.model.names import AGENT
from cyborg.model.report import DriverState, Hello, Welcome

LOG = logging.getLogger(__name__)

#: Rows of conductors that ended under another process id go after a day.
_FORGET_MS = 24 * 3600 * 1000


class Greeter:
    """Takes agents' hellos.

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
        process = Process(hello.host, AGENT, hello.version, hello.endpoint)
        return self._hello(hello, process)

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

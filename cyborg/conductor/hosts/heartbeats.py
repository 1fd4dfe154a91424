# SPDX-License-Identifier: Apache-2.0
"""Store the heartbeats of agents (hello) and of APIs."""

import contextlib
import logging

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.reports.driver_inventory import register_drivers
from cyborg.db import deployables, hosts, services
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.model.process import AGENT, API
from cyborg.model.report import DriverState, Hello, Welcome

LOG = logging.getLogger(__name__)


class Heartbeats:
    """Stores the heartbeats of agents and APIs.

    When an epoch has been silent for ``down_after`` milliseconds, another process that claims the
    same host may take the host over.
    """

    def __init__(self, *, db: Database, down_after: int) -> None:
        self._db = db
        self._down_after = down_after

    @retried
    def hello(self, hello: Hello) -> Welcome:
        """Renew the agent's lease, or begin its first epoch; raises StaleEpoch.

        An unchanged host costs two SQL statements.
        """
        if not hello.provider_names:
            raise exception.Invalid(field="provider_names", reason="at least one is needed")
        if hello.endpoint.rpartition("@")[2] != hello.host:
            raise exception.Forbidden(
                reason=f"{hello.endpoint} cannot speak for host {hello.host}, only for its own."
            )
        with self._db.writer() as tx:
            epoch = self._epoch(tx, hello)
            host = hosts.of_agent(tx, hello.host)
            if host is None:
                hosts.assign_agent(tx, self._db.now, hello.host, hello.provider_names)
                host = hosts.of_agent(tx, hello.host)
            elif len(hello.provider_names) == 1 and host.name != hello.provider_names[0]:
                LOG.info(
                    "Host %s is renamed to %s, its provider's name in Placement",
                    *(host.name, hello.provider_names[0]),
                )
                hosts.rename(tx, self._db.now, host.id, hello.provider_names[0])
                host = hosts.of_agent(tx, hello.host)
            if hello.epoch is None and host.digest is not None:
                # A new host needs none of this: its first report follows.
                register_drivers(tx, host.id, hello.drivers)
                deployables.clear_unused_images(tx, host.id)
        return Welcome(epoch, host.digest, host.desired_generation)

    def _epoch(self, tx: sa.Connection, hello: Hello) -> int:
        """Return the epoch of the agent's process, a new one if it has none that is current."""
        process = Process(hello.host, AGENT, hello.version, hello.endpoint)
        if hello.epoch is not None:
            if services.heartbeat(
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
            if row is not None and row.silent_ms <= self._down_after:
                raise exception.StaleEpoch(
                    epoch=hello.epoch, binary=AGENT, host=hello.host, current=row.epoch
                )
        return services.register(
            tx,
            self._db.now,
            process,
            hello.status.value,
            status_reason=hello.failure,
            bus_error=hello.bus_error,
        )[1]

    @retried
    def api_alive(self, host: str, version: str, endpoint: str) -> None:
        """Store that the API is served on this host; one SQL statement while its row exists."""
        process = Process(host, API, version, endpoint)
        # When several workers start together, one of them inserts the row for all.
        with contextlib.suppress(exception.Conflict), self._db.writer() as tx:
            if not services.renew(tx, self._db.now, process):
                services.register(tx, self._db.now, process, DriverState.READY.value)

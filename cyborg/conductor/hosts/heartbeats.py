# SPDX-License-Identifier: Apache-2.0
"""Store the heartbeats of agents and of APIs."""

import contextlib
import logging

from cyborg import exception
from cyborg.conductor.reports.driver_inventory import register_drivers
from cyborg.db import deployables, hosts, services
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.device import flaw_of_text
from cyborg.model.process import AGENT, API
from cyborg.model.report import AgentHeartbeat, DriverState, HeartbeatReply, cut

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
    def heartbeat(self, heartbeat: AgentHeartbeat) -> HeartbeatReply:
        """Renew the agent's lease, or begin its first epoch; raises StaleEpoch, Invalid.

        An unchanged host costs two SQL statements.
        """
        if not heartbeat.provider_names:
            raise exception.Invalid(field="provider_names", reason="at least one is needed")
        if heartbeat.endpoint.rpartition("@")[2] != heartbeat.host:
            raise exception.Forbidden(
                reason=f"{heartbeat.endpoint} cannot speak for host {heartbeat.host}, "
                "only for its own."
            )
        flaw = heartbeat.validate()
        if flaw is not None:
            raise exception.Invalid(field="heartbeat", reason=flaw)
        with self._db.writer() as tx:
            epoch = self._epoch(tx, heartbeat)
            host = hosts.of_agent(tx, heartbeat.host)
            if host is None:
                host = hosts.assign_agent(tx, heartbeat.host, heartbeat.provider_names)
            elif len(heartbeat.provider_names) == 1 and host.name != heartbeat.provider_names[0]:
                LOG.info(
                    "Host %s is renamed to %s, its provider's name in Placement",
                    *(host.name, heartbeat.provider_names[0]),
                )
                host = hosts.rename(tx, heartbeat.host, host.id, heartbeat.provider_names[0])
            if heartbeat.epoch is None and host.digest is not None:
                # A new host needs none of this: its first report follows.
                register_drivers(tx, host.id, heartbeat.drivers)
                deployables.clear_unused_images(tx, host.id)
        return HeartbeatReply(epoch, host.digest, host.desired_generation)

    def _epoch(self, tx: Transaction, heartbeat: AgentHeartbeat) -> int:
        """Return the epoch of the agent's process, a new one if it has none that is current."""
        process = Process(heartbeat.host, AGENT, heartbeat.version, heartbeat.endpoint)
        if heartbeat.epoch is not None:
            if services.heartbeat(
                tx,
                process,
                epoch=heartbeat.epoch,
                status=heartbeat.status.value,
                status_reason=cut(heartbeat.failure),
                bus_error=cut(heartbeat.bus_error),
            ):
                return heartbeat.epoch
            row = services.current(tx, process)
            if row is not None and row.silent_ms <= self._down_after:
                raise exception.StaleEpoch(
                    epoch=heartbeat.epoch, binary=AGENT, host=heartbeat.host, current=row.epoch
                )
        return services.register(
            tx,
            process,
            heartbeat.status.value,
            status_reason=cut(heartbeat.failure),
            bus_error=cut(heartbeat.bus_error),
        )[1]

    @retried
    def api_heartbeat(self, host: str, version: str, endpoint: str) -> None:
        """Store that the API is served on this host; one SQL statement while its row exists.

        Raises Invalid for a text that the database cannot hold.
        """
        for field, text in (("host", host), ("version", version), ("endpoint", endpoint)):
            flaw = flaw_of_text("it", text, 255) if text else None
            if flaw is not None:
                raise exception.Invalid(field=field, reason=flaw)
        process = Process(host, API, version, endpoint)
        # When several workers start together, one of them inserts the row for all.
        with contextlib.suppress(exception.Conflict), self._db.writer() as tx:
            if not services.renew(tx, process):
                services.register(tx, process, DriverState.READY.value)

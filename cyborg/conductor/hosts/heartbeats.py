# SPDX-License-Identifier: Apache-2.0
"""Store the heartbeats of agents and of APIs."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from cyborg import exception
from cyborg.conductor.reports import suspicion
from cyborg.conductor.reports.driver_inventory import register_drivers
from cyborg.db import deployables, dirty_units, events, guests, hosts, services
from cyborg.db.engine import Database, retried
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.device import flaw_of_text
from cyborg.model.process import AGENT, API
from cyborg.model.provider import ANY_NAMES, HostNames
from cyborg.model.report import AgentHeartbeat, DriverState, HeartbeatReply, cut
from cyborg.model.text import escaped_line

LOG = logging.getLogger(__name__)

_OLDER = "the database does not have the last event that the host has seen"
#: How often the clock error of one sender is stored, in seconds, and of how many this is known.
_CLOCK_PAUSE: Final = 5.0
_MOST_NOTED: Final = 10_000


class Heartbeats:
    """Stores the heartbeats of agents and APIs.

    When an epoch has been silent for ``down_after`` milliseconds, another process that claims the
    same host may take the host over. ``names`` says which providers an agent may name.
    """

    def __init__(
        self,
        *,
        db: Database,
        down_after: int,
        names: HostNames = ANY_NAMES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._down_after = down_after
        self._names = names
        self._clock = clock
        self._lock = threading.Lock()
        #: When the clock error of a sender was stored last.
        self._noted: dict[str, float] = {}

    @retried
    def heartbeat(self, heartbeat: AgentHeartbeat) -> HeartbeatReply:
        """Renew the agent's lease, or begin its first epoch; raises StaleEpoch, Invalid.

        Raises Forbidden for an agent that speaks for another host, or for its provider. A database
        that is older than what the agent has seen does not know the last guests: the units of the
        host are held until an audit has looked. An unchanged host costs three SQL statements.
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
            is_new = False
            if host is None:
                host, existed = hosts.assign_agent(tx, heartbeat.host, self._own_names(heartbeat))
                is_new = not existed
                if existed:
                    services.record(tx, heartbeat.host, "host taken over", host.name)
            elif len(heartbeat.provider_names) == 1 and host.name != heartbeat.provider_names[0]:
                (name,) = self._own_names(heartbeat)
                LOG.info(
                    "Host %s is renamed to %s, its provider's name in Placement", host.name, name
                )
                services.record(
                    tx, heartbeat.host, "host renamed", name, reason=f"from {host.name} to {name}"
                )
                dirty_units.rename_host(tx, host.id, name)
                host = hosts.rename(tx, heartbeat.host, host.id, name)
            if heartbeat.epoch is None and host.digest is not None:
                # A new host needs none of this: its first report follows.
                register_drivers(tx, host.id, heartbeat.drivers)
                deployables.clear_unused_images(tx, host.id)
                guests.forget(tx, host.id)
            last = events.last_of_host(tx, host.name, heartbeat.history)
            is_unchecked = (
                bool(heartbeat.history)
                and not last.stored
                and (last.has_older or is_new)
                and not events.is_checked(tx, host.name, heartbeat.history)
            )
            if is_unchecked:
                suspicion.hold(tx, host.id)
                services.record(tx, heartbeat.host, events.UNCHECKED, host.name, reason=_OLDER)
        if is_unchecked:
            LOG.warning(
                "Binds on host %s are refused, and its units are not cleaned: %s. Run cyborg-audit "
                "--after-restore",
                *(host.name, _OLDER),
            )
        return HeartbeatReply(epoch, host.digest, host.desired_generation + is_unchecked, last.name)

    def wrong_clock(self, sender: str, cause: str) -> None:
        """Show that the messages of a process are refused because of a clock.

        ``sender`` is the process as ``program@host``, and ``cause`` a clause that tells the
        difference. A process that never sent a heartbeat is not shown. Raises nothing.
        """
        binary, _, host = sender.partition("@")
        now = self._clock()
        with self._lock:
            if now - self._noted.get(sender, -_CLOCK_PAUSE) < _CLOCK_PAUSE:
                return
            if len(self._noted) >= _MOST_NOTED:
                self._noted.clear()
            self._noted[sender] = now
        try:
            self._store_clock_error(Process(host, binary, "", sender), cause)
        except exception.CyborgError as error:
            LOG.warning("The clock of %s could not be shown: %s", escaped_line(sender), error)

    @retried
    def _store_clock_error(self, process: Process, cause: str) -> None:
        with self._db.writer() as tx:
            services.set_clock_error(tx, process, cut(cause))

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
                publish_error=cut(heartbeat.publish_error),
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
            publish_error=cut(heartbeat.publish_error),
        )[1]

    def _own_names(self, heartbeat: AgentHeartbeat) -> list[str]:
        """Return the provider names that the agent may use; raises Forbidden for none."""
        host, names = heartbeat.host, heartbeat.provider_names
        own = [name for name in names if self._names.has_provider(host, name)]
        if not own:
            raise exception.Forbidden(
                reason=f"Host {host} cannot speak for the provider {names[0]}, only for {host} "
                f"with or without a domain. To allow it, set [conductor] provider_names = "
                f"{host}:{names[0]}."
            )
        return own

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

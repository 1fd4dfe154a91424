# SPDX-License-Identifier: Apache-2.0
"""Store the heartbeats of agents and of APIs."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.reports import suspicion
from cyborg.conductor.reports.driver_inventory import register_drivers
from cyborg.db import deployables, dirty_units, events, guests, hosts, services
from cyborg.db.engine import retried
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.device import flaw_of_text
from cyborg.model.process import AGENT, API
from cyborg.model.report import AgentHeartbeat, DriverState, HeartbeatReply, cut
from cyborg.rpc.verbs import ApiHeartbeat, Heartbeat
from cyborg_cli.text import escaped_line

LOG = logging.getLogger(__name__)

_OLDER = "the database does not have the last event that the host has seen"
#: How often the clock error of one sender is stored, in seconds, and of how many this is known.
_CLOCK_PAUSE: Final = 5.0
_MOST_NOTED: Final = 10_000


@handles(Heartbeat)
@retried
def heartbeat(ctx: Conductor, c: Heartbeat) -> HeartbeatReply:
    """Renew the agent's lease, or begin its first epoch; raises StaleEpoch, Invalid.

    When an epoch has been silent for as long as an agent that is down, another process that claims
    the same host may take the host over.

    Raises Forbidden for an agent that speaks for another host, or for its provider. A database
    that is older than what the agent has seen does not know the last guests: the units of the
    host are held until an audit has looked. An unchanged host costs three SQL statements.
    """
    heartbeat = c.heartbeat
    if not heartbeat.provider_names:
        raise exception.Invalid(field="provider_names", reason="at least one is needed")
    if heartbeat.endpoint.rpartition("@")[2] != heartbeat.host:
        raise exception.Forbidden(
            reason=f"{heartbeat.endpoint} cannot speak for host {heartbeat.host}, only for its own."
        )
    flaw = heartbeat.validate()
    if flaw is not None:
        raise exception.Invalid(field="heartbeat", reason=flaw)
    with ctx.db.writer() as tx:
        epoch = _epoch(ctx, tx, heartbeat)
        host = hosts.of_agent(tx, heartbeat.host)
        is_new = False
        if host is None:
            host, existed = hosts.assign_agent(tx, heartbeat.host, _own_names(ctx, heartbeat))
            is_new = not existed
            if existed:
                services.record(tx, heartbeat.host, "host taken over", host.name)
        elif len(heartbeat.provider_names) == 1 and host.name != heartbeat.provider_names[0]:
            (name,) = _own_names(ctx, heartbeat)
            LOG.info("Host %s is renamed to %s, its provider's name in Placement", host.name, name)
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
            host = hosts.of_agent(tx, heartbeat.host) or host
    if is_unchecked:
        LOG.warning(
            "Binds on host %s are refused, and its units are not cleaned: %s. Run cyborg-audit "
            "--after-restore",
            *(host.name, _OLDER),
        )
    return HeartbeatReply(epoch, host.digest, host.desired_generation, last.name)


class ClockErrors:
    """When the clock error of each sender was stored last; ``clock`` as ``time.monotonic``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stored: dict[str, float] = {}

    def is_due(self, sender: str) -> bool:
        """Return whether an error of the sender is stored now: not if one was just stored."""
        now = self._clock()
        with self._lock:
            if now - self._stored.get(sender, -_CLOCK_PAUSE) < _CLOCK_PAUSE:
                return False
            if len(self._stored) >= _MOST_NOTED:
                self._stored.clear()
            self._stored[sender] = now
            return True


def wrong_clock(ctx: Conductor, errors: ClockErrors, sender: str, cause: str) -> None:
    """Show that the messages of a process are refused because of a clock.

    ``sender`` is the process as ``program@host``, and ``cause`` a clause that tells the
    difference. A process that never sent a heartbeat is not shown. Raises nothing.
    """
    if not errors.is_due(sender):
        return
    binary, _, host = sender.partition("@")
    try:
        _store_clock_error(ctx, Process(host, binary, "", sender), cause)
    except exception.CyborgError as error:
        LOG.warning("The clock of %s could not be shown: %s", escaped_line(sender), error)


@retried
def _store_clock_error(ctx: Conductor, process: Process, cause: str) -> None:
    with ctx.db.writer() as tx:
        services.set_clock_error(tx, process, cut(cause))


def _epoch(ctx: Conductor, tx: Transaction, heartbeat: AgentHeartbeat) -> int:
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
        if row is not None and row.silent_ms <= ctx.settings.agent_down_ms:
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


def _own_names(ctx: Conductor, heartbeat: AgentHeartbeat) -> list[str]:
    """Return the provider names that the agent may use; raises Forbidden for none."""
    host, names = heartbeat.host, heartbeat.provider_names
    own = [name for name in names if ctx.settings.host_names.has_provider(host, name)]
    if not own:
        raise exception.Forbidden(
            reason=f"Host {host} cannot speak for the provider {names[0]}, only for {host} "
            f"with or without a domain. To allow it, set [conductor] provider_names = "
            f"{host}:{names[0]}."
        )
    return own


@handles(ApiHeartbeat)
@retried
def api_heartbeat(ctx: Conductor, c: ApiHeartbeat) -> None:
    """Store that the API is served on this host; one SQL statement while its row exists.

    Raises Invalid for a text that the database cannot hold.
    """
    for field, text in (("host", c.host), ("version", c.version), ("endpoint", c.endpoint)):
        flaw = flaw_of_text("it", text, 255) if text else None
        if flaw is not None:
            raise exception.Invalid(field=field, reason=flaw)
    process = Process(c.host, API, c.version, c.endpoint)
    # When several workers start together, one of them inserts the row for all.
    with contextlib.suppress(exception.Conflict), ctx.db.writer() as tx:
        if not services.renew(tx, process):
            services.register(tx, process, DriverState.READY.value)

# SPDX-License-Identifier: Apache-2.0
"""Servers that run without an accelerator that is bound to them: find, report and reboot them.

After a reboot of its host, nova-compute starts the guests again if
``resume_guests_state_on_host_boot`` is set, and leaves their PCI accelerators out: it asks Cyborg
for none. Only a hard reboot through Nova's API adds them.
"""

import itertools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cyborg import exception
from cyborg.clients.nova import Nova
from cyborg.conductor.context import Conductor
from cyborg.conf.conductor import REBOOT
from cyborg.db import events, guests, instances
from cyborg.db.engine import Database, Reader, retried
from cyborg.db.guests import UnattachedBind
from cyborg.model import notification
from cyborg.model.audit_findings import Ages, Finding, Kind

LOG = logging.getLogger(__name__)

#: Nova's status of a server whose guest runs and has all that it was started with. A guest in
#: rescue mode has no accelerators.
_RUNNING = "ACTIVE"


@dataclass(frozen=True)
class UnattachedServer:
    """A server that runs without some of its accelerators."""

    uuid: str
    binds: Sequence[UnattachedBind]

    @property
    def hostname(self) -> str:
        return self.binds[0].hostname

    @property
    def boot_id(self) -> str | None:
        return self.binds[0].boot_id

    @property
    def cause(self) -> str:
        """Return what was seen, as a sentence."""
        units = ", ".join(f"{bind.handle} of {bind.deployable}" for bind in self.binds)
        return f"It runs on {self.hostname} without its unit(s) {units}."

    @property
    def is_reported(self) -> bool:
        """Return whether it was reported since the host has booted."""
        return self.binds[0].reported is not None and self.binds[0].reported == self.boot_id

    @property
    def may_be_rebooted(self) -> bool:
        """Return whether it was not rebooted since the host has booted, which must be known."""
        return self.boot_id is not None and self.binds[0].repaired != self.boot_id


def find(db: Reader, ages: Ages, only: Collection[str] | None = None) -> list[UnattachedServer]:
    """Return what the rows show, all servers or those of ``only``; Nova must confirm it."""
    with db.reader() as tx:
        rows = guests.unattached(
            tx, settle=ages.settle, agent_silence=ages.agent_silence, instances=only
        )
    by_instance = itertools.groupby(rows, key=lambda row: row.instance)
    return [UnattachedServer(uuid, tuple(binds)) for uuid, binds in by_instance if uuid]


def confirmed(nova: Nova, servers: Sequence[UnattachedServer]) -> list[UnattachedServer]:
    """Return the servers that Nova shows as running on this host, and with which it does nothing.

    Raises exception.Unavailable.
    """
    shown = ((server, nova.server(server.uuid)) for server in servers)
    return [
        server
        for server, view in shown
        if view is not None
        and view.settled
        and view.status == _RUNNING
        and view.node == server.hostname
    ]


def finding(server: UnattachedServer) -> Finding:
    """Return the finding for a server."""
    return Finding(Kind.UNATTACHED_BIND, "instance", server.uuid, server.cause, server.hostname)


def report(ctx: Conductor) -> None:
    """Report each server once for each boot of its host, and reboot it if that is configured.

    Raises exception.Unavailable.
    """
    ages, reboots = ctx.settings.ages, ctx.settings.conductor.repair_unattached == REBOOT
    pending = [
        server
        for server in find(ctx.db, ages)
        if server.boot_id is not None
        and (not server.is_reported or (reboots and server.may_be_rebooted))
    ]
    for server in confirmed(ctx.nova, pending):
        handle(ctx.db, ctx.nova, ages, server.uuid, reboots=reboots)


def handle(db: Database, nova: Nova, ages: Ages, uuid: str, *, reboots: bool) -> bool:
    """Report a server, and reboot it at most once for each boot of its host.

    Return False, and do nothing, if the server has its accelerators by now, or was handled. That it
    is rebooted is stored before Nova is asked, so a conductor that dies in between does not reboot
    it a second time. Raises exception.Unavailable if Nova does not answer to the reboot.
    """
    server = _note(db, ages, uuid, reboots=reboots)
    if server is None:
        return False
    LOG.warning("Instance %s: %s", uuid, server.cause)
    if not reboots or not server.may_be_rebooted:
        return True
    if not nova.reboot(uuid):
        raise exception.Unavailable(peer="Nova", reason=f"it does not reboot server {uuid} now")
    LOG.info("Instance %s on host %s is rebooted hard: %s", uuid, server.hostname, server.cause)
    return True


@retried
def _note(db: Database, ages: Ages, uuid: str, *, reboots: bool) -> UnattachedServer | None:
    with db.writer() as tx:
        if uuid not in instances.lock(tx, [uuid]):
            return None
        rows = guests.unattached(
            tx, settle=ages.settle, agent_silence=ages.agent_silence, instances=[uuid]
        )
        if not rows or rows[0].boot_id is None:
            return None
        server = UnattachedServer(uuid, tuple(rows))
        repaired = reboots and server.may_be_rebooted
        if server.is_reported and not repaired:
            return None
        guests.note(tx, uuid, boot_id=rows[0].boot_id, repaired=repaired)
        action = notification.REBOOTED if repaired else notification.UNATTACHED
        entry = events.Entry(
            *("instance", uuid, action),
            hostname=server.hostname,
            reason=server.cause,
            device_uuid=server.binds[0].device_uuid,
        )
        events.record(tx, [entry])
    return server

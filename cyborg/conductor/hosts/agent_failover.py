# SPDX-License-Identifier: Apache-2.0
"""Reserve the units of a silent agent's devices that the agent must prepare before use."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from cyborg.conductor.context import Conductor
from cyborg.db import deployables, hosts
from cyborg.db.engine import retried

LOG = logging.getLogger(__name__)


@dataclass
class _Absence:
    """A host whose agent is silent, the time of its last heartbeat, and providers by uuid."""

    name: str
    last_seen_ms: int
    providers: list[str]


class Absences:
    """What a conductor remembers of the absences of agents: their last heartbeats by host id."""

    def __init__(self) -> None:
        #: The hosts whose agent was silent in the last pass.
        self.silent: dict[int, int] = {}
        #: The hosts whose units are reserved.
        self.reserved: dict[int, int] = {}

    def forget(self) -> None:
        """Forget all absences."""
        self.silent, self.reserved = {}, {}


def reserve_absent(ctx: Conductor, absences: Absences) -> None:
    """Reserve the units of hosts without an agent, once for each absence.

    Devices that need no preparation can be bound without an agent: their units stay available. An
    agent must have been silent in the pass before as well: when the database or all conductors come
    back after an outage, every agent seems silent until its next heartbeat.
    Raises exception.Unavailable while Placement does not answer; the next pass tries again.
    """
    absent: dict[int, _Absence] = {}
    with ctx.db.reader() as tx:
        for row in hosts.silent_providers(tx, ctx.settings.agent_grace_ms):
            absence = absent.setdefault(row.id, _Absence(row.name, row.last_seen_ms, []))
            absence.providers.append(row.rp_uuid)
    silent_before = absences.silent
    absences.silent = {host_id: absence.last_seen_ms for host_id, absence in absent.items()}
    absences.reserved = {
        host_id: last_seen_ms
        for host_id, last_seen_ms in absences.reserved.items()
        if absences.silent.get(host_id) == last_seen_ms
    }
    for host_id, absence in absent.items():
        last_seen_ms = absence.last_seen_ms
        if host_id not in absences.reserved and silent_before.get(host_id) == last_seen_ms:
            _reserve(ctx, host_id, absence)
            absences.reserved[host_id] = last_seen_ms


def _reserve(ctx: Conductor, host_id: int, absence: _Absence) -> None:
    changed: list[str] | None = None
    try:
        changed = ctx.publisher().reserve(absence.providers)
    finally:
        if changed is None or changed:
            # An agent that has come back in the meantime may have compared all of Placement
            # before this was written: with its next heartbeat it must compare it again.
            _store_reserved(ctx, host_id, changed or ())
    if changed:
        LOG.warning(
            "Agent of host %s has been silent for more than %d s: all units of %d provider(s) "
            "that need its preparation are reserved in Placement",
            *(absence.name, ctx.settings.conductor.agent_grace, len(changed)),
        )


@retried
def _store_reserved(ctx: Conductor, host_id: int, providers: Collection[str]) -> None:
    with ctx.db.writer() as tx:
        tx.publish(host_id)
        deployables.note_reserved(tx, providers)

# SPDX-License-Identifier: Apache-2.0
"""Reserve the units of a silent agent's devices that the agent must prepare before use."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.leases import ConductorLease
from cyborg.db import deployables, hosts
from cyborg.db.engine import Database, retried

LOG = logging.getLogger(__name__)


@dataclass
class _Absence:
    """A host whose agent is silent, the time of its last heartbeat, and providers by uuid."""

    name: str
    last_seen_ms: int
    providers: list[str]


class AgentFailover:
    """A periodic job of every conductor; only the first living conductor does something in it.

    ``grace`` is how long, in milliseconds, an agent may be silent; ``lease_ms`` is the same for a
    conductor. Devices that need no preparation can be bound without an agent: their units stay
    available.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: ConductorLease,
        publisher: Callable[[], Publisher],
        grace: int,
        lease_ms: int,
    ) -> None:
        self._db = db
        self._lease = lease
        self._make_publisher = publisher
        self._publisher: Publisher | None = None
        self._grace = grace
        self._lease_ms = lease_ms
        # The agents' last heartbeats by host id: of hosts that were silent in the last pass, and
        # of hosts whose units are reserved.
        self._silent: dict[int, int] = {}
        self._reserved: dict[int, int] = {}

    def run_once(self) -> None:
        """Reserve the units of hosts without an agent, once for each absence.

        An agent must have been silent in the pass before as well: when the database or all
        conductors come back after an outage, every agent seems silent until its next heartbeat.
        Raises exception.Unavailable while Placement does not answer; the next pass tries again.
        """
        if not self._lease.is_oldest(self._lease_ms):
            self._silent, self._reserved = {}, {}
            return
        absences: dict[int, _Absence] = {}
        with self._db.reader() as tx:
            for row in hosts.silent_providers(tx, self._grace):
                absence = absences.setdefault(row.id, _Absence(row.name, row.last_seen_ms, []))
                absence.providers.append(row.rp_uuid)
        silent_before = self._silent
        self._silent = {host_id: absence.last_seen_ms for host_id, absence in absences.items()}
        self._reserved = {
            host_id: last_seen_ms
            for host_id, last_seen_ms in self._reserved.items()
            if self._silent.get(host_id) == last_seen_ms
        }
        for host_id, absence in absences.items():
            if host_id not in self._reserved and silent_before.get(host_id) == absence.last_seen_ms:
                self._reserve(host_id, absence)

    def _reserve(self, host_id: int, absence: _Absence) -> None:
        if self._publisher is None:
            self._publisher = self._make_publisher()
        changed: list[str] | None = None
        try:
            changed = self._publisher.reserve(absence.providers)
        finally:
            if changed is None or changed:
                # An agent that has come back in the meantime may have compared all of Placement
                # before this was written: with its next heartbeat it must compare it again.
                self._store_reserved(host_id, changed or ())
        self._reserved[host_id] = absence.last_seen_ms
        if changed:
            LOG.warning(
                "Agent of host %s has been silent for more than %d s: all units of %d provider(s) "
                "that need its preparation are reserved in Placement",
                *(absence.name, self._grace // 1000, len(changed)),
            )

    @retried
    def _store_reserved(self, host_id: int, providers: Collection[str]) -> None:
        with self._db.writer() as tx:
            hosts.bump_desired_generation(tx, host_id)
            deployables.note_reserved(tx, providers)

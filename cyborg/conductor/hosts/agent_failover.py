# SPDX-License-Identifier: Apache-2.0
"""Devices of dead agents: what needs an agent's work is not given out while it is away."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.leases import ConductorLease
from cyborg.db import hosts
from cyborg.db.engine import Database, retried

LOG = logging.getLogger(__name__)


@dataclass
class _Absence:
    """A host whose agent is silent, since its last heartbeat; ``providers`` by uuid."""

    name: str
    since: int
    providers: list[str]


class AgentFailover:
    """A periodic job of every conductor; only the longest-known living one does it.

    ``grace`` is how long, in milliseconds, an agent may be silent; ``lease_ms`` the same for a
    conductor. Binds of devices that need nothing from their host work without an agent: those
    stay on offer.
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
        self._make = publisher
        self._publisher: Publisher | None = None
        self._grace = grace
        self._lease_ms = lease_ms
        # By host id the agent's last heartbeat: those that were silent at the last look, and
        # those whose devices are withheld.
        self._silent: dict[int, int] = {}
        self._done: dict[int, int] = {}

    def run_once(self) -> None:
        """Reserve what agents that are gone leave behind, once for each absence.

        An agent must have been silent at the look before, too: when the database or all
        conductors come back after an outage, every agent seems silent until its next heartbeat.
        Raises exception.Unavailable while Placement cannot be asked; it is tried again then.
        """
        if not self._lease.comes_first(self._lease_ms):
            self._silent, self._done = {}, {}
            return
        absent = self._absent()
        before, self._silent = self._silent, {id_: one.since for id_, one in absent.items()}
        self._done = {
            id_: since for id_, since in self._done.items() if self._silent.get(id_) == since
        }
        for id_, one in absent.items():
            if id_ not in self._done and before.get(id_) == one.since:
                self._withhold(id_, one)

    def _absent(self) -> dict[int, _Absence]:
        found: dict[int, _Absence] = {}
        with self._db.reader() as tx:
            for row in hosts.without_agent(tx, self._db.now, self._grace):
                one = found.setdefault(row.id, _Absence(row.name, row.last_seen_ms, []))
                one.providers.append(row.rp_uuid)
        return found

    def _withhold(self, host_id: int, absence: _Absence) -> None:
        if self._publisher is None:
            self._publisher = self._make()
        changed: list[str] | None = None
        try:
            changed = self._publisher.withhold(absence.providers)
        finally:
            if changed is None or changed:
                # An agent that has come back meanwhile may have compared all of Placement before
                # this was written: whenever it says hello, it is to do so again.
                self._bump_desired_generation(host_id)
        self._done[host_id] = absence.since
        if changed:
            LOG.warning(
                "The agent of %s has been silent for more than %d s: Placement offers nothing of "
                "%d provider(s) any more that need its work",
                absence.name,
                self._grace // 1000,
                len(changed),
            )

    @retried
    def _bump_desired_generation(self, host_id: int) -> None:
        with self._db.writer() as tx:
            hosts.bump_desired_generation(tx, self._db.now, host_id)

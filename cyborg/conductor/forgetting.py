# SPDX-License-Identifier: Apache-2.0
"""What operators do to processes: take a host out of service, and forget what is gone for good.

A host is forgotten like a lost device: its providers leave Placement, which refuses while something
is allocated there, and only then its rows go. Its agent is dead, so the conductor does it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.reconcile import Publisher
from cyborg.conductor.desired import children_first
from cyborg.conductor.work import Ledger
from cyborg.db import events, hosts, operations, retirement, service_moves, work
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.model.caller import Caller
from cyborg.model.names import AGENT
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

_LEAVING: Final = "It is being forgotten."
_ENABLED: Final = "enabled"
_DISABLED: Final = "disabled"


class Processes:
    """Changes the rows of processes; ``wake`` is called when work waits after a commit.

    ``down_after`` tells after how many milliseconds of silence a process of a binary is down.
    """

    def __init__(
        self,
        *,
        db: Database,
        agents: AgentClient,
        wake: Callable[[], None],
        down_after: Mapping[str, int],
    ) -> None:
        self._db = db
        self._agents = agents
        self._wake = wake
        self._down_after = down_after

    def set_status(
        self, caller: Caller, operation: str, uuid: str, reason: str | None, *, disabled: bool
    ) -> None:
        """Take an agent's host out of service, or put it back; it holds until the next such order.

        No unit of the host is bound from the commit on; Placement follows when the agent has heard
        of it. What guests have they keep. Raises NotFound, Conflict (no agent).
        """
        agent = self._set_status(caller, operation, uuid, reason, disabled=disabled)
        self._agents.poke(agent)

    def forget(self, caller: Caller, operation: str, uuid: str) -> None:
        """Remove a process that is down and, of an agent, its host with all its devices.

        Of an agent this only begins it. Raises NotFound, Conflict (it is up, or ARQs have units).
        """
        self._forget(caller, operation, uuid)
        self._wake()

    @retried
    def _set_status(
        self, caller: Caller, operation: str, uuid: str, reason: str | None, *, disabled: bool
    ) -> str:
        with self._db.writer() as tx:
            row = self._process(tx, uuid)
            if row.binary != AGENT:
                raise exception.Conflict(
                    reason=f"Only {AGENT} can be taken out of service; {row.binary} on {row.host} "
                    "gives no units out."
                )
            word = _DISABLED if disabled else _ENABLED
            if not events.done_by(tx, operation, word, [uuid]):
                if row.host_id is not None:
                    hosts.want_anew(tx, self._db.now, row.host_id)
                service_moves.disable(tx, row.id, disabled=disabled, reason=reason)
                self._record(tx, row, word, reason, caller=caller, operation=operation)
        LOG.info("%s on %s is %s now", row.binary, row.host, word)
        return str(row.host)

    @retried
    def _forget(self, caller: Caller, operation: str, uuid: str) -> None:
        with self._db.writer() as tx:
            if events.done_by(tx, operation, "forgotten", [uuid]):
                return
            row = self._process(tx, uuid)
            if row.silent_ms <= self._down_after[row.binary]:
                raise exception.Conflict(
                    reason=f"{row.binary} on {row.host} is up; it was seen "
                    f"{row.silent_ms // 1000} s ago. Stop it first."
                )
            self._record(tx, row, "forgotten", None, caller=caller, operation=operation)
            if row.host_id is None:
                service_moves.remove(tx, row.id)
                return
            service_moves.lock_host(tx, row.host_id)
            _refuse_used(tx, row.host_id, row.host)
            if service_moves.being_forgotten(tx, row.host_id):
                return
            service_moves.disable(tx, row.id, disabled=True, reason=_LEAVING)
            task = {"kind": WorkKind.FORGET, "host_id": row.host_id, "spec": {"service": uuid}}
            work.add(tx, self._db.now, [{**task, "operation_id": operation}])

    def _process(self, tx: sa.Connection, uuid: str) -> Record:
        row = service_moves.process(tx, self._db.now, uuid)
        if row is None:
            raise exception.NotFound(noun="Process", key=uuid)
        return row

    def _record(
        self,
        tx: sa.Connection,
        row: Record,
        word: str,
        reason: str | None,
        *,
        caller: Caller,
        operation: str,
    ) -> None:
        entry = events.Entry("service", row.uuid, word, hostname=row.host, reason=reason)
        events.record(tx, self._db.now, [entry], caller=caller, operation=operation)


class Forgetter:
    """The handler of ``forget`` work; ``publisher`` is made when it is needed."""

    def __init__(
        self,
        *,
        db: Database,
        ledger: Ledger,
        publisher: Callable[[], Publisher],
        down_after: int,
    ) -> None:
        self._db = db
        self._ledger = ledger
        self._publisher = publisher
        self._down_after = down_after

    def forget(self, rows: Sequence[Record]) -> None:
        """Take a host's providers out of Placement, then its rows out of the database.

        Calls it off when the agent has come back. Raises Conflict while something is allocated,
        Unavailable; it is tried again then.
        """
        (row,) = rows
        with self._db.reader() as tx:
            agent = service_moves.process(tx, self._db.now, row.spec["service"])
            found = service_moves.providers(tx, row.host_id)
            name = hosts.name_of(tx, row.host_id)
        if not self._is_back(agent):
            publisher = self._publisher()
            root = _root(publisher, name)
            for one in children_first(found):
                publisher.retire(one.rp_uuid, root=root)
        self._finish(row)

    @retried
    def _finish(self, row: Record) -> None:
        with self._ledger.done([row]) as tx:
            name = service_moves.lock_host(tx, row.host_id)
            agent = service_moves.process(tx, self._db.now, row.spec["service"])
            if self._is_back(agent):
                self._call_off(tx, agent)
                return
            _refuse_used(tx, row.host_id, name)
            going = service_moves.devices(tx, row.host_id)
            for uuid in operations.open_on(tx, name):
                operations.end(tx, self._db.now, uuid, _forgotten(name))
            service_moves.call_off_work(tx, row.host_id, but=row.id)
            retirement.remove(tx, [one.id for one in going])
            service_moves.remove_host(tx, row.host_id)
            if agent is not None:
                service_moves.remove(tx, agent.id)
            why = "its host was forgotten"
            entries = [
                events.Entry("device", one.uuid, "retired", hostname=name, reason=why)
                for one in going
            ]
            events.record(tx, self._db.now, entries)
        LOG.info("Host %s is forgotten, with %d device(s)", name, len(going))

    def _is_back(self, agent: Record | None) -> bool:
        return agent is not None and agent.silent_ms <= self._down_after

    def _call_off(self, tx: sa.Connection, agent: Record) -> None:
        """Its agent has come back: the host stays, and Placement is put right by it."""
        service_moves.disable(tx, agent.id, disabled=False, reason=None)
        hosts.want_anew(tx, self._db.now, agent.host_id)
        LOG.warning("%s is not forgotten: its agent has come back", agent.host)


def _refuse_used(tx: sa.Connection, host_id: int, host: str) -> None:
    """Raise Conflict naming the ARQs that have units of a host."""
    found = service_moves.arqs(tx, host_id)
    if found:
        raise exception.Conflict(
            reason=f"Accelerator requests have units of {host}: {', '.join(found)}. Delete their "
            "instances first, or evacuate them."
        )


def _forgotten(host: str) -> HostResult:
    """How operations end for a host that is gone."""
    return HostResult(host, ResultState.FAILED, error="the host was forgotten")


def _root(publisher: Publisher, name: str) -> str | None:
    """The compute's own provider; None when that is gone already."""
    try:
        return publisher.find_root([name])[0]
    except exception.NotFound:
        return None

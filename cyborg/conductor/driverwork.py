# SPDX-License-Identifier: Apache-2.0
"""Work on the drivers of one host: seen through to its end, or back to what was before.

Where a piece of work stands is in its row (``phase``); whoever takes it over begins there.
"""

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.discovering import Asker, outcome
from cyborg.conductor.drivers import device_history
from cyborg.conductor.work import Ledger
from cyborg.db import drivers, events, hosts, operations, work
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import LOST
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered
from cyborg.rpc.agent import AgentClient

_PHASE = "phase"
#: The agent executes itself anew, and looks; ``epoch`` is the one that is to end.
_RELOAD = "reload"
#: A driver's way in: its agent follows the wish; a host that cannot has it taken back, and follows.
_APPLY, _UNDO = "apply", "undo"
#: Its way out: its agent knows how; nobody has a unit of it; its agent drops it; its devices leave
#: Placement.
_GREET, _DRAIN, _UNLOAD, _REMOVE = "greet", "drain", "unload", "remove"
#: How soon it is looked again whether a driver is free, or its devices gone, in milliseconds.
_LOOK_AGAIN_MS = 1000


class DriverWork:
    """The handlers of ``driver`` and ``uninstall`` work."""

    def __init__(
        self,
        *,
        db: Database,
        ledger: Ledger,
        asker: Asker,
        agents: AgentClient,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._ledger = ledger
        self._asker = asker
        self._agents = agents
        self._wake = wake

    def configure(self, rows: Sequence[Record]) -> None:
        """Have one host follow what was ordered of a driver; what it cannot is taken back."""
        (row,) = rows
        phase = row.spec.get(_PHASE, _APPLY)
        if phase == _RELOAD:
            self._reload(row)
            return
        answer = self._asker.ask(row, phase, lambda tx: self._restore(tx, row))
        if answer is None:
            return
        if phase == _UNDO:
            self._undone(row)
            return
        result = _configured(row, answer)
        if row.spec["wish"] and any(not one.accepted for one in answer.drivers):
            self._take_back(row, result)
        else:
            self._asker.end(row, result)

    def _reload(self, row: Record) -> None:
        """Ask the agent to execute itself anew, until another epoch shows that it has."""
        if row.overdue:
            self._asker.overdue(row)
            return
        agent = self._asker.agent(row)
        if agent is None:
            return
        if agent.epoch != row.spec["epoch"]:
            self._go_on(row, _APPLY, step="reloaded")
            return
        try:
            self._agents.reload(agent.service_host, agent.epoch)
        except exception.UnknownVerb as fault:
            self._asker.refused(row, fault)
            return
        self._ledger.later([row], None, pause_ms=_LOOK_AGAIN_MS)

    @retried
    def _take_back(self, row: Record, result: HostResult) -> None:
        """Want again what was wanted before, unless somebody has wanted another thing since."""
        spec = {**row.spec, _PHASE: _UNDO, "result": result.result, "error": result.error}
        with self._ledger.going_on([row]) as tx:
            self._want_as_before(tx, row)
            work.note(tx, row, spec)
        self._again(row)

    def _want_as_before(self, tx: sa.Connection, row: Record) -> None:
        name, wish = row.spec["driver"], row.spec["wish"]
        before = row.spec["before"] or {"wanted": None, "enabled": True, "options": None}
        hosts.want_anew(tx, self._db.now, row.host_id)
        for one in drivers.on_hosts(tx, name, [row.host_id]):
            if all(getattr(one, key) == value for key, value in wish.items()):
                drivers.want(tx, row.host_id, name, {key: before[key] for key in wish})

    def _restore(self, tx: sa.Connection, row: Record) -> None:
        """Leave nothing of a wish that the agent cannot even be told of."""
        self._want_as_before(tx, row)
        if row.spec["before"] is None:
            self._forget(tx, row)

    @retried
    def _undone(self, row: Record) -> None:
        """The host is as it was before: tell why."""
        failed = HostResult(
            row.spec["host"], ResultState.FAILED, row.spec["result"], row.spec["error"]
        )
        with self._ledger.going_on([row]) as tx:
            if row.spec["before"] is None:
                self._forget(tx, row)
        self._asker.end(row, failed)

    def _forget(self, tx: sa.Connection, row: Record) -> None:
        for one in drivers.on_hosts(tx, row.spec["driver"], [row.host_id]):
            if one.wanted is None and one.state != DriverState.READY.value:
                drivers.forget(tx, row.host_id, one.name)

    def uninstall(self, rows: Sequence[Record]) -> None:
        """Take a driver off one host, as far as that goes now."""
        (row,) = rows
        phase = row.spec.get(_PHASE, _GREET)
        if phase == _GREET:
            self._greet(row)
        elif phase == _DRAIN:
            self._drain(row)
        elif phase == _UNLOAD:
            answer = self._asker.ask(row, phase)
            if answer is not None:
                self._go_on(row, _REMOVE)
        else:
            self._remove(row)

    def _greet(self, row: Record) -> None:
        """Go on if the agent can be asked to drop a driver; if not, put its devices back."""

        def undo(tx: sa.Connection) -> None:
            hosts.want_anew(tx, self._db.now, row.host_id)
            back = drivers.put_back(tx, row.host_id, row.spec["driver"], row.spec["served"])
            self._tell(tx, row, back, DeviceStatus.ENABLED.value)

        if self._asker.ask(row, _GREET, undo) is not None:
            self._go_on(row, _DRAIN)

    @retried
    def _drain(self, row: Record) -> None:
        """Have the agent drop the driver once nobody has a unit of it, and none can be had."""
        name = row.spec["driver"]
        with self._ledger.going_on([row]) as tx:
            hosts.want_anew(tx, self._db.now, row.host_id)
            drivers.lock_handles(tx, [row.host_id], name)
            users = drivers.arqs(tx, [row.host_id], name)
            waits = len(users) or drivers.unreleased(tx, row.host_id, name)
            if not waits:
                self._tell(tx, row, drivers.lose(tx, self._db.now, row.host_id, name), LOST)
                wish = {"wanted": False, "enabled": False, "options": None}
                drivers.want(tx, row.host_id, name, wish)
        if waits and row.overdue:
            self._asker.overdue(row)
        elif waits:
            what = "accelerator request(s) that use it" if users else "unit(s) to be released"
            self._asker.pause(row, ResultState.RUNNING, f"it waits for {waits} {what}")
            self._ledger.later([row], None, pause_ms=_LOOK_AGAIN_MS)
        else:
            self._go_on(row, _UNLOAD, step="free")

    @retried
    def _remove(self, row: Record) -> None:
        """End it when the last device of the driver has left Placement, and so the database."""
        name = row.spec["driver"]
        with self._db.reader() as tx:
            left = drivers.devices(tx, row.host_id, name)
            obstacles = drivers.obstacles(tx, row.host_id, name)
            agent = hosts.agent_of(tx, self._db.now, 0, row.host_id)
        if not left:
            self._asker.end(row, HostResult(row.spec["host"], ResultState.SUCCEEDED, {}))
        elif row.overdue:
            self._asker.overdue(row)
        else:
            why = "; ".join(obstacles) or f"{left} device(s) have to leave Placement"
            self._asker.pause(row, ResultState.RUNNING, why)
            if agent is not None:
                self._agents.poke(agent.service_host)
            self._ledger.later([row], None, pause_ms=_LOOK_AGAIN_MS)

    @retried
    def _go_on(self, row: Record, phase: str, *, step: str | None = None) -> None:
        """Note that a phase is over, and have the next one begun at once."""
        with self._ledger.going_on([row]) as tx:
            if step is not None:
                operations.reach(tx, self._db.now, row.operation_id, step)
            work.note(tx, row, {**row.spec, _PHASE: phase})
        self._again(row)

    def _tell(self, tx: sa.Connection, row: Record, devices: Sequence[Record], action: str) -> None:
        entries = device_history(devices, action)
        events.record(
            tx,
            self._db.now,
            entries,
            operation=row.operation_id,
            ordered_by=work.origin(row),
        )

    def _again(self, row: Record) -> None:
        self._ledger.later([row], None, pause_ms=1)
        self._wake()


def _configured(row: Record, answer: Discovered) -> HostResult:
    """What an agent's answer means; a driver that is disabled shall not be there."""
    if row.spec["enabled"] or any(not one.accepted for one in answer.drivers):
        return outcome(row, answer)
    return outcome(row, Discovered(answer.operation))

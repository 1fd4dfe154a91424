# SPDX-License-Identifier: Apache-2.0
"""Install, update and remove drivers of hosts while their agents run.

A request is stored and goes to the agents with the desired state. An agent loads the driver and
reports it. If the agent cannot, the request is rolled back and the earlier driver stays.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations.discovery import AgentQuery, outcome
from cyborg.conductor.operations.operations import Operations, Order, Task
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import drivers, events, hosts, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import LOST
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, WorkKind
from cyborg.rpc.agent import AgentClient

INSTALL = "install_driver"
UPDATE = "update_driver"
UNINSTALL = "uninstall_driver"
#: How many ARQs a refusal names.
_NAMED = 10
#: What stands at devices whose driver goes.
_GOING = "Its driver is being uninstalled."
#: What is refused while a driver is in use; only this can wait.
_UNINSTALLED = "uninstalled"
#: What an operator has a say in.
_WISH = ("wanted", "enabled", "options")


class Drivers:
    """Begins installing, changing and uninstalling."""

    def __init__(self, *, db: Database, operations: Operations) -> None:
        self._db = db
        self._operations = operations

    def install(
        self,
        order: Order,
        driver: str,
        *,
        hosts: Sequence[str] | None,
        options: Mapping[str, str] | None,
    ) -> Operation:
        """Have hosts (None: all that are up) load a driver, now and whenever they start.

        ``driver`` is a name, or the uuid of one host's row. Raises NotFound, Unavailable, Conflict.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, own = self._name(tx, driver)
            chosen = self._operations.hosts(tx, hosts, wait=order.wait or own is not None)
            if own is not None:
                chosen = [one for one in chosen if one.id == own]
                self._operations.insist(chosen, wait=order.wait)
            if not chosen:
                raise exception.Conflict(reason=f"Driver {driver} is not one of these hosts.")
            self._stay(tx, chosen, name)
            wish: dict[str, Any] = {"wanted": True, "enabled": True}
            if options is not None:
                wish["options"] = dict(options)
            return self._want(tx, order, chosen, name=name, wish=lambda row: wish)

        return self._operations.begin(order, plan)

    def update(
        self,
        order: Order,
        driver: str,
        *,
        options: Mapping[str, str | None] | None,
        enabled: bool | None,
    ) -> Operation:
        """Change options of a driver (None: as the host has it), enable or disable it.

        With nothing to change its agents are executed anew, with the code that is installed by
        then. Raises NotFound, Unavailable, and Conflict, naming the ARQs, when one that is in use
        is to be disabled.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._stay(tx, chosen, name)
            if options is None and enabled is None:
                return self._reload(tx, order, chosen, name)
            if enabled is False:
                self._refuse_use(tx, chosen, name, "disabled")

            def wish(row: Record) -> dict[str, Any]:
                wanted: dict[str, Any] = (
                    {} if enabled is None else {"wanted": True, "enabled": enabled}
                )
                if options is not None:
                    laid = {**(row.options or {}), **options}
                    wanted["options"] = {k: v for k, v in laid.items() if v is not None}
                return wanted

            return self._want(tx, order, chosen, name=name, wish=wish)

        return self._operations.begin(order, plan)

    def uninstall(self, order: Order, driver: str, *, drain: bool) -> Operation:
        """Take a driver off its hosts; its devices leave Placement and the database.

        They are reserved from now on. Raises NotFound, Unavailable, and Conflict, naming the ARQs,
        while one is in use; with ``drain`` it goes when the last of them is free.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._stay(tx, chosen, name)
            ids = [one.id for one in chosen]
            for id_ in ids:
                hosts.bump_desired_generation(tx, self._db.now, id_)
            drivers.lock_handles(tx, ids, name)
            if not drain:
                self._refuse_use(tx, chosen, name, _UNINSTALLED)
            served = drivers.in_service(tx, ids, name)
            reserved = drivers.reserve(tx, ids, name, _GOING)
            self._record(tx, order, chosen, drivers.on_hosts(tx, name, ids))
            told = device_history(reserved, DeviceStatus.MAINTAINING.value)
            events.record(tx, self._db.now, told, caller=order.caller, operation=order.operation)
            patient = drain or order.wait
            spec = {"driver": name, "served": served}
            about = {"driver": name}
            return [
                Task(one, WorkKind.UNINSTALL, spec, patient=patient, about=about) for one in chosen
            ]

        return self._operations.begin(order, plan)

    def _name(self, tx: sa.Connection, key: str) -> tuple[str, int | None]:
        """The name that a key means, and the host that it means when it is the uuid of a row."""
        try:
            uuid = str(UUID(key))
        except ValueError:
            return key, None
        found = drivers.named(tx, uuid)
        if not found:
            raise exception.NotFound(noun="Driver", key=key)
        return found[0].name, found[0].host_id

    def _installed(self, tx: sa.Connection, key: str, *, wait: bool) -> tuple[str, list[Record]]:
        """The name and the hosts of a driver that is installed there; raises what is wrong."""
        name, own = self._name(tx, key)
        rows = drivers.named(tx, name)
        if not rows:
            raise exception.NotFound(noun="Driver", key=key)
        ids = {row.host_id for row in rows if _is_installed(row) and own in (None, row.host_id)}
        if not ids:
            raise exception.Conflict(reason=f"Driver {key} is not installed there.")
        chosen = [one for one in self._operations.known(tx) if one.id in ids]
        self._operations.insist(chosen, wait=wait)
        return name, chosen

    def _reload(
        self, tx: sa.Connection, order: Order, chosen: Sequence[Record], name: str
    ) -> list[Task]:
        rows = drivers.on_hosts(tx, name, [one.id for one in chosen])
        enabled = {row.host_id: row.enabled for row in rows}
        self._record(tx, order, chosen, rows)
        spec = {"driver": name, "wish": {}, "phase": "reload"}
        return [
            Task(
                one,
                WorkKind.DRIVER,
                {**spec, "before": {}, "epoch": one.epoch, "enabled": enabled[one.id]},
                about={"driver": name},
            )
            for one in chosen
        ]

    def _want(
        self,
        tx: sa.Connection,
        order: Order,
        chosen: Sequence[Record],
        *,
        name: str,
        wish: Any,
    ) -> list[Task]:
        """Store what is wanted on each host; what was before is remembered for the way back."""
        for one in chosen:
            hosts.bump_desired_generation(tx, self._db.now, one.id)
        ids = [one.id for one in chosen]
        before = {row.host_id: row for row in drivers.on_hosts(tx, name, ids)}
        tasks = []
        for one in chosen:
            row = before.get(one.id)
            wanted = wish(row)
            drivers.set_requested(tx, one.id, name, wanted)
            old = None if row is None else {key: getattr(row, key) for key in _WISH}
            tasks.append(
                Task(
                    one,
                    WorkKind.DRIVER,
                    {
                        "driver": name,
                        "wish": wanted,
                        "before": old,
                        "enabled": wanted.get("enabled", row is None or row.enabled),
                    },
                    about={"driver": name},
                )
            )
        self._record(tx, order, chosen, drivers.on_hosts(tx, name, ids))
        return tasks

    def _stay(self, tx: sa.Connection, chosen: Sequence[Record], name: str) -> None:
        """Raise Conflict while the driver is on its way out."""
        if drivers.leaving(tx, [one.id for one in chosen], name):
            raise exception.Conflict(reason=f"Driver {name} is being uninstalled.")

    def _refuse_use(
        self, tx: sa.Connection, chosen: Sequence[Record], name: str, what: str
    ) -> None:
        """Raise Conflict naming the ARQs that have accelerators of the driver."""
        found = drivers.arqs(tx, [one.id for one in chosen], name)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            advice = ", or have it drained" if what == _UNINSTALLED else ""
            raise exception.Conflict(
                reason=f"Driver {name} cannot be {what} while accelerator requests use it: "
                f"{', '.join(found[:_NAMED])}{more}. Delete their instances or detach them first"
                f"{advice}."
            )

    def _record(
        self,
        tx: sa.Connection,
        order: Order,
        chosen: Sequence[Record],
        rows: Collection[Record],
    ) -> None:
        names = {one.id: one.name for one in chosen}
        entries = [
            events.Entry(
                "driver", row.uuid, order.verb, hostname=names[row.host_id], reason=row.name
            )
            for row in rows
        ]
        events.record(tx, self._db.now, entries, caller=order.caller, operation=order.operation)


def device_history(rows: Collection[Record], action: str) -> list[events.Entry]:
    """What is to be told of devices that a driver's going or staying has changed."""
    return [events.Entry("device", one.uuid, action, hostname=one.hostname) for one in rows]


def _is_installed(row: Record) -> bool:
    """Whether a driver is in force on its host, or would be if it were enabled."""
    if row.wanted is None:
        return bool(row.state != DriverState.STOPPED.value)
    return bool(row.wanted)


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
        queue: WorkQueue,
        asker: AgentQuery,
        agents: AgentClient,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._queue = queue
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
        self._queue.reschedule([row], None, pause_ms=_LOOK_AGAIN_MS)

    @retried
    def _take_back(self, row: Record, result: HostResult) -> None:
        """Want again what was wanted before, unless somebody has wanted another thing since."""
        spec = {**row.spec, _PHASE: _UNDO, "result": result.result, "error": result.error}
        with self._queue.checkpoint([row]) as tx:
            self._want_as_before(tx, row)
            work.note(tx, row, spec)
        self._again(row)

    def _want_as_before(self, tx: sa.Connection, row: Record) -> None:
        name, wish = row.spec["driver"], row.spec["wish"]
        before = row.spec["before"] or {"wanted": None, "enabled": True, "options": None}
        hosts.bump_desired_generation(tx, self._db.now, row.host_id)
        for one in drivers.on_hosts(tx, name, [row.host_id]):
            if all(getattr(one, key) == value for key, value in wish.items()):
                drivers.set_requested(tx, row.host_id, name, {key: before[key] for key in wish})

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
        with self._queue.checkpoint([row]) as tx:
            if row.spec["before"] is None:
                self._forget(tx, row)
        self._asker.end(row, failed)

    def _forget(self, tx: sa.Connection, row: Record) -> None:
        for one in drivers.on_hosts(tx, row.spec["driver"], [row.host_id]):
            if one.wanted is None and one.state != DriverState.READY.value:
                drivers.remove_driver(tx, row.host_id, one.name)

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
            hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            back = drivers.return_to_service(
                tx, row.host_id, row.spec["driver"], row.spec["served"]
            )
            self._tell(tx, row, back, DeviceStatus.ENABLED.value)

        if self._asker.ask(row, _GREET, undo) is not None:
            self._go_on(row, _DRAIN)

    @retried
    def _drain(self, row: Record) -> None:
        """Have the agent drop the driver once nobody has a unit of it, and none can be had."""
        name = row.spec["driver"]
        with self._queue.checkpoint([row]) as tx:
            hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            drivers.lock_handles(tx, [row.host_id], name)
            users = drivers.arqs(tx, [row.host_id], name)
            waits = len(users) or drivers.unreleased(tx, row.host_id, name)
            if not waits:
                self._tell(tx, row, drivers.lose(tx, self._db.now, row.host_id, name), LOST)
                wish = {"wanted": False, "enabled": False, "options": None}
                drivers.set_requested(tx, row.host_id, name, wish)
        if waits and row.overdue:
            self._asker.overdue(row)
        elif waits:
            what = "accelerator request(s) that use it" if users else "unit(s) to be released"
            self._asker.pause(row, ResultState.RUNNING, f"it waits for {waits} {what}")
            self._queue.reschedule([row], None, pause_ms=_LOOK_AGAIN_MS)
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
            self._queue.reschedule([row], None, pause_ms=_LOOK_AGAIN_MS)

    @retried
    def _go_on(self, row: Record, phase: str, *, step: str | None = None) -> None:
        """Note that a phase is over, and have the next one begun at once."""
        with self._queue.checkpoint([row]) as tx:
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
        self._queue.reschedule([row], None, pause_ms=1)
        self._wake()


def _configured(row: Record, answer: Discovered) -> HostResult:
    """What an agent's answer means; a driver that is disabled shall not be there."""
    if row.spec["enabled"] or any(not one.accepted for one in answer.drivers):
        return outcome(row, answer)
    return outcome(row, Discovered(answer.operation))

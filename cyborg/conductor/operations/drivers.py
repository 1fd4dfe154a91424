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
from cyborg.conductor.operations.discovery import AgentQuery, host_result
from cyborg.conductor.operations.operations import Operations, Order, Task
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import drivers, events, hosts, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.device import LOST, DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, WorkKind
from cyborg.rpc.agent import AgentClient

INSTALL = "install_driver"
UPDATE = "update_driver"
UNINSTALL = "uninstall_driver"
#: How many ARQs a refusal names.
_NAMED = 10
#: The status reason of devices whose driver is being uninstalled.
_REASON = "Its driver is being uninstalled."
#: Completes "cannot be" in refusals of drivers that are in use. Only an uninstall can wait.
_DISABLED, _UNINSTALLED = "disabled", "uninstalled"
#: The columns of a driver that operators set.
_SETTINGS = ("requested", "enabled", "options")

#: The key in the spec of work for its phase.
_PHASE = "phase"
#: Reload: the agent executes itself again; ``epoch`` is its epoch before that.
_RELOAD = "reload"
#: Install and update: the agent follows the request (APPLY). If it cannot, the request is rolled
#: back (UNDO).
_APPLY, _UNDO = "apply", "undo"
#: Uninstall: the agent shows that it knows the request (CONFIRM), all units are released (DRAIN),
#: the agent unloads the driver (UNLOAD), and its devices leave Placement (REMOVE).
_CONFIRM, _DRAIN, _UNLOAD, _REMOVE = "confirm", "drain", "unload", "remove"
#: Milliseconds before it is checked again whether a driver is unused, or its devices removed.
_POLL_MS = 1000


class Drivers:
    """Begin to install, update and uninstall drivers."""

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
            name, only_host_id = self._name(tx, driver)
            wait = order.wait or only_host_id is not None
            chosen = self._operations.hosts(tx, hosts, wait=wait)
            if only_host_id is not None:
                chosen = [host for host in chosen if host.id == only_host_id]
                self._operations.check_agents(chosen, wait=order.wait)
            if not chosen:
                raise exception.Conflict(
                    reason=f"Driver {driver} is on none of the requested hosts."
                )
            self._check_not_being_uninstalled(tx, chosen, name)
            settings: dict[str, Any] = {"requested": True, "enabled": True}
            if options is not None:
                settings["options"] = dict(options)
            return self._request(tx, order, chosen, name=name, settings_of=lambda row: settings)

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

        Without a change the agents execute themselves again, with the code that is installed then.
        Raises NotFound, Unavailable, and Conflict naming the ARQs when a driver in use is to be
        disabled.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._check_not_being_uninstalled(tx, chosen, name)
            if options is None and enabled is None:
                rows = drivers.on_hosts(tx, name, [host.id for host in chosen])
                stays_enabled = {row.host_id: row.enabled for row in rows}
                self._record(tx, order, chosen, rows)
                spec = {"driver": name, "settings": {}, _PHASE: _RELOAD, "previous": {}}
                return [
                    Task(
                        host,
                        WorkKind.CONFIGURE_DRIVER,
                        {**spec, "epoch": host.epoch, "enabled": stays_enabled[host.id]},
                        subject={"driver": name},
                    )
                    for host in chosen
                ]
            if enabled is False:
                self._check_unused(tx, chosen, name, _DISABLED)

            def settings_of(row: Record) -> dict[str, Any]:
                settings: dict[str, Any] = (
                    {} if enabled is None else {"requested": True, "enabled": enabled}
                )
                if options is not None:
                    merged = {**(row.options or {}), **options}
                    settings["options"] = {
                        key: value for key, value in merged.items() if value is not None
                    }
                return settings

            return self._request(tx, order, chosen, name=name, settings_of=settings_of)

        return self._operations.begin(order, plan)

    def uninstall(self, order: Order, driver: str, *, drain: bool) -> Operation:
        """Remove a driver from its hosts; its devices leave Placement and the database.

        The devices are reserved at once. While the driver is in use this raises Conflict naming the
        ARQs; with ``drain`` the driver is removed when the last unit is released instead. Raises
        NotFound, Unavailable as well.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._check_not_being_uninstalled(tx, chosen, name)
            host_ids = [host.id for host in chosen]
            for host_id in host_ids:
                hosts.bump_desired_generation(tx, self._db.now, host_id)
            drivers.lock_handles(tx, host_ids, name)
            if not drain:
                self._check_unused(tx, chosen, name, _UNINSTALLED)
            enabled_devices = drivers.enabled_devices(tx, host_ids, name)
            reserved = drivers.reserve(tx, host_ids, name, _REASON)
            self._record(tx, order, chosen, drivers.on_hosts(tx, name, host_ids))
            entries = _device_entries(reserved, DeviceStatus.MAINTAINING.value)
            events.record(
                tx, self._db.now, entries, caller=order.caller, request_key=order.request_key
            )
            unlimited = drain or order.wait
            spec = {"driver": name, "enabled_devices": enabled_devices}
            subject = {"driver": name}
            return [
                Task(host, WorkKind.UNINSTALL_DRIVER, spec, unlimited=unlimited, subject=subject)
                for host in chosen
            ]

        return self._operations.begin(order, plan)

    def _name(self, tx: sa.Connection, key: str) -> tuple[str, int | None]:
        """Return the driver name for a key, and the host id when the key is the uuid of a row."""
        try:
            uuid = str(UUID(key))
        except ValueError:
            return key, None
        rows = drivers.named(tx, uuid)
        if not rows:
            raise exception.NotFound(noun="Driver", key=key)
        return rows[0].name, rows[0].host_id

    def _installed(self, tx: sa.Connection, key: str, *, wait: bool) -> tuple[str, list[Record]]:
        """Return the name and the hosts of an installed driver.

        Raises NotFound, Conflict (installed nowhere), Unavailable (an agent is down).
        """
        name, only_host_id = self._name(tx, key)
        rows = drivers.named(tx, name)
        if not rows:
            raise exception.NotFound(noun="Driver", key=key)
        host_ids = set()
        for row in rows:
            # Without a request a driver is installed where it is loaded.
            loaded = row.state != DriverState.STOPPED.value
            installed = loaded if row.requested is None else row.requested
            if installed and only_host_id in (None, row.host_id):
                host_ids.add(row.host_id)
        if not host_ids:
            raise exception.Conflict(reason=f"Driver {key} is not installed there.")
        existing = self._operations.hosts(tx, None, wait=True)
        chosen = [host for host in existing if host.id in host_ids]
        self._operations.check_agents(chosen, wait=wait)
        return name, chosen

    def _check_not_being_uninstalled(
        self, tx: sa.Connection, chosen: Sequence[Record], name: str
    ) -> None:
        """Raise Conflict while the driver is being uninstalled."""
        if drivers.is_uninstalling(tx, [host.id for host in chosen], name):
            raise exception.Conflict(reason=f"Driver {name} is being uninstalled.")

    def _check_unused(
        self, tx: sa.Connection, chosen: Sequence[Record], name: str, action: str
    ) -> None:
        """Raise Conflict naming the ARQs that have accelerators of the driver."""
        arqs = drivers.arqs(tx, [host.id for host in chosen], name)
        if arqs:
            more = f" and {len(arqs) - _NAMED} more" if len(arqs) > _NAMED else ""
            advice = ", or have it drained" if action == _UNINSTALLED else ""
            raise exception.Conflict(
                reason=f"Driver {name} cannot be {action} while accelerator requests use it: "
                f"{', '.join(arqs[:_NAMED])}{more}. Delete their instances or detach them first"
                f"{advice}."
            )

    def _request(
        self,
        tx: sa.Connection,
        order: Order,
        chosen: Sequence[Record],
        *,
        name: str,
        settings_of: Callable[[Record], dict[str, Any]],
    ) -> list[Task]:
        """Store the requested settings of each host; the work keeps those before for a rollback."""
        for host in chosen:
            hosts.bump_desired_generation(tx, self._db.now, host.id)
        host_ids = [host.id for host in chosen]
        rows = {row.host_id: row for row in drivers.on_hosts(tx, name, host_ids)}
        tasks = []
        for host in chosen:
            row = rows.get(host.id)
            settings = settings_of(row)
            drivers.set_requested(tx, host.id, name, settings)
            previous = None if row is None else {key: getattr(row, key) for key in _SETTINGS}
            tasks.append(
                Task(
                    host,
                    WorkKind.CONFIGURE_DRIVER,
                    {
                        "driver": name,
                        "settings": settings,
                        "previous": previous,
                        "enabled": settings.get("enabled", row is None or row.enabled),
                    },
                    subject={"driver": name},
                )
            )
        self._record(tx, order, chosen, drivers.on_hosts(tx, name, host_ids))
        return tasks

    def _record(
        self,
        tx: sa.Connection,
        order: Order,
        chosen: Sequence[Record],
        rows: Collection[Record],
    ) -> None:
        names = {host.id: host.name for host in chosen}
        entries = [
            events.Entry(
                "driver", row.uuid, order.verb, hostname=names[row.host_id], reason=row.name
            )
            for row in rows
        ]
        events.record(tx, self._db.now, entries, caller=order.caller, request_key=order.request_key)


def _device_entries(rows: Collection[Record], action: str) -> list[events.Entry]:
    return [events.Entry("device", row.uuid, action, hostname=row.hostname) for row in rows]


class DriverWork:
    """The handlers of work that configures and uninstalls drivers.

    ``wake`` is called when work waits.
    """

    def __init__(
        self,
        *,
        db: Database,
        queue: WorkQueue,
        query: AgentQuery,
        agents: AgentClient,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._queue = queue
        self._query = query
        self._agents = agents
        self._wake = wake

    def configure(self, rows: Sequence[Record]) -> None:
        """Have one host follow a request about a driver; roll back what the host cannot do."""
        (row,) = rows
        phase = row.spec.get(_PHASE, _APPLY)
        if phase == _RELOAD:
            self._reload(row)
            return

        def undo(tx: sa.Connection) -> None:
            self._restore_settings(tx, row)
            if row.spec["previous"] is None:
                self._remove_row(tx, row)

        answer = self._query.ask(row, phase, undo)
        if answer is None:
            return
        if phase == _UNDO:
            self._end_rollback(row)
            return
        refused = any(not driver.accepted for driver in answer.drivers)
        # A driver that is disabled need not be ready.
        checked = row.spec["enabled"] or refused
        result = host_result(row, answer if checked else Discovered(answer.request_key))
        if row.spec["settings"] and refused:
            self._roll_back(row, result)
        else:
            self._query.end(row, result)

    def _reload(self, row: Record) -> None:
        """Ask the agent to execute itself again, until another epoch shows that it has."""
        if row.overdue:
            self._query.overdue(row)
            return
        agent = self._query.agent(row)
        if agent is None:
            return
        if agent.epoch != row.spec["epoch"]:
            self._next_phase(row, _APPLY, step="reloaded")
            return
        try:
            self._agents.reload(agent.service_host, agent.epoch)
        except exception.UnknownVerb as error:
            self._query.refused(row, error)
            return
        self._queue.reschedule([row], None, pause_ms=_POLL_MS)

    @retried
    def _roll_back(self, row: Record, result: HostResult) -> None:
        """Begin to roll a request back that the host cannot follow."""
        spec = {**row.spec, _PHASE: _UNDO, "result": result.result, "error": result.error}
        with self._queue.checkpoint([row]) as tx:
            self._restore_settings(tx, row)
            work.set_spec(tx, row, spec)
        self._queue.reschedule([row], None, pause_ms=1)
        self._wake()

    def _restore_settings(self, tx: sa.Connection, row: Record) -> None:
        """Request the earlier settings again, unless a later request has changed them."""
        name, settings = row.spec["driver"], row.spec["settings"]
        previous = row.spec["previous"] or {"requested": None, "enabled": True, "options": None}
        hosts.bump_desired_generation(tx, self._db.now, row.host_id)
        for driver in drivers.on_hosts(tx, name, [row.host_id]):
            if all(getattr(driver, key) == value for key, value in settings.items()):
                drivers.set_requested(
                    tx, row.host_id, name, {key: previous[key] for key in settings}
                )

    @retried
    def _end_rollback(self, row: Record) -> None:
        """End the operation with the error, now that the host is as before."""
        result = HostResult(
            row.spec["host"], ResultState.FAILED, row.spec["result"], row.spec["error"]
        )
        with self._queue.checkpoint([row]) as tx:
            if row.spec["previous"] is None:
                self._remove_row(tx, row)
        self._query.end(row, result)

    def _remove_row(self, tx: sa.Connection, row: Record) -> None:
        """Remove the row of a driver that was never loaded."""
        for driver in drivers.on_hosts(tx, row.spec["driver"], [row.host_id]):
            if driver.requested is None and driver.state != DriverState.READY.value:
                drivers.remove_driver(tx, row.host_id, driver.name)

    def uninstall(self, rows: Sequence[Record]) -> None:
        """Remove a driver from one host, as far as that is possible now."""
        (row,) = rows
        phase = row.spec.get(_PHASE, _CONFIRM)

        def undo(tx: sa.Connection) -> None:
            hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            enabled = drivers.return_to_service(
                tx, row.host_id, row.spec["driver"], row.spec["enabled_devices"]
            )
            work.record(tx, self._db.now, row, _device_entries(enabled, DeviceStatus.ENABLED.value))

        if phase == _CONFIRM:
            if self._query.ask(row, phase, undo) is not None:
                self._next_phase(row, _DRAIN)
        elif phase == _DRAIN:
            self._drain(row)
        elif phase == _UNLOAD:
            if self._query.ask(row, phase) is not None:
                self._next_phase(row, _REMOVE)
        else:
            self._remove(row)

    @retried
    def _drain(self, row: Record) -> None:
        """Have the agent unload the driver once all its units are released."""
        name = row.spec["driver"]
        with self._queue.checkpoint([row]) as tx:
            hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            drivers.lock_handles(tx, [row.host_id], name)
            users = drivers.arqs(tx, [row.host_id], name)
            remaining = len(users) or drivers.count_unreleased(tx, row.host_id, name)
            if not remaining:
                lost = drivers.mark_lost(tx, self._db.now, row.host_id, name)
                work.record(tx, self._db.now, row, _device_entries(lost, LOST))
                settings = {"requested": False, "enabled": False, "options": None}
                drivers.set_requested(tx, row.host_id, name, settings)
        if remaining and row.overdue:
            self._query.overdue(row)
        elif remaining:
            what = "accelerator request(s) that use it" if users else "unit(s) to be released"
            self._query.pause(row, ResultState.RUNNING, f"it waits for {remaining} {what}")
            self._queue.reschedule([row], None, pause_ms=_POLL_MS)
        else:
            self._next_phase(row, _UNLOAD, step="free")

    @retried
    def _remove(self, row: Record) -> None:
        """End when the last device of the driver has left Placement and thereby the database."""
        name = row.spec["driver"]
        with self._db.reader() as tx:
            remaining = drivers.count_devices(tx, row.host_id, name)
            obstacles = drivers.removal_errors(tx, row.host_id, name)
            agent = hosts.agent_of(tx, self._db.now, 0, row.host_id)
        if not remaining:
            self._query.end(row, HostResult(row.spec["host"], ResultState.SUCCEEDED, {}))
        elif row.overdue:
            self._query.overdue(row)
        else:
            reason = "; ".join(obstacles) or f"{remaining} device(s) have to leave Placement"
            self._query.pause(row, ResultState.RUNNING, reason)
            if agent is not None:
                self._agents.desired_changed(agent.service_host)
            self._queue.reschedule([row], None, pause_ms=_POLL_MS)

    @retried
    def _next_phase(self, row: Record, phase: str, *, step: str | None = None) -> None:
        """Store the next phase, and the ``step`` that the operation has reached; run it at once."""
        with self._queue.checkpoint([row]) as tx:
            if step is not None:
                operations.add_step(tx, self._db.now, row.operation_id, step)
            work.set_spec(tx, row, {**row.spec, _PHASE: phase})
        self._queue.reschedule([row], None, pause_ms=1)
        self._wake()

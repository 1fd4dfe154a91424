# SPDX-License-Identifier: Apache-2.0
"""Install, update and remove drivers of hosts while their agents run.

A request is stored and goes to the agents with the desired state. An agent loads the driver and
reports it. If the agent cannot, the request is rolled back and the earlier driver stays.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

from cyborg import exception
from cyborg.conductor.operations.discovery import (
    HOST_REMOVED,
    OVERDUE,
    AgentQuery,
    host_result,
)
from cyborg.conductor.operations.operations import Operations, Order, Task
from cyborg.conductor.tasks.agent_task import AgentTask, Answer, Waiting
from cyborg.conductor.tasks.queue import Handler, WorkQueue
from cyborg.db import dirty_units, drivers, events, hosts, operations, work
from cyborg.db.drivers import ChangedDevice, StoredDriver
from cyborg.db.engine import retried
from cyborg.db.hosts import HostAgent
from cyborg.db.models import Device
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.device import LOST, DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, Outcome, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import DesiredChanged, Reload

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

#: The key in the spec of work for its phase; it is missing in the first phase.
_PHASE = "phase"
#: The key in the spec of an uninstall that does not wait for units in quarantine.
_FORCE = "force"


class Phase(StrEnum):
    """The phases of the work on a driver; each may be repeated without harm."""

    RELOAD = "reload"
    APPLY = "apply"
    UNDO = "undo"
    CONFIRM = "confirm"
    DRAIN = "drain"
    UNLOAD = "unload"
    REMOVE = "remove"


class Drivers:
    """Begin to install, update and uninstall drivers."""

    def __init__(self, *, operations: Operations) -> None:
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

        def plan(tx: Transaction) -> list[Task]:
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

        def plan(tx: Transaction) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._check_not_being_uninstalled(tx, chosen, name)
            if options is None and enabled is None:
                rows = drivers.on_hosts(tx, name, [host.id for host in chosen])
                stays_enabled = {row.host_id: row.enabled for row in rows}
                self._record(tx, order, chosen, rows)
                spec = {"driver": name, "settings": {}, _PHASE: Phase.RELOAD, "previous": {}}
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

            def settings_of(row: StoredDriver | None) -> dict[str, Any]:
                settings: dict[str, Any] = (
                    {} if enabled is None else {"requested": True, "enabled": enabled}
                )
                if options is not None:
                    merged = {**((row and row.options) or {}), **options}
                    settings["options"] = {
                        key: value for key, value in merged.items() if value is not None
                    }
                return settings

            return self._request(tx, order, chosen, name=name, settings_of=settings_of)

        return self._operations.begin(order, plan)

    def uninstall(
        self, order: Order, driver: str, *, drain: bool, force: bool | None = None
    ) -> Operation:
        """Remove a driver from its hosts; its devices leave Placement and the database.

        The devices are reserved at once. While the driver is in use this raises Conflict naming the
        ARQs; with ``drain`` the driver is removed when the last unit is released instead. The same
        is true of units that are not cleaned, unless ``force`` is set. Raises NotFound, Unavailable
        as well.
        """

        def plan(tx: Transaction) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._check_not_being_uninstalled(tx, chosen, name)
            host_ids = [host.id for host in chosen]
            for host_id in host_ids:
                hosts.bump_desired_generation(tx, host_id)
            drivers.lock_handles(tx, host_ids, name)
            if not drain:
                self._check_unused(tx, chosen, name, _UNINSTALLED)
            if force or not drain:
                own = Device.host_id.in_(host_ids), Device.driver == name
                dirty_units.check_clean(tx, *own, force=force)
            enabled_devices = drivers.enabled_devices(tx, host_ids, name)
            reserved = drivers.reserve(tx, host_ids, name, _REASON)
            self._record(tx, order, chosen, drivers.on_hosts(tx, name, host_ids))
            entries = _device_entries(reserved, DeviceStatus.MAINTAINING.value)
            events.record(tx, entries)
            unlimited = drain or order.wait
            spec = {"driver": name, "enabled_devices": enabled_devices, _FORCE: bool(force)}
            subject = {"driver": name}
            return [
                Task(host, WorkKind.UNINSTALL_DRIVER, spec, unlimited=unlimited, subject=subject)
                for host in chosen
            ]

        return self._operations.begin(order, plan)

    def _name(self, tx: Transaction, key: str) -> tuple[str, int | None]:
        """Return the driver name for a key, and the host id when the key is the uuid of a row."""
        try:
            uuid = str(UUID(key))
        except ValueError:
            return key, None
        rows = drivers.named(tx, uuid)
        if not rows:
            raise exception.NotFound(noun="Driver", key=key)
        return rows[0].name, rows[0].host_id

    def _installed(self, tx: Transaction, key: str, *, wait: bool) -> tuple[str, list[HostAgent]]:
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
        self, tx: Transaction, chosen: Sequence[HostAgent], name: str
    ) -> None:
        """Raise Conflict while the driver is being uninstalled."""
        if drivers.is_uninstalling(tx, [host.id for host in chosen], name):
            raise exception.Conflict(reason=f"Driver {name} is being uninstalled.")

    def _check_unused(
        self, tx: Transaction, chosen: Sequence[HostAgent], name: str, action: str
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
        tx: Transaction,
        order: Order,
        chosen: Sequence[HostAgent],
        *,
        name: str,
        settings_of: Callable[[StoredDriver | None], dict[str, Any]],
    ) -> list[Task]:
        """Store the requested settings of each host; the work keeps those before for a rollback."""
        for host in chosen:
            hosts.bump_desired_generation(tx, host.id)
        host_ids = [host.id for host in chosen]
        rows = {row.host_id: row for row in drivers.on_hosts(tx, name, host_ids)}
        tasks = []
        for host in chosen:
            row = rows.get(host.id)
            settings = settings_of(row)
            _check_options(host, name, row, settings.get("options") or {})
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
        tx: Transaction,
        order: Order,
        chosen: Sequence[HostAgent],
        rows: Collection[StoredDriver],
    ) -> None:
        names = {host.id: host.name for host in chosen}
        entries = [
            events.Entry(
                "driver", row.uuid, order.verb, hostname=names[row.host_id], reason=row.name
            )
            for row in rows
        ]
        events.record(tx, entries)


def _check_options(
    host: HostAgent, name: str, row: StoredDriver | None, options: Mapping[str, str]
) -> None:
    """Raise Invalid, which names the option, for an option that only files of the host may set.

    The agent reports the options that requests may set (``Driver.remote_options``), and checks each
    request again. It alone decides about a driver that it has not reported.
    """
    if row is None or row.accepts is None:
        return
    accepted = sorted({option["name"] for option in row.accepts})
    for key in sorted(options):
        if key.rpartition(".")[2] not in accepted:
            raise exception.Invalid(
                field=f"options.{key}",
                reason=f"only the configuration files of {host.name} can set this option of "
                f"{name}. Options that requests can set: {', '.join(accepted) or 'none'}.",
            )


def _device_entries(rows: Collection[ChangedDevice], action: str) -> list[events.Entry]:
    return [events.Entry("device", row.uuid, action, hostname=row.hostname) for row in rows]


@dataclass(frozen=True, kw_only=True)
class DriverWork:
    """The handlers of work that configures and uninstalls drivers.

    ``wake`` is called when work waits.
    """

    queue: WorkQueue
    query: AgentQuery
    agents: AgentClient
    wake: Callable[[], None]

    def handlers(self) -> dict[WorkKind, Handler]:
        """Return the handlers by kind of work."""
        task, discovery = self.query.task, self.query.discovery
        enter = self._enter
        # These ask only the database.
        check = partial(AgentTask, queue=self.queue, fail=self.query.fail)
        phases = {
            Phase.RELOAD: task(self._ask_reload, partial(enter, Phase.APPLY, step="reloaded")),
            # The agent follows a request to install or update the driver. If it cannot, the request
            # is rolled back.
            Phase.APPLY: discovery(Phase.APPLY, self._applied, self._undo_request),
            Phase.UNDO: discovery(Phase.UNDO, self._undone, self._undo_request),
            # The agent shows that it knows the request to uninstall the driver.
            Phase.CONFIRM: discovery(
                Phase.CONFIRM, partial(enter, Phase.DRAIN), self._undo_uninstall
            ),
            Phase.DRAIN: check(ask=self._drain, end=partial(enter, Phase.UNLOAD, step="free")),
            # The agent unloads the driver.
            Phase.UNLOAD: discovery(Phase.UNLOAD, partial(enter, Phase.REMOVE)),
            Phase.REMOVE: check(read=self.query.agent, ask=self._remove, end=self._removed),
        }

        def run(first: Phase, rows: Sequence[ClaimedWork]) -> None:
            phases[(rows[0].spec or {}).get(_PHASE, first)].run(rows)

        return {
            WorkKind.CONFIGURE_DRIVER: partial(run, Phase.APPLY),
            WorkKind.UNINSTALL_DRIVER: partial(run, Phase.CONFIRM),
        }

    def _ask_reload(self, row: ClaimedWork, agent: HostAgent) -> Outcome | Waiting:
        """Ask the agent to execute itself again, until another epoch shows that it has."""
        if agent.epoch != (row.spec or {})["epoch"]:
            return Outcome(row.uuid)
        self.agents.request(agent.service_host, Reload(agent.epoch))
        return Waiting()

    def _applied(self, row: ClaimedWork, agent: HostAgent, answer: Discovered) -> None:
        spec = row.spec or {}
        refused = any(not driver.accepted for driver in answer.drivers)
        # A driver that is disabled need not be ready.
        checked = spec["enabled"] or refused
        result = host_result(row, answer if checked else Discovered(answer.request_key))
        if spec["settings"] and refused:
            more = {"result": result.result, "error": result.error}
            self._enter(Phase.UNDO, row, agent, answer, more=more)
        else:
            self.query.end(row, result)

    def _undone(self, row: ClaimedWork, agent: HostAgent, answer: Discovered) -> None:
        """End the operation with the error, now that the host is as before."""
        spec = row.spec or {}
        result = HostResult(spec["host"], ResultState.FAILED, spec["result"], spec["error"])
        self.query.end(row, result, self._remove_new)

    def _undo_request(self, tx: Transaction, row: ClaimedWork, host_id: int) -> None:
        self._restore_settings(tx, row, host_id)
        self._remove_new(tx, row, host_id)

    def _restore_settings(self, tx: Transaction, row: ClaimedWork, host_id: int) -> None:
        """Request the earlier settings again, unless a later request has changed them."""
        spec = row.spec or {}
        name, settings = spec["driver"], spec["settings"]
        previous = spec["previous"] or {"requested": None, "enabled": True, "options": None}
        hosts.bump_desired_generation(tx, host_id)
        for driver in drivers.on_hosts(tx, name, [host_id]):
            if all(getattr(driver, key) == value for key, value in settings.items()):
                drivers.set_requested(tx, host_id, name, {key: previous[key] for key in settings})

    def _remove_new(self, tx: Transaction, row: ClaimedWork, host_id: int) -> None:
        """Remove the row of a driver that this request has added and that was never loaded."""
        spec = row.spec or {}
        if spec["previous"] is not None:
            return
        for driver in drivers.on_hosts(tx, spec["driver"], [host_id]):
            if driver.requested is None and driver.state != DriverState.READY.value:
                drivers.remove_driver(tx, host_id, driver.name)

    def _undo_uninstall(self, tx: Transaction, row: ClaimedWork, host_id: int) -> None:
        hosts.bump_desired_generation(tx, host_id)
        spec = row.spec or {}
        enabled = drivers.return_to_service(tx, host_id, spec["driver"], spec["enabled_devices"])
        work.record(tx, row, _device_entries(enabled, DeviceStatus.ENABLED.value))

    @retried
    def _drain(self, row: ClaimedWork, agent: object) -> Outcome | Waiting:
        """Check that all units of the driver are released; then its devices are lost."""
        if row.host_id is None:
            return Outcome(row.uuid, fault=HOST_REMOVED)
        name, host_id = (row.spec or {})["driver"], row.host_id
        with self.queue.checkpoint([row]) as tx:
            hosts.bump_desired_generation(tx, host_id)
            drivers.lock_handles(tx, [host_id], name)
            users = drivers.arqs(tx, [host_id], name)
            force = bool((row.spec or {}).get(_FORCE))
            remaining = len(users) or drivers.count_unreleased(tx, host_id, name, force=force)
            if not remaining:
                lost = drivers.mark_lost(tx, host_id, name)
                work.record(tx, row, _device_entries(lost, LOST))
                settings = {"requested": False, "enabled": False, "options": None}
                drivers.set_requested(tx, host_id, name, settings)
        if not remaining:
            return Outcome(row.uuid)
        if row.overdue:
            return Outcome(row.uuid, fault=OVERDUE)
        what = "accelerator request(s) that use it" if users else "unit(s) to be released"
        return self.query.wait(row, ResultState.RUNNING, f"it waits for {remaining} {what}")

    @retried
    def _remove(self, row: ClaimedWork, agent: HostAgent | None) -> Outcome | Waiting:
        """Check that the last device of the driver has left Placement, and so the database."""
        if row.host_id is None:
            return Outcome(row.uuid, fault=HOST_REMOVED)
        name, host_id = (row.spec or {})["driver"], row.host_id
        with self.queue.db.reader() as tx:
            remaining = drivers.count_devices(tx, host_id, name)
            obstacles = drivers.removal_errors(tx, host_id, name)
        if not remaining:
            return Outcome(row.uuid)
        if row.overdue:
            return Outcome(row.uuid, fault=OVERDUE)
        if agent is not None:
            self.agents.cast(agent.service_host, DesiredChanged())
        reason = "; ".join(obstacles) or f"{remaining} device(s) have to leave Placement"
        return self.query.wait(row, ResultState.RUNNING, reason)

    def _removed(self, row: ClaimedWork, agent: HostAgent | None, outcome: Outcome) -> None:
        self.query.end(row, HostResult((row.spec or {})["host"], ResultState.SUCCEEDED, {}))

    @retried
    def _enter(
        self,
        phase: Phase,
        row: ClaimedWork,
        agent: HostAgent | None,
        answer: Answer,
        *,
        step: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the next phase, with ``more`` for it, and run it at once.

        ``step`` is the step that the operation has reached then.
        """
        with self.queue.checkpoint([row]) as tx:
            if phase is Phase.UNDO and row.host_id is not None:
                self._restore_settings(tx, row, row.host_id)
            if step is not None:
                operations.add_step(tx, row.operation_id, step)
            work.set_spec(tx, row, {**(row.spec or {}), **(more or {}), _PHASE: phase})
        self.queue.reschedule([row], None, pause_ms=1)
        self.wake()

# SPDX-License-Identifier: Apache-2.0
"""Install, update and remove drivers of hosts while their agents run.

A request is stored and goes to the agents with the desired state. An agent loads the driver and
reports it. If the agent cannot, the request is rolled back and the earlier driver stays.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.operations import discovery
from cyborg.conductor.operations.discovery import (
    HOST_REMOVED,
    OVERDUE,
    agent_step,
    host_result,
    query,
)
from cyborg.conductor.operations.operations import Task, begin, check_agents, choose_hosts
from cyborg.conductor.tasks.queue import Handler
from cyborg.conductor.tasks.workflow import STEP, Run, Step, To, Waiting, Workflow
from cyborg.db import dirty_units, drivers, events, hosts, operations, work
from cyborg.db.drivers import ChangedDevice
from cyborg.db.hosts import HostAgent
from cyborg.db.models import Device, Driver
from cyborg.db.transaction import Transaction
from cyborg.model.device import LOST, DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, Outcome, WorkKind
from cyborg.rpc.verbs import InstallDriver, Reload, UninstallDriver, UpdateDriver

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

#: The key in the spec of an uninstall that does not wait for units in quarantine.
_FORCE = "force"


class Configure(StrEnum):
    """The steps of an install or update. Each may be repeated without harm."""

    #: An update without a change begins here: the agent executes itself again.
    RELOAD = "reload"
    #: The agent follows the request.
    APPLY = "apply"
    #: It could not, so the request is rolled back.
    UNDO = "undo"


class Uninstall(StrEnum):
    """The steps of an uninstall. Each may be repeated without harm."""

    #: The agent shows that it knows the request.
    CONFIRM = "confirm"
    #: The last unit is released.
    DRAIN = "drain"
    #: The agent unloads the driver.
    UNLOAD = "unload"
    #: The last device leaves Placement, and so the database.
    REMOVE = "remove"


@handles(InstallDriver)
def install(ctx: Conductor, c: InstallDriver) -> Operation:
    """Have hosts (None: all that are up) load a driver, now and whenever they start.

    ``driver`` is a name, or the uuid of one host's row. Raises NotFound, Unavailable, Conflict.
    """

    def plan(tx: Transaction) -> list[Task]:
        name, only_host_id = _name(tx, c.driver)
        wait = c.wait or only_host_id is not None
        chosen = choose_hosts(ctx, tx, c.hosts, wait=wait)
        if only_host_id is not None:
            chosen = [host for host in chosen if host.id == only_host_id]
            check_agents(chosen, wait=c.wait)
        if not chosen:
            raise exception.Conflict(reason=f"Driver {c.driver} is on none of the requested hosts.")
        _check_not_being_uninstalled(tx, chosen, name)
        settings: dict[str, Any] = {"requested": True, "enabled": True}
        if c.options is not None:
            settings["options"] = dict(c.options)
        return _request(tx, INSTALL, chosen, name=name, settings_of=lambda row: settings)

    return begin(ctx, c, INSTALL, plan, wait=c.wait)


@handles(UpdateDriver)
def update(ctx: Conductor, c: UpdateDriver) -> Operation:
    """Change options of a driver (None: as the host has it), enable or disable it.

    Without a change the agents execute themselves again, with the code that is installed then.
    Raises NotFound, Unavailable, and Conflict naming the ARQs when a driver in use is to be
    disabled.
    """

    options, enabled = c.options, c.enabled

    def plan(tx: Transaction) -> list[Task]:
        name, chosen = _installed(ctx, tx, c.driver, wait=c.wait)
        _check_not_being_uninstalled(tx, chosen, name)
        if options is None and enabled is None:
            rows = drivers.on_hosts(tx, name, [host.id for host in chosen])
            stays_enabled = {row.host_id: row.enabled for row in rows}
            _record(tx, UPDATE, chosen, rows)
            spec = {"driver": name, "settings": {}, STEP: Configure.RELOAD, "previous": {}}
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
            _check_unused(tx, chosen, name, _DISABLED)

        def settings_of(row: Driver | None) -> dict[str, Any]:
            settings: dict[str, Any] = (
                {} if enabled is None else {"requested": True, "enabled": enabled}
            )
            if options is not None:
                merged = {**((row and row.options) or {}), **options}
                settings["options"] = {
                    key: value for key, value in merged.items() if value is not None
                }
            return settings

        return _request(tx, UPDATE, chosen, name=name, settings_of=settings_of)

    return begin(ctx, c, UPDATE, plan, wait=c.wait)


@handles(UninstallDriver)
def uninstall(ctx: Conductor, c: UninstallDriver) -> Operation:
    """Remove a driver from its hosts; its devices leave Placement and the database.

    The devices are reserved at once. While the driver is in use this raises Conflict naming the
    ARQs; with ``drain`` the driver is removed when the last unit is released instead. The same
    is true of units that are not cleaned, unless ``force`` is set. Raises NotFound, Unavailable
    as well.
    """

    def plan(tx: Transaction) -> list[Task]:
        name, chosen = _installed(ctx, tx, c.driver, wait=c.wait)
        _check_not_being_uninstalled(tx, chosen, name)
        for host in chosen:
            tx.publish(host.id, host.service_host)
        host_ids = [host.id for host in chosen]
        drivers.lock_handles(tx, host_ids, name)
        if not c.drain:
            _check_unused(tx, chosen, name, _UNINSTALLED)
        if c.force or not c.drain:
            own = Device.host_id.in_(host_ids), Device.driver == name
            dirty_units.check_clean(tx, *own, force=c.force)
        enabled_devices = drivers.enabled_devices(tx, host_ids, name)
        reserved = drivers.reserve(tx, host_ids, name, _REASON)
        _record(tx, UNINSTALL, chosen, drivers.on_hosts(tx, name, host_ids))
        entries = _device_entries(reserved, DeviceStatus.MAINTAINING.value)
        events.record(tx, entries)
        unlimited = c.drain or c.wait
        spec = {"driver": name, "enabled_devices": enabled_devices, _FORCE: bool(c.force)}
        subject = {"driver": name}
        return [
            Task(host, WorkKind.UNINSTALL_DRIVER, spec, unlimited=unlimited, subject=subject)
            for host in chosen
        ]

    return begin(ctx, c, UNINSTALL, plan, wait=c.wait)


def _name(tx: Transaction, key: str) -> tuple[str, int | None]:
    """Return the driver name for a key, and the host id when the key is the uuid of a row."""
    try:
        uuid = str(UUID(key))
    except ValueError:
        return key, None
    rows = drivers.named(tx, uuid)
    if not rows:
        raise exception.NotFound(noun="Driver", key=key)
    return rows[0].name, rows[0].host_id


def _installed(
    ctx: Conductor, tx: Transaction, key: str, *, wait: bool
) -> tuple[str, list[HostAgent]]:
    """Return the name and the hosts of an installed driver.

    Raises NotFound, Conflict (installed nowhere), Unavailable (an agent is down).
    """
    name, only_host_id = _name(tx, key)
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
    existing = choose_hosts(ctx, tx, None, wait=True)
    chosen = [host for host in existing if host.id in host_ids]
    check_agents(chosen, wait=wait)
    return name, chosen


def _check_not_being_uninstalled(tx: Transaction, chosen: Sequence[HostAgent], name: str) -> None:
    """Raise Conflict while the driver is being uninstalled."""
    if drivers.is_uninstalling(tx, [host.id for host in chosen], name):
        raise exception.Conflict(reason=f"Driver {name} is being uninstalled.")


def _check_unused(tx: Transaction, chosen: Sequence[HostAgent], name: str, action: str) -> None:
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
    tx: Transaction,
    verb: str,
    chosen: Sequence[HostAgent],
    *,
    name: str,
    settings_of: Callable[[Driver | None], dict[str, Any]],
) -> list[Task]:
    """Store the requested settings of each host; the work keeps those before for a rollback."""
    for host in chosen:
        tx.publish(host.id, host.service_host)
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
                    STEP: Configure.APPLY,
                    "settings": settings,
                    "previous": previous,
                    "enabled": settings.get("enabled", row is None or row.enabled),
                },
                subject={"driver": name},
            )
        )
    _record(tx, verb, chosen, drivers.on_hosts(tx, name, host_ids))
    return tasks


def _record(
    tx: Transaction,
    verb: str,
    chosen: Sequence[HostAgent],
    rows: Collection[Driver],
) -> None:
    names = {host.id: host.name for host in chosen}
    entries = [
        events.Entry("driver", row.uuid, verb, hostname=names[row.host_id], reason=row.name)
        for row in rows
    ]
    events.record(tx, entries)


def _check_options(
    host: HostAgent, name: str, row: Driver | None, options: Mapping[str, str]
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


def _ask_reload(ctx: Conductor, run: Run[HostAgent]) -> Outcome | Waiting:
    """Ask the agent to execute itself again, until another epoch shows that it has."""
    agent = run.subject
    if agent.epoch != run.spec["epoch"]:
        return Outcome(run.row.uuid)
    ctx.agents.request(agent.service_host, Reload(agent.epoch))
    return Waiting()


def _applied(ctx: Conductor, run: Run[HostAgent], tx: Transaction, answer: Discovered) -> To | None:
    """End the operation, or request the earlier settings again if the agent cannot follow."""
    spec = run.spec
    refused = any(not driver.accepted for driver in answer.drivers)
    # A driver that is disabled need not be ready.
    checked = spec["enabled"] or refused
    result = host_result(run, answer if checked else Discovered(answer.request_key))
    if spec["settings"] and refused:
        _restore_settings(run, tx)
        return To(Configure.UNDO, {"result": result.result, "error": result.error})
    discovery.end(run, tx, result)
    return None


def _undone(ctx: Conductor, run: Run[HostAgent], tx: Transaction, _answer: Discovered) -> None:
    """End the operation with the error, now that the host is as before."""
    spec = run.spec
    _remove_new(run, tx)
    result = HostResult(spec["host"], ResultState.FAILED, spec["result"], spec["error"])
    discovery.end(run, tx, result)


def _undo_request(run: Run[HostAgent], tx: Transaction) -> None:
    _restore_settings(run, tx)
    _remove_new(run, tx)


def _restore_settings(run: Run[HostAgent], tx: Transaction) -> None:
    """Request the earlier settings again, unless a later request has changed them."""
    spec, host = run.spec, run.subject
    name, settings = spec["driver"], spec["settings"]
    previous = spec["previous"] or {"requested": None, "enabled": True, "options": None}
    tx.publish(host.id, host.service_host)
    for driver in drivers.on_hosts(tx, name, [host.id]):
        if all(getattr(driver, key) == value for key, value in settings.items()):
            drivers.set_requested(tx, host.id, name, {key: previous[key] for key in settings})


def _remove_new(run: Run[HostAgent], tx: Transaction) -> None:
    """Remove the row of a driver that this request has added and that was never loaded."""
    spec, host_id = run.spec, run.subject.id
    if spec["previous"] is not None:
        return
    for driver in drivers.on_hosts(tx, spec["driver"], [host_id]):
        if driver.requested is None and driver.state != DriverState.READY.value:
            drivers.remove_driver(tx, host_id, driver.name)


def _undo_uninstall(run: Run[HostAgent], tx: Transaction) -> None:
    spec, host = run.spec, run.subject
    tx.publish(host.id, host.service_host)
    enabled = drivers.return_to_service(tx, host.id, spec["driver"], spec["enabled_devices"])
    work.record(tx, run.row, _device_entries(enabled, DeviceStatus.ENABLED.value))


def _drain(
    ctx: Conductor, run: Run[None], tx: Transaction, outcome: Outcome
) -> Waiting | Outcome | None:
    """Wait until all units of the driver are released; then its devices are lost."""
    name, host_id, force = run.spec["driver"], run.row.host_id, bool(run.spec.get(_FORCE))
    if host_id is None:
        return replace(outcome, fault=HOST_REMOVED)
    # This is repeated while units are in use, and the host is only published at the end.
    hosts.lock(tx, host_id)
    drivers.lock_handles(tx, [host_id], name)
    users = drivers.arqs(tx, [host_id], name)
    remaining = len(users) or drivers.count_unreleased(tx, host_id, name, force=force)
    if remaining:
        what = "accelerator request(s) that use it" if users else "unit(s) to be released"
        return _wait(run, tx, f"it waits for {remaining} {what}")
    lost = drivers.mark_lost(tx, host_id, name)
    work.record(tx, run.row, _device_entries(lost, LOST))
    settings = {"requested": False, "enabled": False, "options": None}
    drivers.set_requested(tx, host_id, name, settings)
    tx.publish(host_id)
    return None


def _remove(
    ctx: Conductor, run: Run[HostAgent | None], tx: Transaction, outcome: Outcome
) -> Waiting | Outcome | None:
    """End the operation when the last device of the driver has left Placement and the database."""
    name, host_id = run.spec["driver"], run.row.host_id
    if host_id is None:
        return replace(outcome, fault=HOST_REMOVED)
    remaining = drivers.count_devices(tx, host_id, name)
    if not remaining:
        discovery.end(run, tx, HostResult(run.spec["host"], ResultState.SUCCEEDED, {}))
        return None
    if run.subject is not None:
        tx.notify_agent(run.subject.service_host)
    obstacles = drivers.removal_errors(tx, host_id, name)
    return _wait(run, tx, "; ".join(obstacles) or f"{remaining} device(s) have to leave Placement")


def _wait(run: Run[Any], tx: Transaction, reason: str) -> Waiting | Outcome:
    """Show what an uninstall waits for; it fails at its deadline."""
    if run.row.overdue:
        return Outcome(run.row.uuid, fault=OVERDUE)
    result = HostResult(run.spec["host"], ResultState.RUNNING, error=reason)
    # All hosts of the operation lock its row for that.
    existing = operations.result_of(tx, run.row.operation_id, result.host)
    if existing != (result.state.value, reason):
        operations.update_result(tx, run.row.operation_id, result)
    return Waiting()


#: The workflows of work that configures and uninstalls drivers.
WORK: Final[Mapping[WorkKind, Handler]] = {
    WorkKind.CONFIGURE_DRIVER: Workflow(
        {
            Configure.RELOAD: agent_step(_ask_reload, next=Configure.APPLY),
            Configure.APPLY: agent_step(
                query, end=_applied, undo=_undo_request, reached="reloaded"
            ),
            Configure.UNDO: agent_step(query, end=_undone, undo=_undo_request),
        }
    ),
    WorkKind.UNINSTALL_DRIVER: Workflow(
        {
            Uninstall.CONFIRM: agent_step(query, next=Uninstall.DRAIN, undo=_undo_uninstall),
            Uninstall.DRAIN: Step(end=_drain, next=Uninstall.UNLOAD, fail=discovery.fail),
            Uninstall.UNLOAD: agent_step(query, next=Uninstall.REMOVE, reached="free"),
            Uninstall.REMOVE: Step(read=discovery.agent_of, end=_remove, fail=discovery.fail),
        }
    ),
}

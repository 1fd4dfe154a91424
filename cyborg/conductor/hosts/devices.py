# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on devices: change them, free units in quarantine, and load images.

``lost_devices`` removes devices, ``operations.created_accelerators`` creates them.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cyborg import exception
from cyborg.conductor import device_health
from cyborg.conductor.arqs import images, release
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.tasks import set_up
from cyborg.db import (
    attach_handles,
    created_accelerators,
    deployables,
    devices,
    events,
    lost_devices,
    work,
)
from cyborg.db.devices import AgentDevice
from cyborg.db.engine import retried
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin, changed_labels
from cyborg.model.cleaning import CleanLevel, CleanRecord, CleanResult
from cyborg.model.device import MOVES, DeviceEvent, DeviceStatus
from cyborg.model.notification import UNIT_FREED
from cyborg.model.probation import HealthOrder
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import ProgramDeployable, SetDeviceStatus, UpdateDevice

LOG = logging.getLogger(__name__)

#: Milliseconds until a programming counts as failed when Glance or the host does not answer.
_PROGRAM_DEADLINE_MS = 15 * 60 * 1000
_SUPERSEDED = "another image was ordered before this one was known to be loaded"


@handles(SetDeviceStatus)
def set_status(ctx: Conductor, c: SetDeviceStatus) -> None:
    """Set the status of a device; see ``update``."""
    update(ctx, UpdateDevice(*c.origin, c.uuid, c.status, {}, None))


@handles(UpdateDevice)
@retried
def update(ctx: Conductor, c: UpdateDevice) -> None:
    """Set status, labels, health and facts, all or none; a label of None is removed.

    A device that must be set up first is ``installing`` until its host has done that. After
    the commit no unit of a disabled device is bound; Placement follows when the agent has
    fetched its desired state. ``reason`` is stored with a status that takes the device out of
    service. ``health`` has faults ignored for a time, or releases a device from probation,
    from parking, and from the ignoring. ``facts`` are the model and the traits of a device that
    an operator created. With ``project``, ARQs of this project must hold units of the device,
    and only labels may change. ``free_unit`` is the key of a unit in quarantine, which the
    operator has cleaned: it is free, and its host is not asked to clean it again.

    Raises NotFound, Forbidden, Invalid (too many labels), Conflict (facts of a discovered
    device, a unit that is not in quarantine, a drain of a device that is not in service) and
    DeviceInUse (a set-up while instances use the device).
    """
    status, labels, facts, free_unit, health = c.status, c.labels, c.facts, c.free_unit, c.health
    with ctx.db.writer(*c.origin) as tx:
        row = devices.with_agent(tx, c.uuid)
        if row is None or (c.project and not devices.holds(tx, c.project, row.id)):
            raise exception.NotFound(noun="Device", key=c.uuid)
        given: dict[str, object] = {"status": status, "health": health, **facts}
        given["units"] = free_unit
        names = [name for name, value in given.items() if value is not None]
        if c.project and names:
            what = ", ".join(names)
            raise exception.Forbidden(reason=f"Only operators change the {what} of a device.")
        if events.is_repeated(tx, c.request_key):
            # A repeated request changes nothing more.
            status, labels, facts, free_unit, health = None, {}, {}, None, None
        if facts:
            _set_facts(tx, row, facts)
        if free_unit is not None:
            _free(tx, row, free_unit)
        new_status = None
        if status is not None:
            new_status = _set_status(tx, row, status, reason=c.reason)
        changes = [] if health is None else [_order_health(ctx, tx, row, health)]
        if labels:
            devices.set_labels(tx, row.id, changed_labels(devices.lock_labels(tx, row.id), labels))
        done = {"changed": facts, "labelled": labels, UNIT_FREED: free_unit}
        actions = [new_status] if new_status else []
        actions += [action for action, change in done.items() if change]
        entries = [
            events.Entry(
                "device",
                c.uuid,
                action,
                hostname=row.hostname,
                reason={new_status: c.reason, UNIT_FREED: f"unit {free_unit}"}.get(action),
            )
            for action in actions
        ]
        news = device_health.News.of(changes)
        entries += news.entries(tx, row.host_id, row.hostname)
        events.record(tx, entries)
    news.log(row.hostname)
    for action in actions:
        LOG.info("Device %s on host %s: %s by an operator", c.uuid, row.hostname, action)


def _set_facts(tx: Transaction, row: AgentDevice, facts: Mapping[str, Any]) -> None:
    """Store what an operator tells of a device; raises Conflict for a discovered one."""
    if row.origin != Origin.OPERATOR:
        raise exception.Conflict(
            reason=f"Device {row.uuid} was discovered: driver {row.driver} reports its "
            f"{' and '.join(facts)}."
        )
    tx.publish(row.host_id, row.service_host)
    if "model" in facts:
        devices.set_model(tx, row.id, facts["model"])
    if "traits" in facts:
        created_accelerators.set_traits(tx, row.id, facts["traits"])


def _free(tx: Transaction, row: AgentDevice, unit: str) -> None:
    """Make a unit in quarantine free; raises Conflict if there is no such unit."""
    tx.publish(row.host_id, row.service_host)
    handle_id = attach_handles.lock_quarantined(tx, row.id, unit)
    handle = None if handle_id is None else deployables.tasks(tx, [handle_id])[handle_id]
    if handle is None:
        raise exception.Conflict(
            reason=f"Device {row.uuid} has no unit {unit} in quarantine; accelerator-show "
            "lists its units."
        )
    work.cancel_release(tx, handle.id)
    release.finish(tx, handle, clean=True)
    level = CleanLevel((handle.clean_record or {}).get("level", CleanLevel.NONE))
    record = CleanRecord(CleanResult.OVERRIDDEN, level).columns()
    attach_handles.record_cleaning(tx, handle.id, record)


def _order_health(
    ctx: Conductor, tx: Transaction, row: AgentDevice, order: HealthOrder
) -> device_health.HealthChange:
    """Store an operator's order about the health of a device."""
    tx.publish(row.host_id, row.service_host)
    before = device_health.state_of(devices.with_agent(tx, row.uuid) or row)
    if order.ignore_for is None:
        after = before.released(tx.now_ms, ctx.settings.health_rules)
    else:
        after = before.ignored(tx.now_ms + order.ignore_for * 1000)
    change = device_health.HealthChange(row.uuid, row.driver, before, after)
    device_health.write(tx, [change])
    return change


def _set_status(
    tx: Transaction, row: AgentDevice, status: DeviceStatus, *, reason: str | None
) -> str | None:
    """Move the device; return its new status, None when its set-up is already in progress."""
    tx.publish(row.host_id, row.service_host)
    # The set-up of a device in service would interrupt the instances that use it.
    in_service = row.status in (DeviceStatus.ENABLED, DeviceStatus.INSTALLING)
    if status is not DeviceStatus.ENABLED:
        # The binds that have begun end first.
        lost_devices.lock_handles_of_device(tx, row.id)
    if status is DeviceStatus.DRAINING:
        event = DeviceEvent.DRAIN
    elif status is not DeviceStatus.ENABLED:
        event = DeviceEvent.DISABLE
        work.cancel_install(tx, row.id)
    elif row.unready and not in_service:
        event = DeviceEvent.INSTALL
        arqs = devices.arqs_of(tx, row.id)
        if arqs:
            raise exception.DeviceInUse(uuid=row.uuid, arqs=", ".join(arqs))
    else:
        event = DeviceEvent.ENABLE
    if not devices.move(tx, row.id, event, reason):
        if event is DeviceEvent.DRAIN:
            raise exception.Conflict(
                reason=f"Device {row.uuid} is {row.status}: it is not in service, so that there is "
                "nothing to drain."
            )
        return None
    if event is DeviceEvent.INSTALL:
        set_up.begin(tx, [row], tx.request_key)
    return MOVES[event].target.value


@handles(ProgramDeployable)
@retried
def program(ctx: Conductor, c: ProgramDeployable) -> None:
    """Add work that loads an image; raises NotFound, CannotProgram, DeviceInUse.

    An earlier request whose result is not yet known counts as failed: the last request wins.
    """
    with ctx.db.writer(*c.origin) as tx:
        deployable = deployables.by_uuid(tx, c.uuid)
        if deployable is None:
            raise exception.NotFound(noun="Deployable", key=c.uuid)
        if not deployable.programmable:
            raise exception.CannotProgram(uuid=c.uuid, driver=deployable.driver)
        if not events.subjects_of(tx, c.request_key, "program", [c.uuid]):
            images.check_unused(tx, deployable)
            task = {
                "kind": WorkKind.PROGRAM,
                "deployable_id": deployable.id,
                "host_id": deployable.host_id,
                "spec": {"deployable": c.uuid, "image_uuid": c.image_uuid},
                "operation_id": c.request_key,
                "deadline_in": _PROGRAM_DEADLINE_MS,
            }
            work.add(tx, [task])
            entry = events.Entry(
                "deployable",
                c.uuid,
                "program",
                hostname=deployable.hostname,
                reason=c.image_uuid,
                device_uuid=deployable.device_uuid,
            )
            events.record(tx, [entry])
            # Their results might come in another order than that in which the host loaded them.
            for older in work.supersede_program(tx, deployable.id, c.request_key):
                failed = replace(entry, action="program failed", reason=_SUPERSEDED)
                events.record_for(tx, [failed], request_key=older)

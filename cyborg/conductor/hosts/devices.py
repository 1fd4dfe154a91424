# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on devices: enable, disable, update, program and remove them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import images
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.tasks import set_up
from cyborg.db import created_accelerators, deployables, devices, events, hosts, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.attribute import Origin
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import MOVES, DeviceEvent
from cyborg.model.labels import changed
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Milliseconds until a programming counts as failed when Glance or the host does not answer.
_PROGRAM_DEADLINE_MS = 15 * 60 * 1000
_SUPERSEDED = "another image was ordered before this one was known to be loaded"


class DeviceAdmin:
    """Changes devices for operators; it calls ``wake`` when a commit may have added work."""

    def __init__(
        self,
        *,
        db: Database,
        agents: AgentClient,
        lost_devices: LostDevices,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._agents = agents
        self._lost_devices = lost_devices
        self._wake = wake

    def set_status(self, caller: Caller, request_key: str, uuid: str, status: DeviceStatus) -> None:
        """Set the status of a device, until the next such request.

        A device that must be set up first is ``installing`` until its host has done that. After
        the commit no unit of a disabled device is bound; Placement follows when the agent has
        fetched its desired state. Raises NotFound, DeviceInUse (a set-up while instances use it).
        """
        self.update(caller, request_key, uuid, status=status)

    def update(
        self,
        caller: Caller,
        request_key: str,
        uuid: str,
        *,
        status: DeviceStatus | None = None,
        labels: Mapping[str, str | None] = _NOTHING,
        project: str | None = None,
        facts: Mapping[str, Any] = _NOTHING,
        reason: str | None = None,
    ) -> None:
        """Set status, labels and facts, all or none; a label of None is removed.

        ``reason`` is stored with a status that takes the device out of service. ``facts`` are the
        model and the traits of a device that an operator created. With ``project``, ARQs of this
        project must hold units of the device, and only labels may change. Raises NotFound,
        Forbidden, Invalid (too many labels), Conflict (facts of a discovered device), and what
        ``set_status`` raises.
        """
        agent = self._update(
            caller,
            request_key,
            uuid,
            status=status,
            labels=labels,
            project=project,
            facts=facts,
            reason=reason,
        )
        self._wake()
        if agent is not None:
            self._agents.desired_changed(agent)

    @retried
    def _update(
        self,
        caller: Caller,
        request_key: str,
        uuid: str,
        *,
        status: DeviceStatus | None,
        labels: Mapping[str, str | None],
        project: str | None,
        facts: Mapping[str, Any],
        reason: str | None,
    ) -> str | None:
        """Return the agent to notify; None when its desired state has not changed."""
        with self._db.writer() as tx:
            row = devices.of_operator(tx, uuid)
            if row is None or (project and not devices.holds(tx, project, row.id)):
                raise exception.NotFound(noun="Device", key=uuid)
            if project and (status is not None or facts):
                what = ", ".join([*(["status"] if status else []), *facts])
                raise exception.Forbidden(reason=f"Only operators change the {what} of a device.")
            if events.request_known(tx, request_key):
                return None
            if facts:
                self._set_facts(tx, row, facts)
            new_status = (
                None
                if status is None
                else self._set_status(tx, row, status, request_key, reason=reason)
            )
            if labels:
                devices.label(tx, row.id, changed(devices.labels(tx, row.id), labels))
            actions = [new_status] if new_status else []
            actions += ["changed"] if facts else []
            actions += ["labelled"] if labels else []
            entries = [
                events.Entry(
                    "device",
                    uuid,
                    action,
                    hostname=row.hostname,
                    reason=reason if action == new_status else None,
                )
                for action in actions
            ]
            events.record(tx, self._db.now, entries, caller=caller, request_key=request_key)
            agent: str | None = row.service_host
        for action in actions:
            LOG.info("Device %s on host %s: %s by an operator", uuid, row.hostname, action)
        return agent if new_status or facts else None

    def _set_facts(self, tx: sa.Connection, row: Record, facts: Mapping[str, Any]) -> None:
        """Change the facts of a device that an operator created; its agent updates Placement."""
        if row.origin != Origin.OPERATOR:
            raise exception.Conflict(
                reason=f"Device {row.uuid} was discovered: driver {row.driver} reports its "
                f"{' and '.join(facts)}."
            )
        hosts.bump_desired_generation(tx, self._db.now, row.host_id)
        if "model" in facts:
            devices.set_model(tx, row.id, facts["model"])
        if "traits" in facts:
            created_accelerators.set_traits(tx, row.id, facts["traits"])

    def _set_status(
        self,
        tx: sa.Connection,
        row: Record,
        status: DeviceStatus,
        request_key: str,
        *,
        reason: str | None,
    ) -> str | None:
        """Move the device; return its new status, None when its set-up is going on already."""
        hosts.bump_desired_generation(tx, self._db.now, row.host_id)
        event = _event(row, status)
        if event is DeviceEvent.INSTALL:
            _check_unused(tx, row)
        elif event is DeviceEvent.DISABLE:
            work.cancel_install(tx, row.id)
        if not devices.move(tx, row.id, event, reason):
            return None
        if event is DeviceEvent.INSTALL:
            set_up.begin(tx, self._db.now, [row], request_key)
        return MOVES[event].target.value

    def delete(self, caller: Caller, request_key: str, uuid: str) -> None:
        """Begin to remove a device; see ``LostDevices.request_removal``."""
        agent = self._lost_devices.request_removal(caller, request_key, uuid)
        if agent is not None:
            self._agents.desired_changed(agent)

    def program(self, caller: Caller, request_key: str, uuid: str, image_uuid: str) -> None:
        """Add work that loads an image; raises NotFound, CannotProgram, DeviceInUse.

        An earlier order whose result is not yet known counts as failed: the last order wins.
        """
        self._program(caller, request_key, uuid, image_uuid)
        self._wake()

    @retried
    def _program(self, caller: Caller, request_key: str, uuid: str, image_uuid: str) -> None:
        with self._db.writer() as tx:
            deployable = deployables.by_uuid(tx, uuid)
            if deployable is None:
                raise exception.NotFound(noun="Deployable", key=uuid)
            if not deployable.programmable:
                raise exception.CannotProgram(uuid=uuid, driver=deployable.driver)
            if events.done_by(tx, request_key, "program", [uuid]):
                return
            images.check_unused(tx, deployable)
            work.add(
                tx,
                self._db.now,
                [
                    {
                        "kind": WorkKind.PROGRAM,
                        "deployable_id": deployable.id,
                        "host_id": deployable.host_id,
                        "spec": {"deployable": uuid, "image_uuid": image_uuid},
                        "operation_id": request_key,
                        "deadline_in": _PROGRAM_DEADLINE_MS,
                    }
                ],
            )
            entry = events.Entry(
                "deployable",
                uuid,
                "program",
                hostname=deployable.hostname,
                reason=image_uuid,
                device_uuid=deployable.device_uuid,
            )
            events.record(tx, self._db.now, [entry], caller=caller, request_key=request_key)
            # Their results might come in another order than that in which the host loaded them.
            for older in work.supersede_program(tx, deployable.id, request_key):
                failed = replace(entry, action="program failed", reason=_SUPERSEDED)
                events.record(tx, self._db.now, [failed], request_key=older)


def _event(device: Record, status: DeviceStatus) -> DeviceEvent:
    """Return the event of an order; a device in service is not set up while instances use it."""
    if status is not DeviceStatus.ENABLED:
        return DeviceEvent.DISABLE
    in_service = device.status in (DeviceStatus.ENABLED, DeviceStatus.INSTALLING)
    return DeviceEvent.INSTALL if device.unready and not in_service else DeviceEvent.ENABLE


def _check_unused(tx: sa.Connection, device: Record) -> None:
    """Raise DeviceInUse while accelerator requests hold units of a device."""
    held = devices.arqs_of(tx, device.id)
    if held:
        raise exception.DeviceInUse(uuid=device.uuid, arqs=", ".join(held))

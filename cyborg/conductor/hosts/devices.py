# SPDX-License-Identifier: Apache-2.0
"""What operators do to devices: take them out of service, bring them back, program them."""

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
#: How long Glance and the host are asked for before a programming counts as failed.
_PROGRAM_WITHIN_MS = 15 * 60 * 1000
_SUPERSEDED = "another image was ordered before this one was known to be loaded"


class DeviceAdmin:
    """Changes the administrative state; ``wake`` is called when work waits after a commit."""

    def __init__(
        self,
        *,
        db: Database,
        agents: AgentClient,
        retirement: LostDevices,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._agents = agents
        self._retirement = retirement
        self._wake = wake

    def set_status(self, caller: Caller, operation: str, uuid: str, status: DeviceStatus) -> None:
        """Enable a device or put it into maintenance; it holds until the next such order.

        One that has to be set up first is ``installing`` until its host has done that. A disabled
        one is not bound from the commit on; Placement follows when its agent has heard of it.
        Raises NotFound, DeviceInUse (it would be set up under its guests).
        """
        self.update(caller, operation, uuid, status=status)

    def update(
        self,
        caller: Caller,
        operation: str,
        uuid: str,
        *,
        status: DeviceStatus | None = None,
        labels: Mapping[str, str | None] = _NOTHING,
        project: str | None = None,
        facts: Mapping[str, Any] = _NOTHING,
        reason: str | None = None,
    ) -> None:
        """Set status, labels and facts, all or none; a label of None is taken away.

        ``reason`` is kept with a status that takes the device out of service.
        ``facts`` are the model and the traits of a device that an operator created. With
        ``project`` the device must be held by requests of it, and only labels may change. Raises
        NotFound, Forbidden, Invalid (too many labels), Conflict (facts of what was discovered),
        and what ``set_status`` raises.
        """
        agent = self._update(
            caller,
            operation,
            uuid,
            status=status,
            labels=labels,
            project=project,
            facts=facts,
            reason=reason,
        )
        self._wake()
        if agent is not None:
            self._agents.poke(agent)

    @retried
    def _update(
        self,
        caller: Caller,
        operation: str,
        uuid: str,
        *,
        status: DeviceStatus | None,
        labels: Mapping[str, str | None],
        project: str | None,
        facts: Mapping[str, Any],
        reason: str | None,
    ) -> str | None:
        """Answers the agent to poke; None when it has nothing to hear."""
        with self._db.writer() as tx:
            row = devices.of_operator(tx, uuid)
            if row is None or (project and not devices.holds(tx, project, row.id)):
                raise exception.NotFound(noun="Device", key=uuid)
            if project and (status is not None or facts):
                what = ", ".join([*(["status"] if status else []), *facts])
                raise exception.Forbidden(reason=f"Only operators change the {what} of a device.")
            if events.operation_known(tx, operation):
                return None
            if facts:
                self._tell(tx, row, facts)
            now = None if status is None else self._order(tx, row, status, operation, reason=reason)
            if labels:
                kept = changed(devices.labels(tx, row.id), labels)
                devices.label(tx, row.id, kept)
            done = [now] if now else []
            done += ["changed"] if facts else []
            done += ["labelled"] if labels else []
            entries = [
                events.Entry(
                    "device",
                    uuid,
                    one,
                    hostname=row.hostname,
                    reason=reason if one == now else None,
                )
                for one in done
            ]
            events.record(tx, self._db.now, entries, caller=caller, operation=operation)
            agent: str | None = row.service_host
        for one in done:
            LOG.info("Device %s on %s is %s now", uuid, row.hostname, one)
        return agent if now or facts else None

    def _tell(self, tx: sa.Connection, row: Record, facts: Mapping[str, Any]) -> None:
        """Change what an operator told of a device; Placement follows by way of its agent."""
        if row.origin != Origin.OPERATOR:
            raise exception.Conflict(
                reason=f"Device {row.uuid} was discovered: driver {row.driver} tells its "
                f"{' and '.join(facts)}."
            )
        hosts.bump_desired_generation(tx, self._db.now, row.host_id)
        if "model" in facts:
            devices.set_model(tx, row.id, facts["model"])
        if "traits" in facts:
            created_accelerators.set_traits(tx, row.id, facts["traits"])

    def _order(
        self,
        tx: sa.Connection,
        row: Record,
        status: DeviceStatus,
        operation: str,
        *,
        reason: str | None,
    ) -> str | None:
        """Carry out an order; answers the new status, None when a set-up is going on already."""
        hosts.bump_desired_generation(tx, self._db.now, row.host_id)
        event = _event(row, status)
        if event is DeviceEvent.INSTALL:
            _check_unused(tx, row)
        elif event is DeviceEvent.DISABLE:
            work.cancel_install(tx, row.id)
        if not devices.move(tx, row.id, event, reason):
            return None
        if event is DeviceEvent.INSTALL:
            set_up.begin(tx, self._db.now, [row], operation)
        return MOVES[event].target.value

    def delete(self, caller: Caller, operation: str, uuid: str) -> None:
        """Have a device forgotten; see ``LostDevices.forget``."""
        agent = self._retirement.forget(caller, operation, uuid)
        if agent is not None:
            self._agents.poke(agent)

    def program(self, caller: Caller, operation: str, uuid: str, image_uuid: str) -> None:
        """Note that an image is to be loaded; raises NotFound, CannotProgram, DeviceInUse.

        What was to be loaded before, and is not known to be, counts as failed: the last order
        holds.
        """
        self._program(caller, operation, uuid, image_uuid)
        self._wake()

    @retried
    def _program(self, caller: Caller, operation: str, uuid: str, image_uuid: str) -> None:
        with self._db.writer() as tx:
            offer = deployables.by_uuid(tx, uuid)
            if offer is None:
                raise exception.NotFound(noun="Deployable", key=uuid)
            if not offer.programmable:
                raise exception.CannotProgram(uuid=uuid, driver=offer.driver)
            if events.done_by(tx, operation, "program", [uuid]):
                return
            images.check_unused(tx, offer)
            work.add(
                tx,
                self._db.now,
                [
                    {
                        "kind": WorkKind.PROGRAM,
                        "deployable_id": offer.id,
                        "host_id": offer.host_id,
                        "spec": {"deployable": uuid, "image_uuid": image_uuid},
                        "operation_id": operation,
                        "deadline_in": _PROGRAM_WITHIN_MS,
                    }
                ],
            )
            begun = events.Entry(
                "deployable",
                uuid,
                "program",
                hostname=offer.hostname,
                reason=image_uuid,
                device_uuid=offer.device_uuid,
            )
            events.record(tx, self._db.now, [begun], caller=caller, operation=operation)
            # Their ends might come in another order than the host carried them out.
            for older in work.supersede_program(tx, offer.id, operation):
                entry = replace(begun, action="program failed", reason=_SUPERSEDED)
                events.record(tx, self._db.now, [entry], operation=older)


def _event(device: Record, status: DeviceStatus) -> DeviceEvent:
    """What an order means for this device; what is in service is never set up under its guests."""
    if status is not DeviceStatus.ENABLED:
        return DeviceEvent.DISABLE
    served = device.status in (DeviceStatus.ENABLED, DeviceStatus.INSTALLING)
    return DeviceEvent.INSTALL if device.unready and not served else DeviceEvent.ENABLE


def _check_unused(tx: sa.Connection, device: Record) -> None:
    """Raise DeviceInUse while accelerator requests hold units of a device."""
    held = devices.arqs_of(tx, device.id)
    if held:
        raise exception.DeviceInUse(uuid=device.uuid, arqs=", ".join(held))

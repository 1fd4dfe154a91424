# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on devices: enable, disable, update, program and remove them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cyborg import exception
from cyborg.conductor.arqs import images
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.tasks import set_up
from cyborg.db import created_accelerators, deployables, devices, events, hosts, work
from cyborg.db.devices import AgentDevice
from cyborg.db.engine import Database, retried
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin, changed_labels
from cyborg.model.caller import Caller
from cyborg.model.device import MOVES, DeviceEvent, DeviceStatus
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import DesiredChanged

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

    @retried
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

        A device that must be set up first is ``installing`` until its host has done that. After
        the commit no unit of a disabled device is bound; Placement follows when the agent has
        fetched its desired state. ``reason`` is stored with a status that takes the device out of
        service. ``facts`` are the model and the traits of a device that an operator created. With
        ``project``, ARQs of this project must hold units of the device, and only labels may change.

        Raises NotFound, Forbidden, Invalid (too many labels), Conflict (facts of a discovered
        device) and DeviceInUse (a set-up while instances use the device).
        """
        with self._db.writer(caller, request_key) as tx:
            row = devices.with_agent(tx, uuid)
            if row is None or (project and not devices.holds(tx, project, row.id)):
                raise exception.NotFound(noun="Device", key=uuid)
            if project and (status is not None or facts):
                what = ", ".join([*(["status"] if status else []), *facts])
                raise exception.Forbidden(reason=f"Only operators change the {what} of a device.")
            if events.is_repeated(tx, request_key):
                # A repeated request changes nothing more.
                status, labels, facts = None, {}, {}
            if facts:
                if row.origin != Origin.OPERATOR:
                    raise exception.Conflict(
                        reason=f"Device {row.uuid} was discovered: driver {row.driver} reports its "
                        f"{' and '.join(facts)}."
                    )
                hosts.bump_desired_generation(tx, row.host_id)
                if "model" in facts:
                    devices.set_model(tx, row.id, facts["model"])
                if "traits" in facts:
                    created_accelerators.set_traits(tx, row.id, facts["traits"])
            new_status = None
            if status is not None:
                new_status = self._set_status(tx, row, status, reason=reason)
            if labels:
                devices.set_labels(
                    tx, row.id, changed_labels(devices.lock_labels(tx, row.id), labels)
                )
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
            events.record(tx, entries)
        for action in actions:
            LOG.info("Device %s on host %s: %s by an operator", uuid, row.hostname, action)
        self._wake()
        if row.service_host is not None and (new_status or facts):
            self._agents.cast(row.service_host, DesiredChanged())

    def _set_status(
        self, tx: Transaction, row: AgentDevice, status: DeviceStatus, *, reason: str | None
    ) -> str | None:
        """Move the device; return its new status, None when its set-up is already in progress."""
        hosts.bump_desired_generation(tx, row.host_id)
        # The set-up of a device in service would interrupt the instances that use it.
        in_service = row.status in (DeviceStatus.ENABLED, DeviceStatus.INSTALLING)
        if status is not DeviceStatus.ENABLED:
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
            return None
        if event is DeviceEvent.INSTALL:
            set_up.begin(tx, [row], tx.request_key)
        return MOVES[event].target.value

    def delete(self, caller: Caller, request_key: str, uuid: str) -> None:
        """Begin to remove a device; see ``LostDevices.request_removal``."""
        agent = self._lost_devices.request_removal(caller, request_key, uuid)
        if agent is not None:
            self._agents.cast(agent, DesiredChanged())

    @retried
    def program(self, caller: Caller, request_key: str, uuid: str, image_uuid: str) -> None:
        """Add work that loads an image; raises NotFound, CannotProgram, DeviceInUse.

        An earlier request whose result is not yet known counts as failed: the last request wins.
        """
        with self._db.writer(caller, request_key) as tx:
            deployable = deployables.by_uuid(tx, uuid)
            if deployable is None:
                raise exception.NotFound(noun="Deployable", key=uuid)
            if not deployable.programmable:
                raise exception.CannotProgram(uuid=uuid, driver=deployable.driver)
            if not events.subjects_of(tx, request_key, "program", [uuid]):
                images.check_unused(tx, deployable)
                task = {
                    "kind": WorkKind.PROGRAM,
                    "deployable_id": deployable.id,
                    "host_id": deployable.host_id,
                    "spec": {"deployable": uuid, "image_uuid": image_uuid},
                    "operation_id": request_key,
                    "deadline_in": _PROGRAM_DEADLINE_MS,
                }
                work.add(tx, [task])
                entry = events.Entry(
                    "deployable",
                    uuid,
                    "program",
                    hostname=deployable.hostname,
                    reason=image_uuid,
                    device_uuid=deployable.device_uuid,
                )
                events.record(tx, [entry])
                # Their results might come in another order than that in which the host loaded them.
                for older in work.supersede_program(tx, deployable.id, request_key):
                    failed = replace(entry, action="program failed", reason=_SUPERSEDED)
                    events.record_for(tx, [failed], request_key=older)
        self._wake()

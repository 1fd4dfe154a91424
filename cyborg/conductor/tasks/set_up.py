# SPDX-License-Identifier: Apache-2.0
"""Setting devices up: begun by an operator's word or at discovery, carried by work till its end.

A device that is in service and has to be set up again is not touched while a guest may have a unit
of it: it is offered to nobody from then on, and its turn comes when its last ARQ is gone.

The agent is asked with the work's uuid as operation id, so asking again is how one waits. A device
that was taken out of service meanwhile stays as it is.
"""

import logging
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import device_health
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import devices as device_moves
from cyborg.db import events, hosts, lost_devices, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import MOVES, DeviceEvent
from cyborg.model.health import DeviceHealth
from cyborg.model.work import InstallTask, WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: How soon an agent that is still at it is asked again, in milliseconds.
_ASK_AGAIN_MS = 1000
#: How long a host is asked for before a set-up counts as failed; some write whole flash memories.
_WITHIN_MS = 60 * 60 * 1000
#: How soon it is looked again whether a device that guests have is free, in milliseconds.
_LOOK_AGAIN_MS = 5000
#: What stands on work that waits for guests.
_AGAIN = "again"
#: How many ARQs a reason names.
_NAMED = 10
_TIMED_OUT = "the host did not finish the set-up in time"


def begin(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    devices: Iterable[Record],
    operation: str | None,
    *,
    wait: bool = False,
) -> None:
    """Note that devices, which are ``installing`` in this transaction, are to be set up.

    With ``wait`` that is when no guest has them.
    """
    work.add(
        tx,
        now,
        [
            {
                "kind": WorkKind.INSTALL,
                "host_id": one.host_id,
                "deployable_id": one.deployable_id,
                "spec": {"device": one.uuid, _AGAIN: wait},
                "operation_id": operation,
                "deadline_in": None if wait else _WITHIN_MS,
            }
            for one in devices
        ],
    )


def again(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    which: sa.ColumnElement[bool],
    operation: str | None,
) -> list[str]:
    """Begin to set up those of these devices that are in service and need it; answers their uuids.

    The caller has the lock of their host.
    """
    unready = device_moves.unready(tx, which)
    if unready:
        device_moves.move_all(tx, [one.id for one in unready], DeviceEvent.REINSTALL)
        begin(tx, now, unready, operation, wait=True)
    return [one.uuid for one in unready]


class DeviceSetUp:
    """The handler of ``install`` work."""

    def __init__(self, *, db: Database, queue: WorkQueue, agents: AgentClient) -> None:
        self._db = db
        self._queue = queue
        self._agents = agents

    def install(self, rows: Sequence[Record]) -> None:
        """Bring a device from installing to enabled, or to failed with the reason."""
        (row,) = rows
        with self._db.reader() as tx:
            device = device_moves.of_operator(tx, row.spec["device"])
        if device is None or device.status != DeviceStatus.INSTALLING:
            with self._queue.complete(rows):
                return
        if row.spec.get(_AGAIN):
            self._await_guests(row, device)
            return
        if row.overdue or device.service_host is None:
            self._end(row, device, DeviceEvent.FAIL, _TIMED_OUT)
            return
        task = InstallTask(row.uuid, device.driver, device.device_key, device.agent_epoch or 0)
        try:
            outcome = self._agents.install(device.service_host, task)
        except exception.UnknownVerb as fault:
            self._end(row, device, DeviceEvent.FAIL, str(fault))
            return
        if not outcome.done:
            self._queue.reschedule(rows, None, pause_ms=_ASK_AGAIN_MS)
        elif outcome.fault is not None:
            self._end(row, device, DeviceEvent.FAIL, outcome.fault)
        else:
            self._end(row, device, DeviceEvent.FINISH, outcome.note, told=outcome.health)

    def _await_guests(self, row: Record, device: Record) -> None:
        """Have a device set up as soon as no guest has it; one that is ready by itself is left."""
        if not device.unready:
            self._end(row, device, DeviceEvent.FINISH, None)
            return
        with self._db.reader() as tx:
            held = device_moves.arqs_of(tx, device.id)
        if held:
            self._wait(row, device, held)
        else:
            self._begin_free(row, device)

    @retried
    def _wait(self, row: Record, device: Record, held: Sequence[str]) -> None:
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        reason = (
            "It has to be set up again, and accelerator requests have units of it: "
            f"{', '.join(held[:_NAMED])}{more}. It waits for them to be deleted."
        )
        if device.status_reason != reason:
            with self._queue.checkpoint([row]) as tx:
                device_moves.explain(tx, device.id, reason)
            LOG.warning("Device %s on %s: %s", device.uuid, device.hostname, reason)
        self._queue.reschedule([row], reason, pause_ms=_LOOK_AGAIN_MS)

    @retried
    def _begin_free(self, row: Record, device: Record) -> None:
        """Put work that does not wait in the place of this one, unless a bind is faster."""
        with self._queue.complete([row]) as tx:
            lost_devices.lock_handles_of_device(tx, device.id)
            taken = bool(device_moves.arqs_of(tx, device.id))
            begin(tx, self._db.now, [device], row.operation_id, wait=taken)

    @retried
    def _end(
        self,
        row: Record,
        device: Record,
        event: DeviceEvent,
        reason: str | None,
        *,
        told: DeviceHealth | None = None,
    ) -> None:
        status = MOVES[event].target.value
        change = device_health.of_device(device.uuid, device, told) if told is not None else None
        changes = [change] if change is not None else []
        with self._queue.complete([row]) as tx:
            hosts.bump_desired_generation(tx, self._db.now, device.host_id)
            if device_moves.move(tx, device.id, event, reason):
                entry = events.Entry(
                    "device", device.uuid, status, hostname=device.hostname, reason=reason
                )
                # In the same transaction: a device that is faulty is never offered in between.
                device_health.write(tx, self._db.now, changes)
                events.record(
                    tx,
                    self._db.now,
                    [entry, *device_health.entries(changes, device.hostname)],
                    operation=row.operation_id,
                    ordered_by=work.origin(row),
                )
        device_health.log(changes, device.hostname)
        level = logging.INFO if event is DeviceEvent.FINISH else logging.WARNING
        LOG.log(
            level,
            "Device %s on %s is %s now%s",
            device.uuid,
            device.hostname,
            status,
            f": {reason}" if reason else "",
        )
        if device.service_host is not None:
            self._agents.poke(device.service_host)

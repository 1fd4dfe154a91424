# SPDX-License-Identifier: Apache-2.0
"""Set devices up, as ordered by an operator or at discovery, as ``install`` work until its end.

A device that is enabled and must be set up again is not changed while an instance may have a unit
of it. From then on no bind gets its units, and the set-up begins when its last ARQ is deleted.

Each call to the agent carries the uuid of the work as request key, so a repeated call only asks
for the result. A device that an operator disables in the meantime stays disabled.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import device_health
from cyborg.conductor.tasks.queue import AGENT_POLL_MS, WorkQueue
from cyborg.db import devices, events, hosts, lost_devices, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.device import MOVES, DeviceEvent, DeviceStatus
from cyborg.model.health import DeviceHealth
from cyborg.model.work import InstallTask, WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: Milliseconds until a set-up counts as failed; some drivers write whole flash memories.
_DEADLINE_MS = 60 * 60 * 1000
#: Milliseconds between checks whether a device still has ARQs.
_ARQ_POLL_MS = 5000
#: Key in the ``spec`` of work that waits until its device has no ARQs.
_AGAIN = "again"
#: Maximum number of ARQs that a reason names.
_NAMED = 10
_TIMED_OUT = "the host did not finish the set-up in time"


def begin(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Iterable[Record],
    request_key: str | None,
    *,
    wait: bool = False,
) -> None:
    """Add the work that sets devices up; this transaction has made them ``installing``.

    With ``wait`` the work first waits until no ARQ has a unit of its device.
    """
    work.add(
        tx,
        now,
        [
            {
                "kind": WorkKind.SET_UP_DEVICE,
                "host_id": row.host_id,
                "deployable_id": row.deployable_id,
                "spec": {"device": row.uuid, _AGAIN: wait},
                "operation_id": request_key,
                "deadline_in": None if wait else _DEADLINE_MS,
            }
            for row in rows
        ],
    )


def repeat(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    condition: sa.ColumnElement[bool],
    request_key: str | None,
) -> list[str]:
    """Begin the set-up of the enabled devices that match and need it; return their uuids.

    The caller holds the lock of their host.
    """
    unready = devices.needing_set_up(tx, condition)
    if unready:
        devices.move_all(tx, [row.id for row in unready], DeviceEvent.REINSTALL)
        begin(tx, now, unready, request_key, wait=True)
    return [row.uuid for row in unready]


@dataclass(frozen=True, kw_only=True)
class DeviceSetUp:
    """The handler of ``install`` work."""

    db: Database
    queue: WorkQueue
    agents: AgentClient

    def install(self, rows: Sequence[Record]) -> None:
        """Bring a device from installing to enabled, or to failed with the reason.

        A device that is set up again waits until no ARQ has a unit of it.
        """
        (row,) = rows
        with self.db.reader() as tx:
            device = devices.with_agent(tx, row.spec["device"])
        if device is None or device.status != DeviceStatus.INSTALLING:
            with self.queue.complete(rows):
                return
        if row.spec.get(_AGAIN):
            if not device.unready:
                self._end(row, device, DeviceEvent.FINISH, None)
                return
            with self.db.reader() as tx:
                held = devices.arqs_of(tx, device.id)
            if held:
                self._wait(row, device, held)
            else:
                self._begin_unused(row, device)
            return
        if row.overdue or device.service_host is None:
            self._end(row, device, DeviceEvent.FAIL, _TIMED_OUT)
            return
        task = InstallTask(row.uuid, device.driver, device.device_key, device.agent_epoch or 0)
        try:
            outcome = self.agents.install(device.service_host, task)
        except exception.UnknownVerb as fault:
            self._end(row, device, DeviceEvent.FAIL, str(fault))
            return
        if not outcome.done:
            self.queue.reschedule(rows, None, pause_ms=AGENT_POLL_MS)
        elif outcome.fault is not None:
            self._end(row, device, DeviceEvent.FAIL, outcome.fault)
        else:
            self._end(row, device, DeviceEvent.FINISH, outcome.note, reported=outcome.health)

    @retried
    def _wait(self, row: Record, device: Record, held: Sequence[str]) -> None:
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        reason = (
            "It has to be set up again, and accelerator requests have units of it: "
            f"{', '.join(held[:_NAMED])}{more}. It waits for them to be deleted."
        )
        if device.status_reason != reason:
            with self.queue.checkpoint([row]) as tx:
                devices.set_reason(tx, device.id, reason)
            LOG.warning("Device %s on host %s: %s", device.uuid, device.hostname, reason)
        self.queue.reschedule([row], reason, pause_ms=_ARQ_POLL_MS)

    @retried
    def _begin_unused(self, row: Record, device: Record) -> None:
        """Replace this work by work that does not wait, unless a bind is faster."""
        with self.queue.complete([row]) as tx:
            lost_devices.lock_handles_of_device(tx, device.id)
            taken = bool(devices.arqs_of(tx, device.id))
            begin(tx, self.db.now, [device], row.operation_id, wait=taken)

    @retried
    def _end(
        self,
        row: Record,
        device: Record,
        event: DeviceEvent,
        reason: str | None,
        *,
        reported: DeviceHealth | None = None,
    ) -> None:
        """End the work: move the device, store its health, record both and notify the agent."""
        status = MOVES[event].target.value
        change = (
            device_health.of_device(device.uuid, device, reported) if reported is not None else None
        )
        changes = [change] if change is not None else []
        with self.queue.complete([row]) as tx:
            hosts.bump_desired_generation(tx, self.db.now, device.host_id)
            if devices.move(tx, device.id, event, reason):
                entry = events.Entry(
                    "device", device.uuid, status, hostname=device.hostname, reason=reason
                )
                # In the same transaction, so that a faulty device is never offered in between.
                device_health.write(tx, self.db.now, changes)
                events.record(
                    tx,
                    self.db.now,
                    [entry, *device_health.entries(changes, device.hostname)],
                    request_key=row.operation_id,
                    ordered_by=work.origin(row),
                )
        device_health.log(changes, device.hostname)
        LOG.log(
            logging.INFO if event is DeviceEvent.FINISH else logging.WARNING,
            "Set-up of device %s on host %s has ended: the device is %s%s",
            *(device.uuid, device.hostname, status),
            f": {reason}" if reason else "",
        )
        if device.service_host is not None:
            self.agents.desired_changed(device.service_host)

# SPDX-License-Identifier: Apache-2.0
"""Set devices up, as ordered by an operator or at discovery, as ``install`` work until its end.

A device that is enabled and must be set up again is not changed while an instance may have a unit
of it. From then on no bind gets its units, and the set-up begins when its last ARQ is deleted.

The request key of the agent is the uuid of the work. A device that an operator disables in the
meantime stays disabled.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import device_health
from cyborg.conductor.tasks.agent_task import AgentTask, Waiting
from cyborg.conductor.tasks.queue import Handler, WorkQueue
from cyborg.db import devices, events, hosts, lost_devices, work
from cyborg.db.devices import AgentDevice, StoredDevice
from cyborg.db.engine import retried
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.device import MOVES, DeviceEvent, DeviceStatus
from cyborg.model.probation import AT_ONCE, Rules
from cyborg.model.work import InstallTask, Outcome, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import DesiredChanged, Install

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
    tx: Transaction,
    rows: Iterable[StoredDevice],
    request_key: str | None,
    *,
    wait: bool = False,
) -> None:
    """Add the work that sets devices up; this transaction has made them ``installing``.

    With ``wait`` the work first waits until no ARQ has a unit of its device.
    """
    work.add(
        tx,
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


def begin_needed(
    tx: Transaction,
    condition: sa.ColumnElement[bool],
    request_key: str | None,
    *,
    status: DeviceStatus = DeviceStatus.ENABLED,
) -> list[str]:
    """Begin the set-up of the devices that match, have this status and need it; return their uuids.

    The caller holds the lock of their host.
    """
    unready = devices.needing_set_up(tx, condition, status=status)
    if unready:
        again = status is DeviceStatus.ENABLED
        event = DeviceEvent.REINSTALL if again else DeviceEvent.INSTALL
        devices.move_all(tx, [row.id for row in unready], event)
        begin(tx, unready, request_key, wait=again)
    return [row.uuid for row in unready]


@dataclass(frozen=True, kw_only=True)
class DeviceSetUp:
    """The handler of ``install`` work: bring a device from installing to enabled, or to failed."""

    queue: WorkQueue
    agents: AgentClient
    health_rules: Rules = AT_ONCE

    def handlers(self) -> dict[WorkKind, Handler]:
        """Return the handler by its kind of work."""
        task = AgentTask(
            queue=self.queue,
            read=_device,
            ask=self._ask,
            show=self._show,
            end=self._end,
            overdue=_TIMED_OUT,
            refusals={exception.UnknownVerb: ""},
        )
        return {WorkKind.SET_UP_DEVICE: task.run}

    def _ask(self, row: ClaimedWork, device: AgentDevice | None) -> Outcome | Waiting:
        """Have the host set the device up, unless ARQs have units of it or it is ready."""
        if device is None:
            return Outcome(row.uuid)
        if (row.spec or {}).get(_AGAIN):
            with self.queue.db.reader() as tx:
                held = devices.arqs_of(tx, device.id) if device.unready else []
            return self._wait(row, device, held) if held else Outcome(row.uuid)
        if device.service_host is None:
            return Outcome(row.uuid, fault=_TIMED_OUT)
        task = InstallTask(row.uuid, device.driver, device.device_key, device.agent_epoch or 0)
        return self.agents.request(device.service_host, Install(task))

    @retried
    def _show(self, row: ClaimedWork, device: AgentDevice | None, progress: str) -> None:
        """Store how far the set-up is as the reason of the status, if that has changed."""
        if device is not None and device.status_reason != progress:
            with self.queue.checkpoint([row]) as tx:
                devices.set_reason(tx, device.id, progress)

    @retried
    def _wait(self, row: ClaimedWork, device: AgentDevice, held: Sequence[str]) -> Waiting:
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        reason = (
            "It has to be set up again, and accelerator requests have units of it: "
            f"{', '.join(held[:_NAMED])}{more}. It waits for them to be deleted."
        )
        if device.status_reason != reason:
            with self.queue.checkpoint([row]) as tx:
                devices.set_reason(tx, device.id, reason)
            LOG.warning("Device %s on host %s: %s", device.uuid, device.hostname, reason)
        return Waiting(reason, _ARQ_POLL_MS)

    @retried
    def _end(self, row: ClaimedWork, device: AgentDevice | None, outcome: Outcome) -> None:
        """End the work: move the device, store its health, record both and notify the agent.

        Work that has waited until its device is unused is replaced by work that does not wait,
        unless a bind is faster.
        """
        if device is None:
            with self.queue.complete([row]):
                return
        if (row.spec or {}).get(_AGAIN) and device.unready:
            with self.queue.complete([row]) as tx:
                lost_devices.lock_handles_of_device(tx, device.id)
                taken = bool(devices.arqs_of(tx, device.id))
                begin(tx, [device], row.operation_id, wait=taken)
            return
        event = DeviceEvent.FINISH if outcome.fault is None else DeviceEvent.FAIL
        status, reason = MOVES[event].target.value, outcome.fault or outcome.note
        changes: list[device_health.Change] = []
        with self.queue.complete([row]) as tx:
            # This locks the host: its last report may have stored the same health already.
            hosts.bump_desired_generation(tx, device.host_id)
            if outcome.fault is None and outcome.health is not None:
                current = devices.with_agent(tx, device.uuid) or device
                before = device_health.state_of(current)
                after = before.after_report(
                    outcome.health, device_health.read_clock(tx), self.health_rules
                )
                if before != after:
                    changes = [device_health.Change(device.uuid, device.driver, before, after)]
            if devices.move(tx, device.id, event, reason):
                entry = events.Entry(
                    "device", device.uuid, status, hostname=device.hostname, reason=reason
                )
                # In the same transaction, so that a faulty device is never offered in between.
                device_health.write(tx, changes)
                news = device_health.News.of(changes)
                entries = [entry, *news.entries(tx, device.host_id, device.hostname)]
                work.record(tx, row, entries)
        device_health.News.of(changes).log(device.hostname)
        LOG.log(
            logging.INFO if event is DeviceEvent.FINISH else logging.WARNING,
            "Set-up of device %s on host %s has ended: the device is %s%s",
            *(device.uuid, device.hostname, status),
            f": {reason}" if reason else "",
        )
        if device.service_host is not None:
            self.agents.cast(device.service_host, DesiredChanged())


def _device(tx: Transaction, row: ClaimedWork) -> AgentDevice | None:
    """Return the device of the work; None when it is no longer in set-up."""
    device = devices.with_agent(tx, (row.spec or {})["device"])
    return device if device and device.status == DeviceStatus.INSTALLING else None

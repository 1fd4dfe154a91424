# SPDX-License-Identifier: Apache-2.0
"""Set devices up, as ordered by an operator or at discovery, as ``install`` work until its end.

A device that is enabled and must be set up again is not changed while an instance may have a unit
of it. From then on no bind gets its units, and the set-up begins when its last ARQ is deleted.

The request key of the agent is the uuid of the work. A device that an operator disables in the
meantime stays disabled.
"""

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor import device_health
from cyborg.conductor.context import Conductor
from cyborg.conductor.tasks.queue import Handler
from cyborg.conductor.tasks.workflow import STEP, Run, Step, To, Waiting, Workflow
from cyborg.db import devices, events, lost_devices, work
from cyborg.db.devices import AgentDevice, DeviceOfWork
from cyborg.db.transaction import Transaction
from cyborg.model.device import MOVES, DeviceEvent, DeviceStatus
from cyborg.model.work import InstallTask, Outcome, WorkKind
from cyborg.rpc.verbs import Install

LOG = logging.getLogger(__name__)

#: Milliseconds until a set-up counts as failed; some drivers write whole flash memories.
_DEADLINE_MS = 60 * 60 * 1000
#: Milliseconds between checks whether a device still has ARQs.
_ARQ_POLL_MS = 5000
#: Maximum number of ARQs that a reason names.
_NAMED = 10
_TIMED_OUT = "the host did not finish the set-up in time"


class SetUp(StrEnum):
    """The steps of a set-up; work begins with WAIT if ARQs may have units of its device."""

    WAIT = "wait"
    INSTALL = "install"


def begin(
    tx: Transaction,
    rows: Iterable[DeviceOfWork],
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
                "spec": {"device": row.uuid, STEP: SetUp.WAIT if wait else SetUp.INSTALL},
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


def _end_wait(
    ctx: Conductor, run: Run[AgentDevice | None], tx: Transaction, outcome: Outcome
) -> To | Waiting | None:
    """Begin the set-up of a device as soon as no ARQ has a unit of it, if it still needs one."""
    device = run.subject
    if device is None or not device.unready:
        _end(ctx, run, tx, outcome)
        return None
    held = devices.arqs_of(tx, device.id)
    if not held:
        lost_devices.lock_handles_of_device(tx, device.id)
        if devices.arqs_of(tx, device.id):
            # A bind was faster. The next pass says so: devices are locked before handles.
            return Waiting()
        return To(SetUp.INSTALL, deadline_in=_DEADLINE_MS)
    more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
    reason = (
        "It has to be set up again, and accelerator requests have units of it: "
        f"{', '.join(held[:_NAMED])}{more}. It waits for them to be deleted."
    )
    if device.status_reason != reason:
        devices.set_reason(tx, device.id, reason)
        tx.then(LOG.warning, "Device %s on host %s: %s", device.uuid, device.hostname, reason)
    return Waiting(reason, _ARQ_POLL_MS)


def _ask(ctx: Conductor, run: Run[AgentDevice | None]) -> Outcome:
    """Have the host set the device up."""
    row, device = run.row, run.subject
    if device is None:
        return Outcome(row.uuid)
    if device.service_host is None:
        return Outcome(row.uuid, fault=_TIMED_OUT)
    task = InstallTask(row.uuid, device.driver, device.device_key, device.agent_epoch or 0)
    return ctx.agents.request(device.service_host, Install(task))


def _show(run: Run[AgentDevice | None], tx: Transaction, progress: str) -> None:
    """Store how far the set-up is as the reason of the status, if that has changed."""
    device = run.subject
    if device is not None and device.status_reason != progress:
        devices.set_reason(tx, device.id, progress)


def _end(ctx: Conductor, run: Run[AgentDevice | None], tx: Transaction, outcome: Outcome) -> None:
    """Move the device, store its health, record both and publish the host."""
    device = run.subject
    if device is None:
        return
    event = DeviceEvent.FINISH if outcome.fault is None else DeviceEvent.FAIL
    status, reason = MOVES[event].target.value, outcome.fault or outcome.note
    changes: list[device_health.HealthChange] = []
    # This locks the host: its last report may have stored the same health already.
    tx.publish(device.host_id, device.service_host)
    if outcome.fault is None and outcome.health is not None:
        current = devices.with_agent(tx, device.uuid) or device
        before = device_health.state_of(current)
        after = before.after_report(outcome.health, tx.now_ms, ctx.settings.health_rules)
        if before != after:
            changes = [device_health.HealthChange(device.uuid, device.driver, before, after)]
    news = device_health.News.of(changes)
    if devices.move(tx, device.id, event, reason):
        entry = events.Entry("device", device.uuid, status, hostname=device.hostname, reason=reason)
        # In the same transaction, so that a faulty device is never offered in between.
        device_health.write(tx, changes)
        entries = [entry, *news.entries(tx, device.host_id, device.hostname)]
        work.record(tx, run.row, entries)
    tx.then(news.log, device.hostname)
    tx.then(
        LOG.log,
        logging.INFO if event is DeviceEvent.FINISH else logging.WARNING,
        "Set-up of device %s on host %s has ended: the device is %s%s",
        *(device.uuid, device.hostname, status),
        f": {reason}" if reason else "",
    )


def _device(ctx: Conductor, run: Run[None], tx: Transaction) -> AgentDevice | None:
    """Return the device of the work; None when it is no longer in set-up."""
    device = devices.with_agent(tx, run.spec["device"])
    return device if device and device.status == DeviceStatus.INSTALLING else None


#: Bring a device from installing to enabled, or to failed.
WORK: Final[Mapping[WorkKind, Handler]] = {
    WorkKind.SET_UP_DEVICE: Workflow(
        {
            SetUp.INSTALL: Step(
                read=_device,
                ask=_ask,
                show=_show,
                end=_end,
                fail=_end,
                overdue=_TIMED_OUT,
                refusals={exception.UnknownVerb: ""},
            ),
            SetUp.WAIT: Step(read=_device, end=_end_wait, fail=_end),
        }
    )
}

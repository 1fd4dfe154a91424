# SPDX-License-Identifier: Apache-2.0
"""Operators' actions on processes: take a host out of service or back, remove hosts and processes.

A host is removed like a lost device: the conductor deletes its providers in Placement, which
refuses while something is allocated there, and only then removes its rows. The conductor does this
itself because the host's agent is down. The removal of any process is an operation, so that there
is one way to request it and to follow it.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.operations.operations import HostRef, Task, begin, show_progress
from cyborg.conductor.reports.desired_state import children_first
from cyborg.conductor.tasks import queue
from cyborg.conductor.tasks.queue import Handler
from cyborg.db import (
    dirty_units,
    events,
    host_inventory,
    hosts,
    lost_devices,
    operations,
    services,
)
from cyborg.db.engine import retried
from cyborg.db.models import Deployable, Device
from cyborg.db.services import HostProcess
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.process import AGENT, HostStatus
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import RemoveService, SetServiceStatus

LOG = logging.getLogger(__name__)

VERB: Final = "forget"
#: The step of an operation after all providers of the host have been deleted in Placement.
_UNPUBLISHED: Final = "unpublished"
_DISABLED_REASON: Final = "It is being removed."


@handles(SetServiceStatus)
@retried
def set_status(ctx: Conductor, c: SetServiceStatus) -> None:
    """Disable, drain or enable an agent's host, until the next such request.

    After the commit no unit of a host that is out of service is bound; Placement follows when the
    agent has fetched its desired state. Instances keep their units. Raises NotFound, Conflict (not
    an agent).
    """
    with ctx.db.writer(*c.origin) as tx:
        row = services.process(tx, c.uuid)
        if row is None:
            raise exception.NotFound(noun="Process", key=c.uuid)
        if row.binary != AGENT:
            raise exception.Conflict(
                reason=f"Only {AGENT} can be taken out of service; {row.binary} on {row.host} "
                "has no units."
            )
        if not events.subjects_of(tx, c.request_key, c.status, [c.uuid]):
            services.set_status(tx, row.id, c.status, c.reason)
            if row.host_id is not None:
                tx.publish(row.host_id, row.host)
                if c.status is not HostStatus.ENABLED:
                    # The binds that have begun end first.
                    hosts.lock_handles(tx, row.host_id)
            entry = events.Entry(
                "service", row.uuid, c.status.value, hostname=row.host, reason=c.reason
            )
            events.record(tx, [entry])
    LOG.info(
        "%s on host %s is %s by an operator%s",
        *(row.binary, row.host, c.status.value, f": {c.reason}" if c.reason else ""),
    )


@handles(RemoveService)
def request_removal(ctx: Conductor, c: RemoveService) -> Operation:
    """Begin to remove a process that is down and, of an agent, its host with all its devices.

    Raises NotFound, Conflict (it is up, ARQs have units, its removal has begun already, or,
    without ``force``, units are not cleaned).
    """

    def plan(tx: Transaction) -> list[Task]:
        row = services.process(tx, c.uuid)
        if row is None:
            raise exception.NotFound(noun="Process", key=c.uuid)
        if row.silent_ms <= ctx.settings.down_after[row.binary]:
            raise exception.Conflict(
                reason=f"{row.binary} on {row.host} is up; it was seen "
                f"{row.silent_ms // 1000} s ago. Stop it first."
            )
        place = HostRef(row.host)
        if row.host_id is not None:
            place = HostRef(hosts.lock_with_handles(tx, row.host_id), row.host_id)
            _check_unused(tx, row.host_id, row.host)
            dirty_units.check_clean(tx, Device.host_id == row.host_id, force=c.force)
            other = hosts.removal_operation(tx, row.host_id)
            if other is not None:
                raise exception.Conflict(
                    reason=f"{row.host} is being removed already: see operation {other}."
                )
            tx.publish(row.host_id, row.host)
            services.set_status(tx, row.id, HostStatus.DISABLED, _DISABLED_REASON)
        entry = events.Entry("service", row.uuid, "forgotten", hostname=row.host)
        events.record(tx, [entry])
        subject = {"service": row.binary}
        return [
            Task(
                place,
                WorkKind.REMOVE_SERVICE,
                {"service": c.uuid},
                unlimited=True,
                subject=subject,
            )
        ]

    return begin(ctx, c, VERB, plan)


def remove(ctx: Conductor, rows: Sequence[ClaimedWork]) -> None:
    """Delete a host's providers in Placement, then remove its rows from the database.

    The removal is cancelled when the process is up again. Raises Conflict while something is
    allocated, and Unavailable; the work is tried again then, and the operation says why.
    """
    (row,) = rows
    if row.host_id is None:
        _remove_process(ctx, row)
        return
    with ctx.db.reader() as tx:
        agent = services.process(tx, (row.spec or {})["service"])
        deployables = host_inventory.deployables(tx, row.host_id)
        name = hosts.name_of(tx, row.host_id)
    try:
        if not _is_up(ctx, agent):
            _unpublish(ctx, name, deployables)
        _remove_host(ctx, row, row.host_id)
    except exception.CyborgError as error:
        show_progress(ctx, row, ResultState.RUNNING, str(error))
        raise


@retried
def _remove_process(ctx: Conductor, row: ClaimedWork) -> None:
    """Remove a process that has no host of its own."""
    with queue.complete(ctx, [row]) as tx:
        process = services.process(tx, (row.spec or {})["service"])
        up = _is_up(ctx, process)
        if process is not None and not up:
            services.remove(tx, process.id)
        _end(tx, row, f"{process.binary} is up again" if process and up else None)


def _unpublish(ctx: Conductor, name: str, deployables: Sequence[Deployable]) -> None:
    publisher = ctx.publisher()
    try:
        root = publisher.find_root([name])[0]
    except exception.NotFound:
        # The compute's own provider is deleted already.
        root = None
    for deployable in children_first(deployables):
        if deployable.rp_uuid is not None:
            publisher.retire(deployable.rp_uuid, root=root)


@retried
def _remove_host(ctx: Conductor, row: ClaimedWork, host_id: int) -> None:
    with queue.complete(ctx, [row]) as tx:
        name = hosts.lock_with_handles(tx, host_id)
        agent = services.process(tx, (row.spec or {})["service"])
        if agent is not None and _is_up(ctx, agent):
            # The host stays, and its agent publishes it again.
            services.set_status(tx, agent.id, HostStatus.ENABLED)
            tx.publish(host_id, agent.host)
            LOG.warning("Host %s is not removed: its agent is up again", agent.host)
            _end(tx, row, "its agent has come back, and the host stays")
            return
        _check_unused(tx, host_id, name)
        device_uuids = hosts.devices(tx, host_id)
        operations.add_step(tx, row.operation_id, _UNPUBLISHED)
        ended = HostResult(name, ResultState.FAILED, error="the host was removed")
        for uuid in operations.open_for_host(tx, name):
            if uuid != row.operation_id:
                operations.end(tx, uuid, ended)
        hosts.cancel_work(tx, host_id, kept=row.id)
        lost_devices.remove(tx, device_uuids.keys())
        hosts.remove(tx, host_id)
        if agent is not None:
            services.remove(tx, agent.id)
        reason = "its host was removed"
        entries = [
            events.Entry("device", uuid, "retired", hostname=name, reason=reason)
            for uuid in device_uuids.values()
        ]
        events.record(tx, entries)
        _end(tx, row, None, devices=len(device_uuids))
    LOG.info("Host %s removed with %d device(s)", name, len(device_uuids))


def _end(tx: Transaction, row: ClaimedWork, fault: str | None, *, devices: int = 0) -> None:
    state = ResultState.SUCCEEDED if fault is None else ResultState.FAILED
    details = {"devices": devices} if fault is None else None
    result = HostResult((row.spec or {})["host"], state, details, fault)
    operations.end(tx, row.operation_id, result)


def _is_up(ctx: Conductor, process: HostProcess | None) -> bool:
    return process is not None and process.silent_ms <= ctx.settings.down_after[process.binary]


def _check_unused(tx: Transaction, host_id: int, host: str) -> None:
    """Raise Conflict naming the ARQs that have units of a host."""
    arqs = hosts.arqs(tx, host_id)
    if arqs:
        raise exception.Conflict(
            reason=f"Accelerator requests have units of {host}: {', '.join(arqs)}. Delete their "
            "instances first, or evacuate them."
        )


#: The handler of ``remove_service`` work.
WORK: Final[Mapping[WorkKind, Handler]] = {WorkKind.REMOVE_SERVICE: remove}

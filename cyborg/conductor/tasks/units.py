# SPDX-License-Identifier: Apache-2.0
"""Work on units in which a host's agent takes part: prepare, release and program.

The request key of each call to the agent is the uuid of the work.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from cyborg import exception
from cyborg.conductor.arqs import bind, images, release
from cyborg.conductor.context import Conductor
from cyborg.conductor.tasks import queue
from cyborg.conductor.tasks.queue import Handler
from cyborg.conductor.tasks.workflow import Run, Step, Waiting, Workflow
from cyborg.db import (
    arqs,
    attach_handles,
    deployables,
    dirty_units,
    events,
    work,
)
from cyborg.db.deployables import AgentDeployable, AgentHandle, PlacedDeployable, set_image
from cyborg.db.engine import retried
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import MOVES, Event
from cyborg.model.cleaning import (
    CLEAN,
    CLEANING,
    FIRST,
    CleanedStep,
    CleanLevel,
    CleanRecord,
    CleanResult,
    profile_level,
)
from cyborg.model.device import UNRELEASED, DeviceStatus, HandleState
from cyborg.model.device_profile import parse_image
from cyborg.model.notification import UNIT_CLEANED, UNIT_NOT_CLEANED
from cyborg.model.work import HandleTask, Outcome, ProgramTask, WorkKind
from cyborg.rpc.verbs import Prepare, Program, Release

LOG = logging.getLogger(__name__)

#: Number of refused releases after which a handle goes into quarantine. These attempts take about
#: a minute; a fault that ends by itself (a busy card, an instance that is just being deleted) has
#: ended by then.
_MAX_REFUSALS = 8
#: Key in the ``spec`` of release work that counts the refusals.
_REFUSALS = "refusals"
#: The handle of a bind, and when the bind began.
_Begun = tuple[AgentHandle | None, float]
#: A guest that the database does not know may have the unit.
_UNCHECKED = Waiting("its host waits for cyborg-audit --after-restore", pause_ms=0)


def _ask_prepare(ctx: Conductor, run: Run[_Begun]) -> Outcome | Waiting:
    """Have the host prepare a unit, unless it has nothing to do or other work goes first."""
    row, (handle, _) = run.row, run.subject
    if handle is not None and handle.unchecked:
        return _UNCHECKED
    if handle is not None and handle.state in UNRELEASED:
        return Waiting("the release of its attach handle after the last instance is going on")
    if handle is None or handle.arq_uuid != row.arq_uuid:
        return Outcome(row.uuid, fault="its attach handle is gone")
    if parse_image(run.spec) is not None and not handle.programmable:
        fault = f"driver {handle.driver} cannot load images any more"
        return Outcome(row.uuid, fault=fault)
    decision = _decide(ctx, row, handle)
    if decision.waits:
        return Waiting(f"other work on {handle.name} may be loading an image")
    if not handle.prepare and decision.image is None:
        return Outcome(row.uuid)
    try:
        task = _task(row, handle, run.spec)
        left = None if row.left_ms is None else row.left_ms / 1000
        return ctx.agents.request(_agent_of(handle), Prepare(task, decision.image), within=left)
    except exception.UnknownVerb as error:
        if decision.image is None:
            raise
        return Outcome(row.uuid, fault=f"no image can be loaded for a bind yet: {error}")


@retried
def _decide(ctx: Conductor, row: ClaimedWork, handle: AgentHandle) -> images.ImageDecision:
    """Decide what to do now, and mark the ARQ as prepared before its agent is called."""
    decision = images.ImageDecision()
    if handle.prepare or handle.programmable:
        with queue.checkpoint(ctx, [row]) as tx:
            locked = arqs.lock(tx, Arq.uuid == row.arq_uuid)
            if handle.programmable:
                decision = images.decide(tx, row, handle)
            if not decision.waits and (handle.prepare or decision.image is not None):
                for arq in locked:
                    arqs.mark_prepared(tx, arq.id)
    return decision


def _end_prepare(ctx: Conductor, run: Run[_Begun], tx: Transaction, outcome: Outcome) -> None:
    """Bring the bind to Bound or BindFailed, and add the notification of Nova.

    An ARQ that has been unbound or deleted in the meantime is left alone: its work row is gone,
    and the transaction is rolled back.
    """
    row, (handle, begun) = run.row, run.subject
    bound = outcome.fault is None
    event = Event.FINISH if bound else Event.FAIL
    locked = arqs.lock(tx, Arq.uuid == row.arq_uuid)
    if bound and handle is not None and outcome.image is not None:
        set_image(tx, handle.deployable_id, outcome.image)
    for arq in locked:
        if bound and handle is not None and arq.prepared and not handle.prepare:
            # The host has nothing to undo for this bind.
            arqs.mark_prepared(tx, arq.id, prepared=False)
    bind.resolve(
        tx,
        locked,
        event,
        fault=outcome.fault,
        request_key=row.operation_id,
        ordered_by=work.origin(row),
    )
    if not bound:
        tx.then(
            LOG.warning,
            "Bind of ARQ %s to instance %s failed: %s",
            *(row.arq_uuid, row.instance_uuid, outcome.fault),
        )
    for arq in locked if bound else ():
        tx.then(
            LOG.info,
            "ARQ %s %s instance %s on host %s (device %s, handle %s)",
            arq.uuid,
            # A hidden ARQ is bound later, by the attach operation that it belongs to.
            "prepared for" if arq.hidden else "bound to",
            *(arq.instance_uuid, arq.hostname, arq.device_uuid, arq.attach_handle_id),
        )
    tx.then(lambda: ctx.meters.record_bind(MOVES[event].target, time.monotonic() - begun))


def _ask_release(ctx: Conductor, run: Run[AgentHandle | None]) -> Outcome | Waiting:
    """Have the host clean up a unit, unless that is done.

    A unit that is cleaned can need hours: Placement must not offer it meanwhile.
    """
    row, handle = run.row, run.subject
    if handle is None or handle.state not in UNRELEASED:
        return Outcome(row.uuid)
    if handle.unchecked:
        return _UNCHECKED
    if run.spec.get(FIRST) and handle.device_status != DeviceStatus.ENABLED:
        # An operator may not want its data removed.
        return Waiting("its device was never enabled", pause_ms=0)
    level = profile_level(run.spec)
    if _cleans(run) and not handle.cleaning:
        _begin_cleaning(ctx, run, handle)
    spec = {} if level is None else {CLEAN: level.value}
    return ctx.agents.request(_agent_of(handle), Release(_task(row, handle, spec)))


@retried
def _begin_cleaning(ctx: Conductor, run: Run[AgentHandle | None], handle: AgentHandle) -> None:
    with queue.checkpoint(ctx, [run.row]) as tx:
        tx.publish(handle.host_id, handle.service_host)
        attach_handles.begin_cleaning(tx, handle.id)
        attach_handles.record_cleaning(tx, handle.id, _record(run, CleanResult.CLEANING))


def _show_cleaning(run: Run[AgentHandle | None], tx: Transaction, progress: str) -> None:
    """Store the progress of a cleaning, if it is another than the stored one."""
    handle = run.subject
    if handle is not None and (handle.clean_record or {}).get("reason") != progress:
        record = _record(run, CleanResult.CLEANING, reason=progress)
        attach_handles.record_cleaning(tx, handle.id, record)


def _end_release(
    ctx: Conductor, run: Run[AgentHandle | None], tx: Transaction, outcome: Outcome
) -> None:
    """Make the handle ready, for the ARQ that waits for it if there is one."""
    handle = run.subject
    if handle is None:
        return
    quarantined = handle.state == HandleState.QUARANTINED
    cleans = _cleans(run) and handle.state in UNRELEASED
    if quarantined or handle.pooled or cleans:
        # Placement offers at once what fits again.
        tx.publish(handle.host_id, handle.service_host)
    release.finish(tx, handle, clean=cleans)
    entries = [_entry(handle, "out of quarantine", None)] if quarantined else []
    if outcome.cleaned:
        steps = ", ".join(f"{step.name} ({step.ms / 1000:g} s)" for step in outcome.cleaned)
        entries.append(_device_entry(handle, UNIT_CLEANED, steps))
    if handle.state in UNRELEASED and profile_level(run.spec) is not None:
        result = CleanResult.CLEANED if outcome.cleaned else CleanResult.SKIPPED
        record = _record(run, result, steps=outcome.cleaned)
        attach_handles.record_cleaning(tx, handle.id, record)
    events.record_for(tx, entries, ordered_by=work.origin(run.row))
    if quarantined:
        tx.then(LOG.info, "%s released: it has left quarantine", _described(handle))
    if outcome.cleaned:
        names = ", ".join(step.name for step in outcome.cleaned)
        tx.then(LOG.info, "%s cleaned: %s", _described(handle), names)
    if cleans:
        tx.then(ctx.meters.record_cleaning, CleanResult.CLEANED)


def _count_refusal(
    ctx: Conductor, run: Run[AgentHandle | None], tx: Transaction, outcome: Outcome
) -> Waiting:
    """Count a refused release; the last that is tolerated puts the handle into quarantine."""
    handle = run.subject
    assert handle is not None, "no agent was asked"  # noqa: S101 - for mypy
    refusals = int(run.spec.get(_REFUSALS, 0)) + 1
    if refusals == _MAX_REFUSALS and handle.state == HandleState.RELEASING:
        tx.publish(handle.host_id, handle.service_host)
        if attach_handles.quarantine(tx, handle.id):
            entries = [_entry(handle, "quarantined", outcome.fault)]
            if _cleans(run):
                entries.append(_device_entry(handle, UNIT_NOT_CLEANED, outcome.fault))
            events.record_for(tx, entries, ordered_by=work.origin(run.row))
        tx.then(
            LOG.warning,
            "%s is in quarantine: the host refused %d times to release it: %s",
            *(_described(handle), refusals, outcome.fault),
        )
    if _cleans(run):
        dirty_units.note_fault(tx, handle.uuid, outcome.fault)
        record = _record(run, CleanResult.FAILED, reason=outcome.fault)
        attach_handles.record_cleaning(tx, handle.id, record)
        tx.then(ctx.meters.record_cleaning, CleanResult.FAILED)
    error = exception.DriverFailed(driver=handle.driver, verb="release", reason=outcome.fault)
    return Waiting(str(error), pause_ms=0, spec={_REFUSALS: refusals})


def _ask_program(ctx: Conductor, run: Run[AgentDeployable | None]) -> Outcome | Waiting:
    """Have the host load an operator's image into a deployable."""
    row, deployable = run.row, run.subject
    if deployable is None:
        return Outcome(row.uuid, fault="the deployable is gone")
    if deployable.unchecked:
        return _UNCHECKED
    if deployable.bitstream_id is not None:
        # The loaded image is unknown until the agent has answered.
        with queue.checkpoint(ctx, [row]) as tx:
            set_image(tx, deployable.id, None)
    task = ProgramTask(
        row.uuid,
        deployable.driver,
        deployable.device_key,
        deployable.key,
        image_uuid=run.spec["image_uuid"],
        agent_epoch=deployable.agent_epoch or 0,
        order=row.id,
        issued_ms=row.created_ms,
    )
    return ctx.agents.request(_agent_of(deployable), Program(task))


def _end_program(
    ctx: Conductor, run: Run[AgentDeployable | None], tx: Transaction, outcome: Outcome
) -> None:
    """Record the end, and store which image the deployable holds."""
    fault, spec, deployable = outcome.fault, run.spec, run.subject
    entry = events.Entry(
        "deployable",
        spec["deployable"],
        "programmed" if fault is None else "program failed",
        hostname=None if deployable is None else deployable.hostname,
        reason=fault,
        device_uuid=None if deployable is None else deployable.device_uuid,
    )
    work.record(tx, run.row, [entry])
    if fault is None and deployable is not None:
        set_image(tx, deployable.id, spec["image_uuid"])


def _handle(ctx: Conductor, run: Run[None], tx: Transaction) -> AgentHandle | None:
    handle_id = run.row.attach_handle_id
    return None if handle_id is None else deployables.tasks(tx, [handle_id]).get(handle_id)


def _agent_of(row: PlacedDeployable) -> str:
    """Return the name of the host's agent on the message bus.

    Raises Unavailable while the host has never had an agent.
    """
    if row.service_host is None:
        raise exception.Unavailable(peer="agent", reason="this host has none yet")
    return str(row.service_host)


def _task(row: ClaimedWork, handle: AgentHandle, spec: Mapping[str, str]) -> HandleTask:
    return HandleTask(
        request_key=row.uuid,
        driver=handle.driver,
        device_key=handle.device_key,
        deployable=handle.key,
        handle_key=handle.handle_key,
        handle_uuid=handle.uuid,
        spec=dict(spec),
        order=row.id,
        issued_ms=row.created_ms,
        agent_epoch=handle.agent_epoch or 0,
    )


def _cleans(run: Run[Any]) -> bool:
    """Return whether release work removes the data of the guest."""
    return profile_level(run.spec) in CLEANING


def _record(
    run: Run[Any],
    result: CleanResult,
    *,
    steps: tuple[CleanedStep, ...] = (),
    reason: str | None = None,
) -> dict[str, Any]:
    level = profile_level(run.spec) or CleanLevel.NONE
    return CleanRecord(result, level, steps, reason).columns()


def _device_entry(handle: AgentHandle, action: str, reason: str | None) -> events.Entry:
    text = f"unit {handle.handle_key}: {reason}"
    return events.Entry("device", handle.device_uuid, action, hostname=handle.hostname, reason=text)


def _entry(handle: AgentHandle, action: str, reason: str | None) -> events.Entry:
    return events.Entry(
        "handle",
        handle.uuid,
        action,
        hostname=handle.hostname,
        reason=reason,
        device_uuid=handle.device_uuid,
    )


def _described(handle: AgentHandle) -> str:
    """Return the identifiers of a handle for a log line."""
    return (
        f"Handle {handle.uuid} ({handle.handle_key} of {handle.name}) of device "
        f"{handle.device_uuid} on host {handle.hostname}"
    )


def _begun(ctx: Conductor, run: Run[None], tx: Transaction) -> _Begun:
    """Return the handle of a bind, and when the bind began, by ``time.monotonic``."""
    return _handle(ctx, run, tx), time.monotonic() - run.row.age_ms / 1000


def _deployable(ctx: Conductor, run: Run[None], tx: Transaction) -> AgentDeployable | None:
    return deployables.by_uuid(tx, run.spec["deployable"])


#: The workflows of ``prepare``, ``release`` and ``program`` work, which have one step each.
WORK: Final[Mapping[WorkKind, Handler]] = {
    WorkKind.PREPARE: Workflow(
        {
            "prepare": Step(
                read=_begun,
                ask=_ask_prepare,
                end=_end_prepare,
                fail=_end_prepare,
                overdue="the host did not finish the preparation in time",
                overdue_error=True,
            )
        }
    ),
    WorkKind.RELEASE: Workflow(
        {
            "release": Step(
                read=_handle,
                ask=_ask_release,
                end=_end_release,
                fail=_count_refusal,
                show=_show_cleaning,
            )
        }
    ),
    WorkKind.PROGRAM: Workflow(
        {
            "program": Step(
                read=_deployable,
                ask=_ask_program,
                end=_end_program,
                fail=_end_program,
                overdue="image or host could not be reached in time",
                overdue_error=True,
            )
        }
    ),
}

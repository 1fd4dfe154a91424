# SPDX-License-Identifier: Apache-2.0
"""Work on units in which a host's agent takes part: prepare, release and program.

The request key of each call to the agent is the uuid of the work.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cyborg import exception
from cyborg.conductor.arqs import bind, images
from cyborg.conductor.tasks.agent_task import AgentTask, Waiting
from cyborg.conductor.tasks.queue import Handler, WorkQueue
from cyborg.db import (
    arqs,
    attach_handles,
    deployables,
    dirty_units,
    events,
    hosts,
    pools,
    work,
)
from cyborg.db.deployables import AgentDeployable, AgentHandle, PlacedDeployable, set_image
from cyborg.db.engine import retried
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import MOVES, Event, State
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
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import DesiredChanged, Prepare, Program, Release

LOG = logging.getLogger(__name__)

#: Number of refused releases after which a handle goes into quarantine. These attempts take about
#: a minute; a fault that ends by itself (a busy card, an instance that is just being deleted) has
#: ended by then.
_MAX_REFUSALS = 8
#: Key in the ``spec`` of release work that counts the refusals.
_REFUSALS = "refusals"
#: A guest that the database does not know may have the unit.
_UNCHECKED = Waiting("its host waits for cyborg-audit --after-restore", pause_ms=0)


@dataclass(frozen=True, kw_only=True)
class UnitTasks:
    """The handlers of ``prepare``, ``release`` and ``program`` work.

    They call ``record_bind``, if any, with the result of each bind and its duration in seconds,
    ``record_cleaning`` with the result of each cleaning, and ``wake`` after each commit that may
    have made work due.
    """

    queue: WorkQueue
    agents: AgentClient
    wake: Callable[[], None]
    record_bind: Callable[[State, float], None] | None = None
    record_cleaning: Callable[[CleanResult], None] | None = None

    def handlers(self) -> dict[WorkKind, Handler]:
        """Return the handlers by kind of work."""
        return {
            WorkKind.PREPARE: AgentTask(
                queue=self.queue,
                read=lambda tx, row: (_handle(tx, row), time.monotonic() - row.age_ms / 1000),
                ask=self._ask_prepare,
                end=self._end_prepare,
                overdue="the host did not finish the preparation in time",
                overdue_error=True,
            ).run,
            WorkKind.RELEASE: AgentTask(
                queue=self.queue,
                read=_handle,
                ask=self._ask_release,
                end=self._end_release,
                fail=self._count_refusal,
                show=self._show_cleaning,
            ).run,
            WorkKind.PROGRAM: AgentTask(
                queue=self.queue,
                read=lambda tx, row: deployables.by_uuid(tx, (row.spec or {})["deployable"]),
                ask=self._ask_program,
                end=self._end_program,
                overdue="image or host could not be reached in time",
                overdue_error=True,
            ).run,
        }

    def _ask_prepare(
        self, row: ClaimedWork, subject: tuple[AgentHandle | None, float]
    ) -> Outcome | Waiting:
        """Have the host prepare a unit, unless it has nothing to do or other work goes first."""
        handle, _ = subject
        if handle is not None and handle.unchecked:
            return _UNCHECKED
        if handle is not None and handle.state in UNRELEASED:
            return Waiting("the release of its attach handle after the last instance is going on")
        if handle is None or handle.state != HandleState.HELD:
            return Outcome(row.uuid, fault="its attach handle is gone")
        if parse_image(row.spec or {}) is not None and not handle.programmable:
            fault = f"driver {handle.driver} cannot load images any more"
            return Outcome(row.uuid, fault=fault)
        decision = self._decide(row, handle)
        if decision.waits:
            return Waiting(f"other work on {handle.name} may be loading an image")
        if not handle.prepare and decision.image is None:
            return Outcome(row.uuid)
        try:
            task = _task(row, handle, row.spec or {})
            left = None if row.left_ms is None else row.left_ms / 1000
            return self.agents.request(
                _agent_of(handle), Prepare(task, decision.image), within=left
            )
        except exception.UnknownVerb as error:
            if decision.image is None:
                raise
            return Outcome(row.uuid, fault=f"no image can be loaded for a bind yet: {error}")

    @retried
    def _decide(self, row: ClaimedWork, handle: AgentHandle) -> images.ImageDecision:
        """Decide what to do now, and mark the ARQ as prepared before its agent is called."""
        decision = images.ImageDecision()
        if handle.prepare or handle.programmable:
            with self.queue.checkpoint([row]) as tx:
                locked = arqs.lock(tx, Arq.uuid == row.arq_uuid)
                if handle.programmable:
                    decision = images.decide(tx, row, handle)
                if not decision.waits and (handle.prepare or decision.image is not None):
                    for arq in locked:
                        arqs.mark_prepared(tx, arq.id)
        return decision

    @retried
    def _end_prepare(
        self, row: ClaimedWork, subject: tuple[AgentHandle | None, float], outcome: Outcome
    ) -> None:
        """Bring the bind to Bound or BindFailed, and add the notification of Nova.

        Raises Fenced for an ARQ that has been unbound or deleted in the meantime: its work row is
        gone.
        """
        handle, begun = subject
        bound = outcome.fault is None
        event = Event.FINISH if bound else Event.FAIL
        with self.queue.complete([row]) as tx:
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
            LOG.warning(
                "Bind of ARQ %s to instance %s failed: %s",
                *(row.arq_uuid, row.instance_uuid, outcome.fault),
            )
        for arq in locked if bound else ():
            # A hidden ARQ is bound later, by the attach operation that it belongs to.
            action = "prepared for" if arq.hidden else "bound to"
            LOG.info(
                "ARQ %s %s instance %s on host %s (device %s, handle %s)",
                *(arq.uuid, action, arq.instance_uuid, arq.hostname),
                *(arq.device_uuid, arq.attach_handle_id),
            )
        self.wake()
        if self.record_bind is not None:
            self.record_bind(MOVES[event].target, time.monotonic() - begun)

    def _ask_release(self, row: ClaimedWork, handle: AgentHandle | None) -> Outcome | Waiting:
        """Have the host clean up a unit, unless that is done.

        A unit that is cleaned can need hours: Placement must not offer it meanwhile.
        """
        if handle is None or handle.state not in UNRELEASED:
            return Outcome(row.uuid)
        if handle.unchecked:
            return _UNCHECKED
        if (row.spec or {}).get(FIRST) and handle.device_status != DeviceStatus.ENABLED:
            # An operator may not want its data removed.
            return Waiting("its device was never enabled", pause_ms=0)
        level = profile_level(row.spec or {})
        if _cleans(row) and not handle.cleaning:
            self._begin_cleaning(row, handle)
        spec = {} if level is None else {CLEAN: level.value}
        return self.agents.request(_agent_of(handle), Release(_task(row, handle, spec)))

    @retried
    def _begin_cleaning(self, row: ClaimedWork, handle: AgentHandle) -> None:
        with self.queue.checkpoint([row]) as tx:
            hosts.bump_desired_generation(tx, handle.host_id)
            attach_handles.begin_cleaning(tx, handle.id)
            attach_handles.record_cleaning(tx, handle.id, _record(row, CleanResult.CLEANING))
        self._publish(handle)

    @retried
    def _show_cleaning(self, row: ClaimedWork, handle: AgentHandle | None, progress: str) -> None:
        """Store the progress of a cleaning, if it is another than the stored one."""
        if handle is None or (handle.clean_record or {}).get("reason") == progress:
            return
        with self.queue.checkpoint([row]) as tx:
            record = _record(row, CleanResult.CLEANING, reason=progress)
            attach_handles.record_cleaning(tx, handle.id, record)

    def _publish(self, handle: AgentHandle) -> None:
        """Have the agent publish what the host offers now, at once."""
        if handle.service_host is not None:
            self.agents.cast(handle.service_host, DesiredChanged())

    @retried
    def _end_release(self, row: ClaimedWork, handle: AgentHandle | None, outcome: Outcome) -> None:
        """Make the handle free, or give it to the ARQ that waits for it."""
        if handle is None:
            with self.queue.complete([row]):
                return
        quarantined = handle.state == HandleState.QUARANTINED
        cleans = _cleans(row) and handle.state in UNRELEASED
        with self.queue.complete([row]) as tx:
            if quarantined or handle.pooled or cleans:
                hosts.bump_desired_generation(tx, handle.host_id)
            images.clear_after_release(tx, handle)
            attach_handles.finish_release(tx, handle.id)
            if cleans:
                dirty_units.end(tx, handle.id, handle.uuid)
            if handle.pooled:
                pools.book(tx, [handle.device_uuid])
            work.make_due(tx, handle.id)
            entries = [_entry(handle, "out of quarantine", None)] if quarantined else []
            if outcome.cleaned:
                steps = ", ".join(f"{step.name} ({step.ms / 1000:g} s)" for step in outcome.cleaned)
                entries.append(_device_entry(handle, UNIT_CLEANED, steps))
            if handle.state in UNRELEASED and profile_level(row.spec or {}) is not None:
                result = CleanResult.CLEANED if outcome.cleaned else CleanResult.SKIPPED
                record = _record(row, result, steps=outcome.cleaned)
                attach_handles.record_cleaning(tx, handle.id, record)
            events.record_for(tx, entries, ordered_by=work.origin(row))
        if quarantined:
            LOG.info("%s released: it has left quarantine", _described(handle))
        self.wake()
        if outcome.cleaned:
            LOG.info(
                "%s cleaned: %s",
                _described(handle),
                ", ".join(step.name for step in outcome.cleaned),
            )
        if self.record_cleaning is not None and cleans:
            self.record_cleaning(CleanResult.CLEANED)
        if handle.pooled or cleans:
            # Placement offers at once what fits again.
            self._publish(handle)

    @retried
    def _count_refusal(
        self, row: ClaimedWork, handle: AgentHandle | None, outcome: Outcome
    ) -> None:
        """Count a refused release; the last that is tolerated puts the handle into quarantine.

        Raises DriverFailed, so that it is tried again.
        """
        assert handle is not None, "no agent was asked"  # noqa: S101 - for mypy
        refusals = int((row.spec or {}).get(_REFUSALS, 0)) + 1
        quarantines = refusals == _MAX_REFUSALS and handle.state == HandleState.RELEASING
        with self.queue.checkpoint([row]) as tx:
            if quarantines:
                hosts.bump_desired_generation(tx, handle.host_id)
                if attach_handles.quarantine(tx, handle.id):
                    entries = [_entry(handle, "quarantined", outcome.fault)]
                    if _cleans(row):
                        entries.append(_device_entry(handle, UNIT_NOT_CLEANED, outcome.fault))
                    events.record_for(tx, entries, ordered_by=work.origin(row))
            if _cleans(row):
                dirty_units.note_fault(tx, handle.uuid, outcome.fault)
                record = _record(row, CleanResult.FAILED, reason=outcome.fault)
                attach_handles.record_cleaning(tx, handle.id, record)
            work.set_spec(tx, row, {**(row.spec or {}), _REFUSALS: refusals})
        if self.record_cleaning is not None and _cleans(row):
            self.record_cleaning(CleanResult.FAILED)
        if quarantines:
            LOG.warning(
                "%s is in quarantine: the host refused %d times to release it: %s",
                *(_described(handle), refusals, outcome.fault),
            )
        raise exception.DriverFailed(driver=handle.driver, verb="release", reason=outcome.fault)

    def _ask_program(
        self, row: ClaimedWork, deployable: AgentDeployable | None
    ) -> Outcome | Waiting:
        """Have the host load an operator's image into a deployable."""
        if deployable is None:
            return Outcome(row.uuid, fault="the deployable is gone")
        if deployable.unchecked:
            return _UNCHECKED
        if deployable.bitstream_id is not None:
            # The loaded image is unknown until the agent has answered.
            with self.queue.checkpoint([row]) as tx:
                set_image(tx, deployable.id, None)
        task = ProgramTask(
            row.uuid,
            deployable.driver,
            deployable.device_key,
            deployable.key,
            image_uuid=(row.spec or {})["image_uuid"],
            agent_epoch=deployable.agent_epoch or 0,
            order=row.id,
            issued_ms=row.created_ms,
        )
        return self.agents.request(_agent_of(deployable), Program(task))

    def _end_program(
        self, row: ClaimedWork, deployable: AgentDeployable | None, outcome: Outcome
    ) -> None:
        """Record the end, and store which image the deployable holds."""
        fault, spec = outcome.fault, row.spec or {}
        with self.queue.complete([row]) as tx:
            entry = events.Entry(
                "deployable",
                spec["deployable"],
                "programmed" if fault is None else "program failed",
                hostname=None if deployable is None else deployable.hostname,
                reason=fault,
                device_uuid=None if deployable is None else deployable.device_uuid,
            )
            work.record(tx, row, [entry])
            if fault is None and deployable is not None:
                set_image(tx, deployable.id, spec["image_uuid"])


def _handle(tx: Transaction, row: ClaimedWork) -> AgentHandle | None:
    if row.attach_handle_id is None:
        return None
    return deployables.tasks(tx, [row.attach_handle_id]).get(row.attach_handle_id)


def _agent_of(row: PlacedDeployable) -> str:
    """Return the name of the host's agent on the message bus.

    Raises Unavailable while the host has never had an agent.
    """
    if row.service_host is None:
        raise exception.Unavailable(peer="agent", reason="this host has none yet")
    return str(row.service_host)


def _task(row: ClaimedWork, handle: AgentHandle, spec: dict[str, str]) -> HandleTask:
    return HandleTask(
        request_key=row.uuid,
        driver=handle.driver,
        device_key=handle.device_key,
        deployable=handle.key,
        handle_key=handle.handle_key,
        handle_uuid=handle.uuid,
        spec=spec,
        order=row.id,
        issued_ms=row.created_ms,
        agent_epoch=handle.agent_epoch or 0,
    )


def _cleans(row: ClaimedWork) -> bool:
    """Return whether release work removes the data of the guest."""
    return profile_level(row.spec or {}) in CLEANING


def _record(
    row: ClaimedWork,
    result: CleanResult,
    *,
    steps: tuple[CleanedStep, ...] = (),
    reason: str | None = None,
) -> dict[str, Any]:
    level = profile_level(row.spec or {}) or CleanLevel.NONE
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

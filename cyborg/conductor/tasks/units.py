# SPDX-License-Identifier: Apache-2.0
"""Work that a host's agent does: prepare, release and program, until it is done or overdue.

The agent is asked with the work's uuid as operation id, so asking again is how one waits. What the
database must know is committed before the agent is asked, and after it has answered; nothing is
open while it is asked.
"""

import logging
import time
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, images
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import arqs, attach_handles, deployables, events, hosts, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.images import note as note_image
from cyborg.db.models import Arq
from cyborg.model.arq import Event, State
from cyborg.model.device import UNRELEASED, HandleState
from cyborg.model.device_profile import image_wish
from cyborg.model.work import HandleTask, Outcome, ProgramTask
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: How soon an agent that is still at it is asked again, in milliseconds.
_ASK_AGAIN_MS = 1000
#: How often a host may refuse a release before its handle is in quarantine: what will go away by
#: itself (a busy card, a guest that is just ending) has done so within the minute that this takes.
_PATIENCE = 8
#: Where release work counts the refusals.
_REFUSALS = "refusals"
_TIMED_OUT = "the host did not finish the preparation in time"


def nobody(outcome: State, seconds: float) -> None:
    """Time no binds."""


class UnitTasks:
    """The handlers of ``prepare``, ``release`` and ``program`` work.

    ``bound`` is told how each bind ended, and after how many seconds.
    """

    def __init__(
        self,
        *,
        db: Database,
        queue: WorkQueue,
        agents: AgentClient,
        wake: Callable[[], None],
        bound: Callable[[State, float], None] = nobody,
    ) -> None:
        self._bound = bound
        self._db = db
        self._queue = queue
        self._agents = agents
        self._wake = wake

    def prepare(self, rows: Sequence[Record]) -> None:
        """Bring one started bind to Bound, or to BindFailed at its deadline or on a fault."""
        (row,) = rows
        begun = time.monotonic() - row.age_ms / 1000
        if row.overdue:
            # What kept the agent from it is the better answer, where there is one.
            self._fail(row, f"{_TIMED_OUT}: {row.error}" if row.error else _TIMED_OUT, begun)
            return
        handle = self._handle(row)
        if handle is not None and handle.state in UNRELEASED:
            self._queue.reschedule(
                rows, "its last guest's release is going on", pause_ms=_ASK_AGAIN_MS
            )
            return
        if handle is None or handle.state != HandleState.HELD:
            self._fail(row, "its attach handle is gone", begun)
            return
        if image_wish(row.spec or {}) is not None and not handle.programmable:
            self._fail(row, f"driver {handle.driver} cannot load images any more", begun)
            return
        turn = self._turn(row, handle)
        if turn.waits:
            reason = f"other work on {handle.name} may be loading an image"
            self._queue.reschedule(rows, reason, pause_ms=_ASK_AGAIN_MS)
            return
        outcome = Outcome(row.uuid)
        if handle.prepare or turn.image is not None:
            try:
                outcome = self._agents.prepare(
                    _agent_of(handle),
                    _task(row, handle, row.spec or {}),
                    image=turn.image,
                    within=row.left_ms / 1000,
                )
            except exception.UnknownVerb as error:
                if turn.image is None:
                    raise
                self._fail(row, f"no image can be loaded for a bind yet: {error}", begun)
                return
            if not outcome.done:
                self._queue.reschedule(rows, None, pause_ms=_ASK_AGAIN_MS)
                return
            if outcome.fault is not None:
                self._fail(row, outcome.fault, begun)
                return
        self._resolve(row, Event.FINISH, None, image=outcome.image, clean=not handle.prepare)
        self._bound(State.BOUND, time.monotonic() - begun)

    @retried
    def _turn(self, row: Record, handle: Record) -> images.ImageTurn:
        """Decide what is done now, and mark the ARQ before its agent is asked."""
        turn = images.ImageTurn()
        if handle.prepare or handle.programmable:
            with self._queue.checkpoint([row]) as tx:
                locked = arqs.lock(tx, Arq.uuid == row.arq_uuid)
                if handle.programmable:
                    turn = images.turn(tx, row, handle)
                if not turn.waits and (handle.prepare or turn.image is not None):
                    for arq in locked:
                        arqs.mark_prepared(tx, arq.id)
        return turn

    def release(self, rows: Sequence[Record]) -> None:
        """Have the host clean up; the handle is free (or its next holder's) after that.

        One that the host refuses to clean up is put into quarantine, and tried again.
        """
        (row,) = rows
        handle = self._handle(row)
        if handle is not None and handle.state in UNRELEASED:
            outcome = self._agents.release(_agent_of(handle), _task(row, handle, {}))
            if not outcome.done:
                self._queue.reschedule(rows, None, pause_ms=_ASK_AGAIN_MS)
                return
            if outcome.fault is not None:
                self._refused(row, handle, outcome.fault)
                raise exception.DriverFailed(
                    driver=handle.driver, verb="release", reason=outcome.fault
                )
        self._released(row, handle)

    @retried
    def _released(self, row: Record, handle: Record) -> None:
        shut = handle is not None and handle.state == HandleState.QUARANTINED
        with self._queue.complete([row]) as tx:
            if shut:
                hosts.bump_desired_generation(tx, self._db.now, handle.host_id)
            if handle is not None:
                images.forget_released(tx, handle)
            attach_handles.finish_release(tx, row.attach_handle_id)
            work.due_now(tx, self._db.now, row.attach_handle_id)
            if shut:
                self._note(tx, row, _entry(handle, "out of quarantine"))
        if shut:
            LOG.info("%s of %s is released after all", handle.handle_key, handle.name)
        self._wake()

    @retried
    def _refused(self, row: Record, handle: Record, fault: str) -> None:
        """Count a refusal; the one that is too much puts the handle into quarantine."""
        refusals = int((row.spec or {}).get(_REFUSALS, 0)) + 1
        shut = refusals == _PATIENCE and handle.state == HandleState.RELEASING
        with self._queue.checkpoint([row]) as tx:
            if shut:
                hosts.bump_desired_generation(tx, self._db.now, handle.host_id)
                if attach_handles.quarantine(tx, handle.id):
                    self._note(tx, row, _entry(handle, "quarantined", fault))
            work.note(tx, row, {**(row.spec or {}), _REFUSALS: refusals})
        if shut:
            LOG.warning(
                "%s of %s on %s is in quarantine: its host refused to release it %d times: %s",
                handle.handle_key,
                handle.name,
                handle.hostname,
                refusals,
                fault,
            )

    def program(self, rows: Sequence[Record]) -> None:
        """Load an image into a deployable and remember which one it holds."""
        (row,) = rows
        with self._db.reader() as tx:
            offer = deployables.by_uuid(tx, row.spec["deployable"])
        fault: str | None = "the deployable is gone"
        if row.overdue:
            fault = "image or host could not be reached in time"
            fault = f"{fault}: {row.error}" if row.error else fault
        elif offer is not None:
            image = row.spec["image_uuid"]
            if offer.bitstream_id is not None:
                # From now on nobody knows, until the agent has answered.
                with self._queue.checkpoint(rows) as tx:
                    note_image(tx, row.deployable_id, None)
            task = ProgramTask(
                row.uuid,
                offer.driver,
                offer.device_key,
                offer.name,
                image_uuid=image,
                agent_epoch=offer.agent_epoch or 0,
                order=row.id,
                issued_ms=row.created_ms,
            )
            outcome = self._agents.program(_agent_of(offer), task)
            if not outcome.done:
                self._queue.reschedule(rows, None, pause_ms=_ASK_AGAIN_MS)
                return
            fault = outcome.fault
        with self._queue.complete(rows) as tx:
            action = "programmed" if fault is None else "program failed"
            entry = events.Entry(
                "deployable",
                row.spec["deployable"],
                action,
                hostname=offer and offer.hostname,
                reason=fault,
                device_uuid=offer and offer.device_uuid,
            )
            self._note(tx, row, entry, operation=row.operation_id)
            if fault is None:
                note_image(tx, row.deployable_id, row.spec["image_uuid"])

    def _note(
        self, tx: sa.Connection, row: Record, entry: events.Entry, *, operation: str | None = None
    ) -> None:
        """Record one event with the ids of the request that ordered the work."""
        ordered_by = work.origin(row)
        events.record(tx, self._db.now, [entry], operation=operation, ordered_by=ordered_by)

    def _handle(self, row: Record) -> Record:
        with self._db.reader() as tx:
            return deployables.tasks(tx, [row.attach_handle_id]).get(row.attach_handle_id)

    def _fail(self, row: Record, fault: str, begun: float) -> None:
        LOG.warning("Bind of ARQ %s failed: %s", row.arq_uuid, fault)
        self._resolve(row, Event.FAIL, fault)
        self._bound(State.BIND_FAILED, time.monotonic() - begun)

    @retried
    def _resolve(
        self,
        row: Record,
        event: Event,
        fault: str | None,
        *,
        image: str | None = None,
        clean: bool = False,
    ) -> None:
        """End a started bind and have Nova told, in one transaction.

        ``image`` is what the deployable holds now; ``clean`` tells that nothing of the bind has to
        be undone on the host. Raises Fenced for an ARQ that has been unbound or deleted meanwhile:
        its work row is gone.
        """
        with self._queue.complete([row]) as tx:
            rows = arqs.lock(tx, Arq.uuid == row.arq_uuid)
            if image is not None:
                note_image(tx, row.deployable_id, image)
            if clean:
                for arq in rows:
                    if arq.prepared:
                        arqs.mark_prepared(tx, arq.id, prepared=False)
            bind.resolve(
                tx,
                self._db.now,
                rows,
                event,
                fault=fault,
                operation=row.operation_id,
                ordered_by=work.origin(row),
            )
        if fault is None:
            LOG.info("ARQ %s is bound: its host has prepared the device", row.arq_uuid)
        self._wake()


def _agent_of(row: Record) -> str:
    """The name of the host's agent on the bus; raises Unavailable while there never was one."""
    if row.service_host is None:
        raise exception.Unavailable(peer="agent", reason="this host has none yet")
    return str(row.service_host)


def _entry(handle: Record, action: str, reason: str | None = None) -> events.Entry:
    return events.Entry(
        "handle",
        handle.uuid,
        action,
        hostname=handle.hostname,
        reason=reason,
        device_uuid=handle.device_uuid,
    )


def _task(row: Record, handle: Record, spec: dict[str, str]) -> HandleTask:
    return HandleTask(
        operation=row.uuid,
        driver=handle.driver,
        device_key=handle.device_key,
        deployable=handle.name,
        handle_key=handle.handle_key,
        handle_uuid=handle.uuid,
        spec=spec,
        order=row.id,
        issued_ms=row.created_ms,
        agent_epoch=handle.agent_epoch or 0,
    )

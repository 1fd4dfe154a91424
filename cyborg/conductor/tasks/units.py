# SPDX-License-Identifier: Apache-2.0
"""Work on units in which a host's agent takes part: prepare, release and program.

Each call to the agent carries the uuid of the work as request key, so a repeated call only asks
for the result. What the database must know is committed before the agent is called, and after it
has answered; no transaction is open during a call.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, images
from cyborg.conductor.tasks.queue import AGENT_POLL_MS, WorkQueue
from cyborg.db import arqs, attach_handles, deployables, events, hosts, work
from cyborg.db.base import Record
from cyborg.db.deployables import set_image
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model.arq import Event, State
from cyborg.model.device import UNRELEASED, HandleState
from cyborg.model.device_profile import parse_image
from cyborg.model.work import HandleTask, Outcome, ProgramTask
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: Number of refused releases after which a handle goes into quarantine. These attempts take about
#: a minute; a fault that ends by itself (a busy card, an instance that is just being deleted) has
#: ended by then.
_MAX_REFUSALS = 8
#: Key in the ``spec`` of release work that counts the refusals.
_REFUSALS = "refusals"
_TIMED_OUT = "the host did not finish the preparation in time"


@dataclass(frozen=True, kw_only=True)
class UnitTasks:
    """The handlers of ``prepare``, ``release`` and ``program`` work.

    They call ``record_bind``, if any, with the result of each bind and its duration in seconds, and
    ``wake`` after each commit that may have made work due.
    """

    db: Database
    queue: WorkQueue
    agents: AgentClient
    wake: Callable[[], None]
    record_bind: Callable[[State, float], None] | None = None

    def prepare(self, rows: Sequence[Record]) -> None:
        """Bring a started bind to Bound, or to BindFailed at its deadline or on a fault."""
        (row,) = rows
        begun = time.monotonic() - row.age_ms / 1000
        if row.overdue:
            # The last error of the work, if there is one, says more.
            self._fail(row, f"{_TIMED_OUT}: {row.error}" if row.error else _TIMED_OUT, begun)
            return
        with self.db.reader() as tx:
            handle = deployables.tasks(tx, [row.attach_handle_id]).get(row.attach_handle_id)
        if handle is not None and handle.state in UNRELEASED:
            reason = "the release of its attach handle after the last instance is going on"
            self.queue.reschedule(rows, reason, pause_ms=AGENT_POLL_MS)
            return
        if handle is None or handle.state != HandleState.HELD:
            self._fail(row, "its attach handle is gone", begun)
            return
        if parse_image(row.spec or {}) is not None and not handle.programmable:
            self._fail(row, f"driver {handle.driver} cannot load images any more", begun)
            return
        decision = self._decide(row, handle)
        if decision.waits:
            reason = f"other work on {handle.name} may be loading an image"
            self.queue.reschedule(rows, reason, pause_ms=AGENT_POLL_MS)
            return
        outcome = Outcome(row.uuid)
        if handle.prepare or decision.image is not None:
            try:
                outcome = self.agents.prepare(
                    _agent_of(handle),
                    _task(row, handle, row.spec or {}),
                    image=decision.image,
                    within=row.left_ms / 1000,
                )
            except exception.UnknownVerb as error:
                if decision.image is None:
                    raise
                self._fail(row, f"no image can be loaded for a bind yet: {error}", begun)
                return
            if not outcome.done:
                self.queue.reschedule(rows, None, pause_ms=AGENT_POLL_MS)
                return
            if outcome.fault is not None:
                self._fail(row, outcome.fault, begun)
                return
        self._resolve(row, Event.FINISH, None, image=outcome.image, clean=not handle.prepare)
        if self.record_bind is not None:
            self.record_bind(State.BOUND, time.monotonic() - begun)

    @retried
    def _decide(self, row: Record, handle: Record) -> images.ImageDecision:
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

    def _fail(self, row: Record, fault: str, begun: float) -> None:
        LOG.warning(
            "Bind of ARQ %s to instance %s failed: %s", row.arq_uuid, row.instance_uuid, fault
        )
        self._resolve(row, Event.FAIL, fault)
        if self.record_bind is not None:
            self.record_bind(State.BIND_FAILED, time.monotonic() - begun)

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
        """End a started bind and add the notification of Nova, in one transaction.

        ``image`` is what the deployable holds now; ``clean`` says that the host has nothing to
        undo for this bind. Raises Fenced for an ARQ that has been unbound or deleted in the
        meantime: its work row is gone.
        """
        with self.queue.complete([row]) as tx:
            locked = arqs.lock(tx, Arq.uuid == row.arq_uuid)
            if image is not None:
                set_image(tx, row.deployable_id, image)
            if clean:
                for arq in locked:
                    if arq.prepared:
                        arqs.mark_prepared(tx, arq.id, prepared=False)
            bind.resolve(
                tx,
                self.db.now,
                locked,
                event,
                fault=fault,
                request_key=row.operation_id,
                ordered_by=work.origin(row),
            )
        if fault is None:
            for arq in locked:
                # A hidden ARQ is bound later, by the attach operation that it belongs to.
                action = "prepared for" if arq.hidden else "bound to"
                LOG.info(
                    "ARQ %s %s instance %s on host %s (device %s, handle %s)",
                    *(arq.uuid, action, arq.instance_uuid, arq.hostname),
                    *(arq.device_uuid, arq.attach_handle_id),
                )
        self.wake()

    def release(self, rows: Sequence[Record]) -> None:
        """Have the agent clean up a unit; then its handle is free, or the next ARQ has it.

        A handle that the host refuses to release goes into quarantine; the work is tried again.
        """
        (row,) = rows
        with self.db.reader() as tx:
            handle = deployables.tasks(tx, [row.attach_handle_id]).get(row.attach_handle_id)
        if handle is not None and handle.state in UNRELEASED:
            outcome = self.agents.release(_agent_of(handle), _task(row, handle, {}))
            if not outcome.done:
                self.queue.reschedule(rows, None, pause_ms=AGENT_POLL_MS)
                return
            if outcome.fault is not None:
                self._count_refusal(row, handle, outcome.fault)
                raise exception.DriverFailed(
                    driver=handle.driver, verb="release", reason=outcome.fault
                )
        self._end_release(row, handle)

    @retried
    def _end_release(self, row: Record, handle: Record) -> None:
        quarantined = handle is not None and handle.state == HandleState.QUARANTINED
        with self.queue.complete([row]) as tx:
            if quarantined:
                hosts.bump_desired_generation(tx, self.db.now, handle.host_id)
            if handle is not None:
                images.clear_after_release(tx, handle)
            attach_handles.finish_release(tx, row.attach_handle_id)
            work.make_due(tx, self.db.now, row.attach_handle_id)
            if quarantined:
                self._record(tx, row, handle, "out of quarantine")
        if quarantined:
            LOG.info("%s released: it has left quarantine", _described(handle))
        self.wake()

    @retried
    def _count_refusal(self, row: Record, handle: Record, fault: str) -> None:
        """Count a refused release; the last that is tolerated puts the handle into quarantine."""
        refusals = int((row.spec or {}).get(_REFUSALS, 0)) + 1
        quarantines = refusals == _MAX_REFUSALS and handle.state == HandleState.RELEASING
        with self.queue.checkpoint([row]) as tx:
            if quarantines:
                hosts.bump_desired_generation(tx, self.db.now, handle.host_id)
                if attach_handles.quarantine(tx, handle.id):
                    self._record(tx, row, handle, "quarantined", reason=fault)
            work.set_spec(tx, row, {**(row.spec or {}), _REFUSALS: refusals})
        if quarantines:
            LOG.warning(
                "%s is in quarantine: the host refused %d times to release it: %s",
                *(_described(handle), refusals, fault),
            )

    def program(self, rows: Sequence[Record]) -> None:
        """Load an operator's image into a deployable, and store which image it holds."""
        (row,) = rows
        with self.db.reader() as tx:
            deployable = deployables.by_uuid(tx, row.spec["deployable"])
        fault: str | None = "the deployable is gone"
        if row.overdue:
            fault = "image or host could not be reached in time"
            fault = f"{fault}: {row.error}" if row.error else fault
        elif deployable is not None:
            if deployable.bitstream_id is not None:
                # The loaded image is unknown until the agent has answered.
                with self.queue.checkpoint(rows) as tx:
                    set_image(tx, row.deployable_id, None)
            task = ProgramTask(
                row.uuid,
                deployable.driver,
                deployable.device_key,
                deployable.name,
                image_uuid=row.spec["image_uuid"],
                agent_epoch=deployable.agent_epoch or 0,
                order=row.id,
                issued_ms=row.created_ms,
            )
            outcome = self.agents.program(_agent_of(deployable), task)
            if not outcome.done:
                self.queue.reschedule(rows, None, pause_ms=AGENT_POLL_MS)
                return
            fault = outcome.fault
        with self.queue.complete(rows) as tx:
            entry = events.Entry(
                "deployable",
                row.spec["deployable"],
                "programmed" if fault is None else "program failed",
                hostname=deployable and deployable.hostname,
                reason=fault,
                device_uuid=deployable and deployable.device_uuid,
            )
            events.record(
                tx,
                self.db.now,
                [entry],
                request_key=row.operation_id,
                ordered_by=work.origin(row),
            )
            if fault is None:
                set_image(tx, row.deployable_id, row.spec["image_uuid"])

    def _record(
        self,
        tx: sa.Connection,
        row: Record,
        handle: Record,
        action: str,
        *,
        reason: str | None = None,
    ) -> None:
        """Record what happened to a handle, with the ids of the request that ordered the work."""
        entry = events.Entry(
            "handle",
            handle.uuid,
            action,
            hostname=handle.hostname,
            reason=reason,
            device_uuid=handle.device_uuid,
        )
        events.record(tx, self.db.now, [entry], ordered_by=work.origin(row))


def _agent_of(row: Record) -> str:
    """Return the name of the host's agent on the message bus.

    Raises Unavailable while the host has never had an agent.
    """
    if row.service_host is None:
        raise exception.Unavailable(peer="agent", reason="this host has none yet")
    return str(row.service_host)


def _task(row: Record, handle: Record, spec: dict[str, str]) -> HandleTask:
    return HandleTask(
        request_key=row.uuid,
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


def _described(handle: Record) -> str:
    """Return the identifiers of a handle for a log line."""
    return (
        f"Handle {handle.uuid} ({handle.handle_key} of {handle.name}) of device "
        f"{handle.device_uuid} on host {handle.hostname}"
    )

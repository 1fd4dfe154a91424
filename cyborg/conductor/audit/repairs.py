# SPDX-License-Identifier: Apache-2.0
"""Repair findings of the audit in the database, one transaction for each finding.

A repair locks instance, ARQs and handles, in this order, and looks at them again. It returns False
and changes nothing when the finding does not hold any more.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, release
from cyborg.conductor.arqs.release import ArqReleaser
from cyborg.db import arqs, attach_handles, attaching, events, hosts, instances, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Host, Work
from cyborg.model.arq import Event, State
from cyborg.model.audit_findings import Finding, Fix
from cyborg.model.caller import Caller
from cyborg.model.device import UNRELEASED, HandleState
from cyborg.model.work import WorkKind

_FORGOTTEN = "nobody was left to finish this bind; an audit ended it"
_BINDING = frozenset({State.BOUND, State.BIND_STARTED})
_HANDLELESS = frozenset({State.INITIAL, State.UNBOUND, State.BIND_FAILED})


@dataclass(frozen=True)
class _Leaked:
    """A handle that no ARQ has, in the form in which those of ARQs are let go of."""

    attach_handle_id: int
    deployable_id: int
    prepared: bool
    uuid: None = None
    instance_uuid: None = None
    state: None = None


@retried
def release_handle(db: Database, uuid: str) -> bool:
    """Let go of a handle that is held for nobody, or whose release nobody does.

    Where binds need preparation it may be prepared still, so that its host cleans up first.
    """
    with db.writer() as tx:
        host_id = attach_handles.quarantined_on(tx, uuid)
        if host_id is not None:
            # Placement is to show one unit more; the host's lock comes before the handle's.
            hosts.bump_desired_generation(tx, db.now, host_id)
        row = _lock_handle(tx, uuid)
        if row is None:
            return False
        leaked = _Leaked(row.id, row.deployable_id, prepared=row.prepare)
        if row.state == HandleState.HELD and not _is_any(tx, Arq.attach_handle_id == row.id):
            release.free_handles(tx, db.now, [leaked], operation=None)
        elif row.state not in UNRELEASED or _is_being_released(tx, row.id):
            return False
        elif row.prepare:
            work.add(tx, db.now, [release.release_work(leaked, None)])
        else:
            attach_handles.finish_release(tx, row.id)
            work.due_now(tx, db.now, row.id)
        entry = events.Entry(
            "handle", uuid, "released by audit", hostname=row.hostname, device_uuid=row.device_uuid
        )
        events.record(tx, db.now, [entry])
    return True


@retried
def hold_handle(db: Database, uuid: str) -> bool:
    """Mark a handle as held by the ARQ that has it."""
    with db.writer() as tx:
        mine = sa.select(AttachHandle.id).where(AttachHandle.uuid == uuid).scalar_subquery()
        rows = arqs.lock(tx, Arq.attach_handle_id == mine)
        row = _lock_handle(tx, uuid)
        if row is None or not any(one.state in _BINDING for one in rows):
            return False
        if row.state == HandleState.FREE:
            attach_handles.hold(tx, [row.id])
        elif row.state == HandleState.RELEASING and not _is_being_released(tx, row.id):
            attach_handles.finish_release(tx, row.id)
        else:
            return False
        entry = events.Entry(
            "handle", uuid, "held by audit", hostname=row.hostname, device_uuid=row.device_uuid
        )
        events.record(tx, db.now, [entry])
    return True


@retried
def drop_handle(db: Database, arq_uuid: str) -> bool:
    """Take the handle from an ARQ whose state has none."""
    with db.writer() as tx:
        rows = [
            one
            for one in arqs.lock(tx, Arq.uuid == arq_uuid)
            if one.state in _HANDLELESS and one.attach_handle_id is not None
        ]
        if not rows:
            return False
        release.free_handles(tx, db.now, rows, operation=None)
        arqs.clear_handle(tx, [one.id for one in rows])
        entries = [
            events.Entry("arq", arq_uuid, "handle taken by audit", device_uuid=one.device_uuid)
            for one in rows
        ]
        events.record(tx, db.now, entries)
    return True


@retried
def fail_bind(db: Database, arq_uuid: str) -> bool:
    """End a bind that nobody is to finish: failed, its handle let go of, Nova told."""
    with db.writer() as tx:
        named = tx.execute(sa.select(Arq.instance_uuid).where(Arq.uuid == arq_uuid)).scalars()
        instances.lock(tx, [one for one in named if one is not None])
        rows = arqs.lock(tx, Arq.uuid == arq_uuid)
        preparing = sa.and_(Work.arq_uuid == arq_uuid, Work.kind == WorkKind.PREPARE.value)
        if _is_any(tx, preparing) or any(_is_being_attached(tx, one) for one in rows):
            return False
        return bind.resolve(tx, db.now, rows, Event.FAIL, fault=_FORGOTTEN)


@retried
def open_instance(db: Database, uuid: str) -> bool:
    """Open an instance that counts as bound and has no ARQ for its next bind."""
    with db.writer() as tx:
        known = instances.lock(tx, [uuid])
        if uuid not in known or not known[uuid].bound or _arqs_of(tx, uuid):
            return False
        instances.release(tx, db.now, [uuid])
        entry = events.Entry("instance", uuid, "opened by audit", instance_uuid=uuid)
        events.record(tx, db.now, [entry])
    return True


@retried
def guard_instance(db: Database, uuid: str) -> bool:
    """Close an instance that has ARQs against further binds, in the name of their owner.

    A bind that makes the instance's row at the same moment wins: Conflict.
    """
    with db.writer() as tx:
        known = instances.lock(tx, [uuid])
        rows = _arqs_of(tx, uuid)
        if not rows or (uuid in known and known[uuid].bound):
            return False
        owner = {
            "uuid": uuid,
            "project_id": rows[0].project_id,
            "hostname": rows[0].hostname,
            "operation_id": None,
        }
        instances.bind(tx, db.now, known, [owner])
        entry = events.Entry("instance", uuid, "guarded by audit", instance_uuid=uuid)
        events.record(tx, db.now, [entry])
    return True


@retried
def republish(db: Database, host: str) -> bool:
    """Have the agent of a host look at all of its providers again."""
    with db.writer() as tx:
        host_id = tx.execute(sa.select(Host.id).where(Host.name == host)).scalar_one_or_none()
        if host_id is None:
            return False
        hosts.bump_desired_generation(tx, db.now, host_id)
    return True


def _lock_handle(tx: sa.Connection, uuid: str) -> Record:
    """A handle and whether it needs preparation; None when it is gone."""
    tx.execute(sa.select(AttachHandle.id).where(AttachHandle.uuid == uuid).with_for_update()).all()
    # Not in the same statement: a locking read joins nothing.
    return tx.execute(
        sa.select(
            AttachHandle.id,
            AttachHandle.state,
            AttachHandle.deployable_id,
            Deployable.prepare,
            Device.uuid.label("device_uuid"),
            Device.hostname,
        )
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(AttachHandle.uuid == uuid)
    ).one_or_none()


def _arqs_of(tx: sa.Connection, instance: str) -> list[Record]:
    return list(arqs.lock(tx, Arq.instance_uuid == instance))


def _is_being_released(tx: sa.Connection, handle_id: int) -> bool:
    return _is_any(
        tx, sa.and_(Work.attach_handle_id == handle_id, Work.kind == WorkKind.RELEASE.value)
    )


def _is_being_attached(tx: sa.Connection, arq: Record) -> bool:
    return bool(arq.hidden) and attaching.busy(tx, arq.instance_uuid) is not None


def _is_any(tx: sa.Connection, term: sa.ColumnElement[bool]) -> bool:
    return bool(tx.execute(sa.select(sa.exists().where(term))).scalar_one())


LOG = logging.getLogger(__name__)

#: In whose name ARQs are deleted: of every project, but bound ones only with their instance.
_AUDITOR = Caller(None, None, "audit", everywhere=True)


@dataclass(frozen=True)
class Repaired:
    """What became of one finding; ``reason`` says why it was not repaired, empty if it was."""

    finding: Finding
    reason: str = ""


class Repairs:
    """Repairs findings; ``wake`` is called when work waits after a commit."""

    def __init__(self, *, db: Database, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._deleter = ArqReleaser(db=db, wake=wake)
        self._makers: Mapping[Fix, Callable[[Finding], bool]] = {
            Fix.RELEASE_HANDLE: lambda one: release_handle(db, one.key),
            Fix.HOLD_HANDLE: lambda one: hold_handle(db, one.key),
            Fix.DROP_HANDLE: lambda one: drop_handle(db, one.key),
            Fix.FAIL_BIND: lambda one: fail_bind(db, one.key),
            Fix.OPEN_INSTANCE: lambda one: open_instance(db, one.key),
            Fix.GUARD_INSTANCE: lambda one: guard_instance(db, one.key),
            Fix.REPUBLISH: lambda one: republish(db, one.host or ""),
            Fix.DELETE_ARQS: self._delete_arqs,
            Fix.DELETE_ARQ: self._delete_arq,
        }

    def repair(self, findings: Iterable[Finding], limit: int) -> list[Repaired]:
        """Repair what can be, in the order given, with at most ``limit`` changes.

        A host whose providers differ is one change, however many they are. One repair that fails
        stops no other. Answers all findings that have a repair.
        """
        answers: list[Repaired] = []
        told: set[str | None] = set()
        changes = 0
        for finding in findings:
            if finding.fix is None:
                continue
            if finding.fix is Fix.REPUBLISH and finding.host in told:
                answers.append(Repaired(finding))
                continue
            reason = "the limit of one pass is reached" if changes >= limit else self._try(finding)
            answers.append(Repaired(finding, reason))
            if not reason:
                changes += 1
                told |= {finding.host} if finding.fix is Fix.REPUBLISH else set()
        self._wake()
        return answers

    def _try(self, finding: Finding) -> str:
        """Make one repair; answers why it was not made, nothing if it was."""
        assert finding.fix is not None
        try:
            done = self._makers[finding.fix](finding)
        except exception.CyborgError as error:
            return str(error)
        if not done:
            return "it has changed meanwhile"
        LOG.info("Repaired %s %s (%s): %s", finding.noun, finding.key, finding.fix, finding.cause)
        return ""

    def _delete_arqs(self, finding: Finding) -> bool:
        """The ARQs of an instance that Nova no longer has, as Nova would have done it."""
        self._deleter.by_instance(_AUDITOR, str(uuid4()), finding.key)
        return True

    def _delete_arq(self, finding: Finding) -> bool:
        """An ARQ that was not bound; one that has been meanwhile is refused."""
        self._deleter.by_uuid(_AUDITOR, str(uuid4()), [finding.key])
        return True

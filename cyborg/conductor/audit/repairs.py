# SPDX-License-Identifier: Apache-2.0
"""Repair findings of the audit in the database, one transaction for each finding.

A repair locks instance, ARQs and handles, in this order, and checks the finding again. It returns
False and changes nothing when the finding is no longer true. A periodic job makes one conductor
audit the cloud and repair the findings.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, release
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.reports import suspicion
from cyborg.db import (
    arqs,
    attach_handles,
    attachments,
    deployables,
    dirty_units,
    events,
    hosts,
    instances,
    pools,
    services,
    work,
)
from cyborg.db.deployables import AgentHandle
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq, AttachHandle, Host, Work
from cyborg.db.transaction import Transaction
from cyborg.model.arq import Event, State
from cyborg.model.audit_findings import Finding, Fix, Kind, Severity
from cyborg.model.caller import Caller
from cyborg.model.cleaning import CLEANING, CleanResult, level, stricter
from cyborg.model.device import UNRELEASED
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import DeleteArqs, DeleteInstanceArqs

LOG = logging.getLogger(__name__)

#: The caller that deletes ARQs: of every project, but bound ones only with their instance.
_AUDITOR = Caller(None, None, "audit", all_projects=True)
_NO_WORK = "no work was left to finish this bind; an audit ended it"
_HANDLELESS = frozenset({State.INITIAL, State.UNBOUND, State.BIND_FAILED})


@dataclass(frozen=True)
class Repaired:
    """The result for one finding; ``reason`` says why it was not repaired, empty if it was."""

    finding: Finding
    reason: str = ""


def repair(db: Database, findings: Iterable[Finding], limit: int) -> list[Repaired]:
    """Repair findings in the given order, with at most ``limit`` changes.

    All providers of a host that differ count as one change. A repair that fails does not stop the
    others. Return the results of all findings that have a repair.
    """
    results: list[Repaired] = []
    republished: set[str | None] = set()
    changes = 0
    for finding in findings:
        if finding.fix is None:
            continue
        if finding.fix is Fix.REPUBLISH and finding.host in republished:
            results.append(Repaired(finding))
            continue
        limited = changes >= limit
        reason = "the limit of one pass is reached" if limited else _try(db, finding, finding.fix)
        results.append(Repaired(finding, reason))
        if not reason:
            changes += 1
            republished |= {finding.host} if finding.fix is Fix.REPUBLISH else set()
    return results


def _try(db: Database, finding: Finding, fix: Fix) -> str:
    """Make one repair; return why it was not made, an empty text if it was."""
    try:
        repaired = _REPAIRS[fix](db, finding)
    except exception.CyborgError as error:
        return str(error)
    if not repaired:
        return "it has changed meanwhile"
    LOG.info(
        "Audit finding on %s %s repaired (%s): %s",
        *(finding.noun, finding.key, finding.fix, finding.cause),
    )
    return ""


def _delete_arqs(db: Database, finding: Finding) -> bool:
    """Delete the ARQs of an instance that Nova no longer has, as Nova would have done it."""
    release.delete_of_instance(db, DeleteInstanceArqs(_AUDITOR, str(uuid4()), finding.key))
    return True


def _delete_arq(db: Database, finding: Finding) -> bool:
    """Delete an ARQ that was not bound; an ARQ that is bound by now is refused."""
    release.delete(db, DeleteArqs(_AUDITOR, str(uuid4()), [finding.key]))
    return True


@retried
def release_handle(db: Database, uuid: str) -> bool:
    """Release a handle that waits for its release without work, in quarantine or not.

    Where binds need preparation, the unit may still be prepared, and the data of a guest may be on
    it: its agent cleans up first. A unit that was set aside stays: only an operator frees it.
    """
    with db.writer() as tx:
        host_id = attach_handles.host_of_release(tx, uuid)
        if host_id is not None:
            # Placement must show more units; the lock of the host precedes that of the handle.
            tx.publish(host_id)
        row = _lock_handle(tx, uuid)
        if row is None or row.suspect:
            return False
        required = stricter(level(row.clean, None), dirty_units.level_of(tx, uuid))
        releasing = sa.and_(Work.attach_handle_id == row.id, Work.kind == WorkKind.RELEASE.value)
        if row.state not in UNRELEASED or _is_any(tx, releasing):
            return False
        if row.prepare or required in CLEANING:
            work.add(tx, [release.release_work(row.id, row.deployable_id, required)])
        else:
            release.finish(tx, row, clean=False)
        entry = events.Entry(
            "handle", uuid, "released by audit", hostname=row.hostname, device_uuid=row.device_uuid
        )
        events.record(tx, [entry])
    return True


@retried
def release_handle_of_arq(db: Database, arq_uuid: str) -> bool:
    """Release the handle of an ARQ whose state has no handle."""
    with db.writer() as tx:
        rows = [row for row in arqs.lock(tx, Arq.uuid == arq_uuid) if row.state in _HANDLELESS]
        if all(row.attach_handle_id is None for row in rows):
            return False
        release.release_units(tx, rows, request_key=None)
        arqs.clear_handle(tx, [row.id for row in rows])
        entries = [
            events.Entry(
                *("arq", arq_uuid, "handle taken by audit"),
                device_uuid=row.device_uuid,
                left_by=row.id,
            )
            for row in rows
        ]
        events.record(tx, entries)
    return True


@retried
def fail_bind(db: Database, arq_uuid: str) -> bool:
    """Fail a bind for which there is no work: release its handle, and notify Nova."""
    with db.writer() as tx:
        uuids = tx.execute(sa.select(Arq.instance_uuid).where(Arq.uuid == arq_uuid)).scalars()
        instances.lock(tx, [uuid for uuid in uuids if uuid is not None])
        rows = arqs.lock(tx, Arq.uuid == arq_uuid)
        preparing = sa.and_(Work.arq_uuid == arq_uuid, Work.kind == WorkKind.PREPARE.value)
        if _is_any(tx, preparing):
            return False
        # An attach in progress ends its own ARQs, which are hidden.
        if any(
            row.hidden
            and row.instance_uuid is not None
            and attachments.work_of(tx, row.instance_uuid) is not None
            for row in rows
        ):
            return False
        return bind.resolve(tx, rows, Event.FAIL, fault=_NO_WORK)


@retried
def set_units_aside(db: Database, provider: str, cause: str) -> bool:
    """Put the units of a provider that no ARQ has into quarantine, until an operator frees them.

    A server without an ARQ may have any of them, so none of them is cleaned either.
    """
    with db.writer() as tx:
        row = deployables.by_provider(tx, [provider]).get(provider)
        if row is None:
            return False
        tx.publish(row.host_id, row.service_host)
        handles = attach_handles.set_aside(tx, row.id)
        for handle in handles:
            work.cancel_release(tx, handle.id)
            if handle.cleaning:
                ended = {"result": CleanResult.FAILED.value, "reason": cause}
                record = {**(handle.clean_record or {}), **ended}
                attach_handles.record_cleaning(tx, handle.id, record)
        if row.pooled:
            pools.book(tx, [row.device_uuid])
        entries = [
            events.Entry(
                *("handle", handle.uuid, "quarantined"),
                hostname=row.hostname,
                reason=cause,
                device_uuid=row.device_uuid,
            )
            for handle in handles
        ]
        events.record(tx, entries)
    return bool(handles)


@retried
def hold_units(db: Database, host: str | None) -> None:
    """Neither offer nor reset units of all hosts, or of one, until ``allow_units``."""
    with db.writer() as tx:
        for id_ in _hosts(tx, host):
            suspicion.hold(tx, id_)


@retried
def allow_units(db: Database, host: str | None, excluded: Collection[str | None]) -> None:
    """Clean and offer the units that ``hold_units`` has held, except on the excluded hosts."""
    with db.writer() as tx:
        for id_, name in _hosts(tx, host).items():
            if name in excluded:
                continue
            hosts.set_unchecked(tx, id_, unchecked=False)
            agent = hosts.service_host_of(tx, id_)
            if agent is not None:
                services.record(tx, agent, events.CHECKED, name)


def _hosts(tx: Transaction, name: str | None) -> dict[int, str]:
    """Return id → name of all hosts, or of the one with this name; raises NotFound for it."""
    query = sa.select(Host.id, Host.name).order_by(Host.id)
    rows = tx.execute(query if name is None else query.where(Host.name == name)).all()
    if name is not None and not rows:
        raise exception.NotFound(noun="Host", key=name)
    return dict(rows)


@retried
def republish(db: Database, host: str) -> bool:
    """Have the agent of a host compare all of its providers again."""
    with db.writer() as tx:
        host_id = tx.execute(sa.select(Host.id).where(Host.name == host)).scalar_one_or_none()
        if host_id is None:
            return False
        tx.publish(host_id)
    return True


_REPAIRS: Mapping[Fix, Callable[[Database, Finding], bool]] = {
    Fix.RELEASE_HANDLE: lambda db, finding: release_handle(db, finding.key),
    Fix.DROP_HANDLE: lambda db, finding: release_handle_of_arq(db, finding.key),
    Fix.FAIL_BIND: lambda db, finding: fail_bind(db, finding.key),
    Fix.REPUBLISH: lambda db, finding: republish(db, finding.host or ""),
    Fix.SET_ASIDE: lambda db, finding: set_units_aside(db, finding.key, finding.cause),
    Fix.DELETE_ARQS: _delete_arqs,
    Fix.DELETE_ARQ: _delete_arq,
}


def _lock_handle(tx: Transaction, uuid: str) -> AgentHandle | None:
    """Lock a handle and return it; None when it is gone."""
    locked = sa.select(AttachHandle.id).where(AttachHandle.uuid == uuid).with_for_update()
    handle_id = tx.scalar(locked)
    # Not in the same statement, because a locking read must not join.
    return None if handle_id is None else deployables.tasks(tx, [handle_id]).get(handle_id)


def _is_any(tx: Transaction, term: sa.ColumnElement[bool]) -> bool:
    return bool(tx.execute(sa.select(sa.exists().where(term))).scalar_one())


class AuditMemory:
    """What a conductor remembers of its audits: the auditor, and the findings that were logged."""

    def __init__(self) -> None:
        self.auditor: Auditor | None = None
        self.logged: set[tuple[Kind, str, str]] = set()

    def forget(self) -> None:
        """Forget all audits."""
        self.auditor, self.logged = None, set()


def audit(
    db: Database, memory: AuditMemory, make_auditor: Callable[[], Auditor], limit: int
) -> None:
    """Audit the cloud, log new findings, and make at most ``limit`` repairs.

    For a moment several conductors may do it at once. This is harmless, since every repair checks
    its finding again under lock. Raises exception.Unavailable, without a repair, when Placement or
    Nova does not answer.
    """
    if memory.auditor is None:
        memory.auditor = make_auditor()
    verdict = memory.auditor.look()
    findings = {
        finding.identity: finding
        for finding in verdict.findings
        if finding.severity > Severity.INFO
    }
    # Each finding is logged once, for as long as it stays.
    for identity in findings.keys() - memory.logged:
        finding = findings[identity]
        LOG.warning(
            "Audit finding %s: %s %s: %s %s",
            *(finding.kind, finding.noun, finding.key, finding.cause, finding.remedy),
        )
    memory.logged = set(findings)
    if verdict.unasked:
        raise exception.Unavailable(
            peer="A service that the audit reads", reason=" ".join(verdict.unasked)
        )
    for answer in repair(db, verdict.findings, limit):
        if answer.reason:
            LOG.warning(
                "Audit finding on %s %s is not repaired: %s",
                *(answer.finding.noun, answer.finding.key, answer.reason),
            )

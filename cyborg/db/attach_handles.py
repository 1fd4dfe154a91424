# SPDX-License-Identifier: Apache-2.0
"""Claim attach handles under a lock, and change their ARQs and states by conditional updates.

``arq_id`` says which ARQ has a handle, and nothing else does. The allowed changes of states are
those of ``cyborg.model.device.HANDLE_MOVES``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.db.rows import Row, column, select
from cyborg.db.transaction import Transaction
from cyborg.model.device import HANDLE_MOVES, HandleEvent, HandleState

#: Terms: no ARQ gets the unit, not even one for which Placement has allocated a unit of the
#: provider. ``cyborg.db.units`` reserves such units in Placement, and others.
WITHHELD: Final = (AttachHandle.lost_ms.is_not(None), AttachHandle.blocked)


@dataclass(frozen=True)
class Claim:
    """A handle that the caller has locked; ``waits`` is True while its release is in progress."""

    id: int
    waits: bool


class SetAside(Row):
    """A handle that is put into quarantine because a server without an ARQ may have it."""

    id = column(AttachHandle.id)
    uuid = column(AttachHandle.uuid)
    cleaning = column(AttachHandle.cleaning)
    clean_record = column(AttachHandle.clean_record)


def lock(tx: Transaction, which: sa.ColumnElement[bool]) -> None:
    """Lock the handles that match a term, in order of id, so that no bind claims one."""
    query = sa.select(AttachHandle.id).where(which).order_by(AttachHandle.id)
    tx.execute(query.with_for_update()).all()


def lock_ready(tx: Transaction, ids: Collection[int]) -> dict[int, int | None]:
    """Lock handles, in order of id; return id → ARQ (None: no ARQ) of those that are ready."""
    columns = AttachHandle.id, AttachHandle.state, AttachHandle.arq_id
    query = sa.select(*columns).where(AttachHandle.id.in_(sorted(ids)))
    rows = tx.execute(query.order_by(AttachHandle.id).with_for_update())
    return {id_: arq_id for id_, state, arq_id in rows if state == HandleState.READY.value}


def claim(tx: Transaction, deployable_id: int, count: int, *, wait: bool) -> list[Claim]:
    """Lock and return up to ``count`` handles of a deployable that a bind can use.

    These are the handles without an ARQ that are not blocked: the ready ones and, after them,
    those that are being released. All terms are about the row that is locked, so a transaction that
    has waited for the lock judges the row as it is now. If another transaction has locked a handle,
    ``wait`` decides whether the statement waits for it or skips it. When it skips, a result shorter
    than ``count`` does not prove that there is no other handle, because the other transaction may
    roll back. After a skipping claim, do not wait in the same transaction: InnoDB keeps locks even
    on rows that it skips. One statement reads both states, because a handle that becomes ready
    between two statements would be in neither result.
    """
    statement = _CLAIM_WAITING if wait else _CLAIM_SKIPPING
    rows = tx.execute(statement, {"deployable": deployable_id, "count": count})
    claimed = [Claim(id_, state == HandleState.RELEASING.value) for id_, state in rows]
    return sorted(claimed, key=lambda handle: (handle.waits, handle.id))


def clean_first(tx: Transaction, units: Collection[int], record: Mapping[str, Any]) -> None:
    """Have units without an ARQ cleaned before their next guest; the caller has locked them.

    They are reserved at once.
    """
    values = {"cleaning": True, "clean_record": dict(record), "clean_ms": tx.now}
    tx.execute(_CLEAN_FIRST.values(**values), {"ids": sorted(units)})


def release(tx: Transaction, arqs: Mapping[int, int], used: Collection[int]) -> None:
    """Take handles from their ARQs (handle id → ARQ id), in one statement.

    A ready handle in ``used``, which the host has to clean up, becomes releasing. A handle that is
    being released stays as it is. The state is not part of the WHERE, so the statement waits for
    another transaction that is finishing a release. Raises a plain Conflict, and the caller rolls
    back, when an ARQ no longer has its handle: a read that waits for a lock shows the handles of
    the ARQs as they were before.
    """
    if not arqs:
        return
    values = {"ids": sorted(arqs), "arqs": sorted(arqs.values()), "used": sorted(used)}
    if tx.execute(_RELEASE, values).rowcount != len(arqs):
        raise exception.Conflict(reason="Another request has released an attach handle.")


def check_none(tx: Transaction, arqs: Collection[int]) -> None:
    """Raise a plain Conflict if any of these ARQs, which are locked, has a handle."""
    if arqs and tx.execute(_OF_ARQS, {"arqs": sorted(arqs)}).first() is not None:
        raise exception.Conflict(
            reason="An accelerator request has an attach handle already: another request has bound "
            "it, or the next audit takes the handle away."
        )


def quarantine(tx: Transaction, handle_id: int) -> bool:
    """Put a handle whose release failed into quarantine; an ARQ that waits for it keeps waiting.

    Returns False when the handle is not being released, or is in quarantine already.
    """
    return int(tx.execute(_QUARANTINE, {"ids": [handle_id]}).rowcount) > 0


def set_aside(tx: Transaction, deployable_id: int) -> Sequence[SetAside]:
    """Put all handles of a deployable that no ARQ has into quarantine, and return them.

    They are suspect: a server that the database does not know may have one of them. Handles that
    are suspect already stay as they are.
    """
    which = AttachHandle.deployable_id == deployable_id
    lock(tx, which)
    rows = tx.all(select(SetAside).where(which, MAY_BE_SET_ASIDE))
    if rows:
        tx.execute(_SET_ASIDE, {"ids": sorted(row.id for row in rows)})
    return rows


def host_of_release(tx: Transaction, uuid: str) -> int | None:
    """Return the host id of a handle if Placement shows the end of its release; None otherwise.

    That is so for a unit that is in quarantine, being cleaned, or shares capacity.
    """
    return tx.execute(
        sa.select(Device.host_id)
        .join(Deployable, Deployable.device_id == Device.id)
        .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        .where(
            AttachHandle.uuid == uuid,
            sa.or_(
                AttachHandle.state == HandleState.QUARANTINED.value,
                AttachHandle.cleaning,
                Device.pools.is_not(None),
            ),
        )
    ).scalar()


def lock_quarantined(tx: Transaction, device_id: int, key: str) -> int | None:
    """Lock a handle of a device by its key; return its id if it is in quarantine."""
    own = sa.select(Deployable.id).where(Deployable.device_id == device_id)
    rows = tx.execute(
        sa.select(AttachHandle.id, AttachHandle.state)
        .where(AttachHandle.deployable_id.in_(own), AttachHandle.handle_key == key)
        .order_by(AttachHandle.id)
        .with_for_update()
    )
    quarantined = [id_ for id_, state in rows if state == HandleState.QUARANTINED.value]
    return quarantined[0] if quarantined else None


def begin_cleaning(tx: Transaction, handle_id: int) -> None:
    """Mark a handle whose unit is being released as being cleaned, so that it is reserved."""
    tx.execute(_BEGIN_CLEANING, {"ids": [handle_id]})


def record_cleaning(tx: Transaction, handle_id: int, record: Mapping[str, Any]) -> None:
    """Store the last cleaning of a unit, see ``cyborg.model.cleaning.CleanRecord``."""
    tx.execute(
        sa.update(AttachHandle)
        .where(AttachHandle.id == handle_id)
        .values(clean_record=dict(record), clean_ms=tx.now)
    )


def finish_release(tx: Transaction, handle_id: int) -> None:
    """Mark a released handle as ready; an ARQ that waits for it has it from now on."""
    tx.execute(_FINISH_RELEASE, {"ids": [handle_id]})


def _allows(event: HandleEvent) -> sa.ColumnElement[bool]:
    """Return the term: the state of a handle allows this event."""
    return AttachHandle.state.in_(sorted(state.value for state in HANDLE_MOVES[event].sources))


def _target(event: HandleEvent) -> str:
    return HANDLE_MOVES[event].target.value


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_CLAIM = (
    sa.select(AttachHandle.id, AttachHandle.state)
    .where(
        AttachHandle.deployable_id == sa.bindparam("deployable"),
        AttachHandle.arq_id.is_(None),
        AttachHandle.state.in_([HandleState.READY.value, HandleState.RELEASING.value]),
        *(~term for term in WITHHELD),
    )
    # "ready" sorts before "releasing": a ready handle is claimed first.
    .order_by(AttachHandle.state, AttachHandle.id)
    .limit(sa.bindparam("count", type_=sa.Integer))
)
# The index on the ARQs would have the handles of all deployables that no ARQ has.
_CLAIM_SKIPPING = _CLAIM.with_hint(
    AttachHandle, "FORCE INDEX (ix_attach_handles_deployable_id_arq_id_state_id)", "mysql"
).with_for_update(skip_locked=True, of=AttachHandle)
# InnoDB would lock the entries of an index on ARQ and state one by one as it waits, those of
# handles that have been released since among them: a deadlock with a transaction that releases one.
_CLAIM_WAITING = _CLAIM.with_hint(
    AttachHandle, "FORCE INDEX (attach_handles_deployable_id_idx)", "mysql"
).with_for_update(of=AttachHandle)
_MOVABLE = sa.update(AttachHandle).where(AttachHandle.id.in_(_IDS))
_QUARANTINE, _CLEAN_FIRST = (
    _MOVABLE.where(_allows(event)).values(state=_target(event))
    for event in (HandleEvent.QUARANTINE, HandleEvent.CLEAN_FIRST)
)
#: The term: a handle can be set aside.
MAY_BE_SET_ASIDE = sa.and_(AttachHandle.arq_id.is_(None), sa.not_(AttachHandle.suspect))
_SET_ASIDE = _MOVABLE.values(state=_target(HandleEvent.SET_ASIDE), suspect=True, cleaning=False)
_BEGIN_CLEANING = _MOVABLE.where(_allows(HandleEvent.FINISH_RELEASE)).values(cleaning=True)
_FINISH_RELEASE = _MOVABLE.where(_allows(HandleEvent.FINISH_RELEASE)).values(
    cleaning=False, suspect=False, state=_target(HandleEvent.FINISH_RELEASE)
)
_ARQS: sa.BindParameter[int] = sa.bindparam("arqs", expanding=True)
_OF_ARQS = sa.select(AttachHandle.id).where(AttachHandle.arq_id.in_(_ARQS)).limit(1)
_USED = AttachHandle.id.in_(sa.bindparam("used", expanding=True))
_RELEASE = (
    # By the primary key, so that InnoDB locks the handles in order of id.
    _MOVABLE.with_hint("FORCE INDEX (PRIMARY)", dialect_name="mysql")
    .where(AttachHandle.arq_id.in_(_ARQS))
    .values(
        arq_id=None,
        state=sa.case(
            (
                sa.and_(_allows(HandleEvent.BEGIN_RELEASE), _USED),
                _target(HandleEvent.BEGIN_RELEASE),
            ),
            else_=AttachHandle.state,
        ),
    )
)

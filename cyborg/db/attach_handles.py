# SPDX-License-Identifier: Apache-2.0
"""Claim attach handles under a lock, and change their states by conditional updates.

The allowed changes are those of ``cyborg.model.device.HANDLE_MOVES``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db.models import Arq, AttachHandle, Deployable, Device
from cyborg.db.rows import Row, column, select
from cyborg.db.transaction import Transaction
from cyborg.model.device import HANDLE_MOVES, HandleEvent, HandleState


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
    clean_record: dict[str, Any] | None = column(AttachHandle.clean_record)


def lock(tx: Transaction, which: sa.ColumnElement[bool]) -> None:
    """Lock the handles that match a term, in order of id, so that no bind claims one."""
    query = sa.select(AttachHandle.id).where(which).order_by(AttachHandle.id)
    tx.execute(query.with_for_update()).all()


def lock_held(tx: Transaction, ids: Collection[int]) -> set[int]:
    """Lock handles, in order of id, and return those of them that are held."""
    query = sa.select(AttachHandle.id, AttachHandle.state).where(AttachHandle.id.in_(sorted(ids)))
    rows = tx.execute(query.order_by(AttachHandle.id).with_for_update())
    return {id_ for id_, state in rows if state == HandleState.HELD.value}


def lock_free(tx: Transaction, ids: Collection[int]) -> set[int]:
    """Lock handles, in order of id, and return those of them that are free and that no ARQ has."""
    query = sa.select(AttachHandle.id, AttachHandle.state).where(AttachHandle.id.in_(sorted(ids)))
    rows = tx.execute(query.where(~_HAS_ARQ).order_by(AttachHandle.id).with_for_update())
    return {id_ for id_, state in rows if state == HandleState.FREE.value}


def claim(tx: Transaction, deployable_id: int, count: int, *, wait: bool) -> list[Claim]:
    """Lock and return up to ``count`` handles of a deployable that a bind can use.

    These are the free handles that are not blocked and, after them, those that are being released
    and that no ARQ has claimed. If another transaction has locked a handle, ``wait`` decides
    whether the statement waits for it or skips it. When it skips, a result shorter than ``count``
    does not prove that no other handle is free, because the other transaction may roll back. After
    a skipping claim, do not wait in the same transaction: InnoDB keeps locks even on rows that it
    skips. One statement reads both states, because a handle that becomes free between two
    statements would be in neither result.
    """
    statement = _CLAIM_WAITING if wait else _CLAIM_SKIPPING
    rows = tx.execute(statement, {"deployable": deployable_id, "count": count})
    claimed = [Claim(id_, state == HandleState.RELEASING.value) for id_, state in rows]
    return sorted(claimed, key=lambda handle: (handle.waits, handle.id))


def hold(tx: Transaction, ids: Collection[int]) -> None:
    """Mark free handles as held; the caller has locked them."""
    if ids:
        tx.execute(_HOLD, {"ids": sorted(ids)})


def clean_first(tx: Transaction, units: Collection[int], record: Mapping[str, Any]) -> None:
    """Have free units cleaned before their next guest; the caller has locked them.

    They are reserved at once.
    """
    values = {"cleaning": True, "clean_record": dict(record), "clean_ms": tx.now}
    tx.execute(_CLEAN_FIRST.values(**values), {"ids": sorted(units)})


def release(tx: Transaction, clean: Collection[int], used: Collection[int]) -> None:
    """Release held handles, in one statement.

    Handles in ``used``, which the host has to clean up, become releasing; those in ``clean`` become
    free. Handles that are not held stay as they are. The state is not part of the WHERE, so the
    statement waits for another transaction that is finishing a release.
    """
    ids = sorted({*clean, *used})
    if ids:
        tx.execute(_RELEASE, {"ids": ids, "used": sorted(used)})


def quarantine(tx: Transaction, handle_id: int) -> bool:
    """Put a handle whose release failed into quarantine; an ARQ that waits for it keeps waiting.

    Returns False when the handle is not being released, or is in quarantine already.
    """
    return int(tx.execute(_QUARANTINE, {"ids": [handle_id]}).rowcount) > 0


def set_aside(tx: Transaction, deployable_id: int) -> Sequence[SetAside]:
    """Put all handles of a deployable that no ARQ has into quarantine, and return them.

    They are suspect: a server that the database does not know may have one of them. Handles that
    are held without an ARQ, or suspect already, stay as they are.
    """
    which = AttachHandle.deployable_id == deployable_id
    lock(tx, which)
    rows = tx.all(select(SetAside).where(which, MAY_BE_SET_ASIDE, ~_HAS_ARQ))
    if rows:
        tx.execute(_SET_ASIDE, {"ids": sorted(row.id for row in rows)})
    return rows


def quarantined_on(tx: Transaction, uuid: str) -> int | None:
    """Return the host id of a handle in quarantine, or cleaned now; None when it is neither."""
    return tx.execute(
        sa.select(Device.host_id)
        .join(Deployable, Deployable.device_id == Device.id)
        .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        .where(
            AttachHandle.uuid == uuid,
            sa.or_(AttachHandle.state == HandleState.QUARANTINED.value, AttachHandle.cleaning),
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


def pooled_on(tx: Transaction, uuid: str) -> int | None:
    """Return the host id of a handle whose device has pools; None when it has none."""
    return tx.execute(
        sa.select(Device.host_id)
        .join(Deployable, Deployable.device_id == Device.id)
        .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        .where(AttachHandle.uuid == uuid, Device.pools.is_not(None))
    ).scalar()


def begin_cleaning(tx: Transaction, handle_id: int) -> None:
    """Mark a handle whose unit is being released as cleaned now, so that it is reserved."""
    tx.execute(_BEGIN_CLEANING, {"ids": [handle_id]})


def record_cleaning(tx: Transaction, handle_id: int, record: Mapping[str, Any]) -> None:
    """Store the last cleaning of a unit, see ``cyborg.model.cleaning.CleanRecord``."""
    tx.execute(
        sa.update(AttachHandle)
        .where(AttachHandle.id == handle_id)
        .values(clean_record=dict(record), clean_ms=tx.now)
    )


def finish_release(tx: Transaction, handle_id: int) -> None:
    """Mark a released handle as free, or as held when an ARQ waits for it.

    A separate statement locks the handle first: only a read after that sees a bind that has just
    claimed it.
    """
    tx.execute(
        sa.select(AttachHandle.id).where(AttachHandle.id == handle_id).with_for_update()
    ).all()
    tx.execute(_FINISH_RELEASE, {"ids": [handle_id]})


def _allows(event: HandleEvent) -> sa.ColumnElement[bool]:
    """Return the term: the state of a handle allows this event."""
    return AttachHandle.state.in_(sorted(state.value for state in HANDLE_MOVES[event].sources))


def _target(event: HandleEvent) -> str:
    return HANDLE_MOVES[event].target.value


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_HAS_ARQ = sa.exists().where(Arq.attach_handle_id == AttachHandle.id)
_CLAIM = (
    sa.select(AttachHandle.id, AttachHandle.state)
    .where(
        AttachHandle.deployable_id == sa.bindparam("deployable"),
        AttachHandle.state.in_([HandleState.FREE.value, HandleState.RELEASING.value]),
        AttachHandle.lost_ms.is_(None),
        ~AttachHandle.blocked,
        ~_HAS_ARQ,
    )
    # "free" sorts before "releasing": a free handle is claimed first.
    .order_by(AttachHandle.state, AttachHandle.id)
    .limit(sa.bindparam("count", type_=sa.Integer))
)
_CLAIM_SKIPPING = _CLAIM.with_for_update(skip_locked=True, of=AttachHandle)
# InnoDB would lock the entries of an index on the state one by one as it waits, those of handles
# that are no longer held among them: a deadlock with a transaction that releases one.
_CLAIM_WAITING = _CLAIM.with_hint(
    AttachHandle, "FORCE INDEX (attach_handles_deployable_id_idx)", "mysql"
).with_for_update(of=AttachHandle)
_MOVABLE = sa.update(AttachHandle).where(AttachHandle.id.in_(_IDS))
_HOLD, _QUARANTINE, _CLEAN_FIRST = (
    _MOVABLE.where(_allows(event)).values(state=_target(event))
    for event in (HandleEvent.HOLD, HandleEvent.QUARANTINE, HandleEvent.CLEAN_FIRST)
)
#: The term: a handle without an ARQ can be set aside.
MAY_BE_SET_ASIDE = sa.and_(_allows(HandleEvent.SET_ASIDE), sa.not_(AttachHandle.suspect))
_SET_ASIDE = _MOVABLE.values(state=_target(HandleEvent.SET_ASIDE), suspect=True, cleaning=False)
_BEGIN_CLEANING = _MOVABLE.where(_allows(HandleEvent.FINISH_RELEASE)).values(cleaning=True)
_FINISH_RELEASE = _MOVABLE.where(_allows(HandleEvent.FINISH_RELEASE)).values(
    cleaning=False,
    suspect=False,
    state=sa.case(
        (_HAS_ARQ, _target(HandleEvent.PASS_ON)), else_=_target(HandleEvent.FINISH_RELEASE)
    ),
)
_USED = AttachHandle.id.in_(sa.bindparam("used", expanding=True))
_RELEASE = _MOVABLE.values(
    state=sa.case(
        (sa.and_(_allows(HandleEvent.BEGIN_RELEASE), _USED), _target(HandleEvent.BEGIN_RELEASE)),
        (_allows(HandleEvent.RELEASE), _target(HandleEvent.RELEASE)),
        else_=AttachHandle.state,
    )
)

# SPDX-License-Identifier: Apache-2.0
"""Attach handles: claimed under lock, moved by conditional updates."""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg.db.models import Arq, AttachHandle, Deployable, Device
from cyborg.model.device import UNRELEASED, HandleState


@dataclass(frozen=True)
class Claimed:
    """A handle under the caller's lock; ``waits`` tells that its release is still going on."""

    id: int
    waits: bool


def lock(tx: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Lock the handles for which a term holds, by id: no bind takes one after that."""
    query = sa.select(AttachHandle.id).where(which).order_by(AttachHandle.id)
    tx.execute(query.with_for_update()).all()


def claim(tx: sa.Connection, deployable_id: int, count: int, *, wait: bool) -> list[Claimed]:
    """Lock up to ``count`` handles of a deployable that are free, or about to be and promised to
    nobody; the free ones come first.

    Handles that a rival has locked are skipped, or waited for. Where they are skipped, fewer than
    asked for prove nothing, since the rival may roll back. Who has skipped must not wait in the
    same transaction: InnoDB keeps locks even on what it skips. Both states are asked for at once,
    for a handle that becomes free between two questions would be in neither answer.
    """
    statement = _CLAIM_WAITING if wait else _CLAIM_SKIPPING
    rows = tx.execute(statement, {"deployable": deployable_id, "count": count})
    claimed = [Claimed(row.id, row.state == HandleState.RELEASING.value) for row in rows]
    return sorted(claimed, key=lambda one: (one.waits, one.id))


def hold(tx: sa.Connection, ids: Collection[int]) -> None:
    """Free handles become held; their lock is the caller's."""
    if ids:
        tx.execute(_HOLD, {"ids": sorted(ids)})


def let_go(tx: sa.Connection, clean: Collection[int], used: Collection[int]) -> None:
    """Held handles become free, or releasing where the host has to clean up, in one statement.

    Others stay as they are. The state is no part of the WHERE, so that the end of a release that
    is just being written is waited for, not overlooked.
    """
    ids = sorted({*clean, *used})
    if ids:
        tx.execute(_LET_GO, {"ids": ids, "used": sorted(used)})


def quarantine(tx: sa.Connection, handle_id: int) -> bool:
    """A handle that cannot be released is given to nobody; who waits for it goes on waiting.

    False when it is not being released, or is in quarantine already.
    """
    moved = tx.execute(
        sa.update(AttachHandle)
        .where(AttachHandle.id == handle_id, AttachHandle.state == HandleState.RELEASING.value)
        .values(state=HandleState.QUARANTINED.value)
    )
    return int(moved.rowcount) > 0


def quarantined_on(tx: sa.Connection, uuid: str) -> int | None:
    """The id of the host of a handle that is in quarantine; None when it is not, or is gone."""
    found: int | None = tx.execute(
        sa.select(Device.host_id)
        .join(Deployable, Deployable.device_id == Device.id)
        .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        .where(AttachHandle.uuid == uuid, AttachHandle.state == HandleState.QUARANTINED.value)
    ).scalar()
    return found


def end_release(tx: sa.Connection, handle_id: int) -> None:
    """A released handle becomes free, or held when an ARQ has been waiting for it.

    It is locked in a statement of its own: only what is read after that knows of a bind that has
    just claimed it.
    """
    tx.execute(
        sa.select(AttachHandle.id).where(AttachHandle.id == handle_id).with_for_update()
    ).all()
    promised = sa.exists().where(Arq.attach_handle_id == AttachHandle.id)
    tx.execute(
        sa.update(AttachHandle)
        .where(
            AttachHandle.id == handle_id,
            AttachHandle.state.in_([one.value for one in UNRELEASED]),
        )
        .values(state=sa.case((promised, HandleState.HELD.value), else_=HandleState.FREE.value))
    )


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_PROMISED = sa.exists().where(Arq.attach_handle_id == AttachHandle.id)
_CLAIM = (
    sa.select(AttachHandle.id, AttachHandle.state)
    .where(
        AttachHandle.deployable_id == sa.bindparam("deployable"),
        AttachHandle.state.in_([HandleState.FREE.value, HandleState.RELEASING.value]),
        AttachHandle.lost_ms.is_(None),
        ~_PROMISED,
    )
    .order_by(AttachHandle.state, AttachHandle.id)
    .limit(sa.bindparam("count", type_=sa.Integer))
)
_CLAIM_SKIPPING = _CLAIM.with_for_update(skip_locked=True, of=AttachHandle)
# InnoDB would lock the entries of an index on the state one by one as it waits, those of handles
# that are held no longer among them: a deadlock with whoever lets go of one.
_CLAIM_WAITING = _CLAIM.with_hint(
    AttachHandle, "FORCE INDEX (attach_handles_deployable_id_idx)", "mysql"
).with_for_update(of=AttachHandle)
_HOLD = (
    sa.update(AttachHandle)
    .where(AttachHandle.id.in_(_IDS), AttachHandle.state == HandleState.FREE.value)
    .values(state=HandleState.HELD.value)
)
_WAS_HELD = AttachHandle.state == HandleState.HELD.value
_TO_CLEAN = sa.and_(_WAS_HELD, AttachHandle.id.in_(sa.bindparam("used", expanding=True)))
_LET_GO = (
    sa.update(AttachHandle)
    .where(AttachHandle.id.in_(_IDS))
    .values(
        state=sa.case(
            (_TO_CLEAN, HandleState.RELEASING.value),
            (_WAS_HELD, HandleState.FREE.value),
            else_=AttachHandle.state,
        )
    )
)

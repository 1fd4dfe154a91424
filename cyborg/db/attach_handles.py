# SPDX-License-Identifier: Apache-2.0
"""Attach handles: claimed under lock, moved by conditional updates."""

from collections.abc import Collection

import sqlalchemy as sa

from cyborg.db.models import Arq, AttachHandle
from cyborg.model.device import HandleState


def _claimable(deployable_id: int, state: HandleState, count: int) -> sa.Select[int, str]:
    return (
        sa.select(AttachHandle.id, AttachHandle.uuid)
        .where(
            AttachHandle.deployable_id == deployable_id,
            AttachHandle.state == state.value,
            AttachHandle.lost_ms.is_(None),
        )
        .order_by(AttachHandle.id)
        .limit(count)
    )


def claim_free(tx: sa.Connection, deployable_id: int, count: int) -> list[int]:
    """Lock up to ``count`` free handles of a deployable; answers their ids.

    Handles that a rival has locked are skipped at first. Fewer than asked for prove nothing
    then, since the rival may roll back: the second look waits for it.
    """
    query = _claimable(deployable_id, HandleState.FREE, count)
    ids = [row.id for row in tx.execute(query.with_for_update(skip_locked=True))]
    if len(ids) < count:
        ids = [row.id for row in tx.execute(query.with_for_update())]
    return ids


def claim_releasing(tx: sa.Connection, deployable_id: int, count: int) -> list[int]:
    """Lock up to ``count`` handles that are about to be free and have no new holder yet."""
    promised = sa.exists().where(Arq.attach_handle_id == AttachHandle.id)
    query = _claimable(deployable_id, HandleState.RELEASING, count).where(~promised)
    return [row.id for row in tx.execute(query.with_for_update())]


def hold(tx: sa.Connection, ids: Collection[int]) -> None:
    """Free handles become held; their lock is the caller's."""
    _move(tx, ids, HandleState.FREE, HandleState.HELD)


def free(tx: sa.Connection, ids: Collection[int]) -> None:
    """Held handles that need no release become free; others stay as they are."""
    _move(tx, ids, HandleState.HELD, HandleState.FREE)


def begin_release(tx: sa.Connection, ids: Collection[int]) -> None:
    """Held handles whose host has to clean up become releasing."""
    _move(tx, ids, HandleState.HELD, HandleState.RELEASING)


def end_release(tx: sa.Connection, handle_id: int) -> None:
    """A released handle becomes free, or held when an ARQ has been waiting for it."""
    promised = sa.exists().where(Arq.attach_handle_id == AttachHandle.id)
    tx.execute(
        sa.update(AttachHandle)
        .where(AttachHandle.id == handle_id, AttachHandle.state == HandleState.RELEASING.value)
        .values(state=sa.case((promised, HandleState.HELD.value), else_=HandleState.FREE.value))
    )


def state_of(tx: sa.Connection, handle_id: int) -> str | None:
    """The state of one handle; None when it is gone."""
    found: str | None = tx.execute(
        sa.select(AttachHandle.state).where(AttachHandle.id == handle_id)
    ).scalar_one_or_none()
    return found


def _move(
    tx: sa.Connection, ids: Collection[int], source: HandleState, target: HandleState
) -> None:
    if ids:
        tx.execute(
            sa.update(AttachHandle)
            .where(AttachHandle.id.in_(sorted(ids)), AttachHandle.state == source.value)
            .values(state=target.value)
        )

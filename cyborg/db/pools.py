# SPDX-License-Identifier: Apache-2.0
"""Book the shared capacity of devices in SQL.

``cyborg.model.availability`` has the rule. The pools of a device are booked under the lock of its
host's row, after every change of the handles that takes or returns capacity, and in the same
transaction.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.db.rows import Row, column, select
from cyborg.db.transaction import Transaction
from cyborg.model.availability import Pooled, blocked, fitting, taken
from cyborg.model.device import HandleState


class _PooledHandle(Row):
    """A handle with the pools of its device, and what it takes of them while it is not free."""

    id = column(AttachHandle.id)
    deployable_id = column(AttachHandle.deployable_id)
    free = column(
        sa.and_(AttachHandle.arq_id.is_(None), AttachHandle.state == HandleState.READY.value)
    )
    lost = column(AttachHandle.lost_ms.is_not(None))
    blocked = column(AttachHandle.blocked)
    cost = column(Deployable.cost)
    device_id = column(Device.id)
    pools = column(Device.pools)


def book(tx: Transaction, uuids: Collection[str], *, claimed: Collection[int] = ()) -> bool:
    """Block the free handles of devices that no longer fit, and unblock those that fit again.

    Handles in ``claimed`` are not free: ARQs get them in this transaction. Return whether any
    changed. One statement reads the handles, and at most two change those that differ; none without
    devices. The caller has locked the host.
    """
    if not uuids:
        return False
    changes: dict[bool, list[int]] = {True: [], False: []}
    for rows in _by_device(tx, Device.uuid.in_(sorted(uuids))).values():
        full = blocked(rows[0].pools or {}, _units(rows, claimed))
        for row in rows:
            if row.blocked is not (row.id in full):
                changes[row.id in full].append(row.id)
    for value, ids in changes.items():
        if ids:
            statement = sa.update(AttachHandle).where(AttachHandle.id.in_(sorted(ids)))
            tx.execute(statement.values(blocked=value))
    return any(changes.values())


def used(tx: Transaction, ids: Collection[int]) -> dict[int, dict[str, int]]:
    """Return device id → what its units take of its pools (name → amount), in one statement.

    Devices without handles and pools that no unit takes anything of are left out.
    """
    if not ids:
        return {}
    by_device = _by_device(tx, Device.id.in_(sorted(ids)))
    return {id_: taken(_units(rows)) for id_, rows in by_device.items()}


def full(
    tx: Transaction, uuid: str, cost: Mapping[str, int], count: int, *, claimed: Collection[int]
) -> str | None:
    """Return which pools of a device have no room for ``count`` units, as a clause.

    None: all of them have room. ``claimed`` is that of ``book``.
    """
    for rows in _by_device(tx, Device.uuid == uuid).values():
        amounts, sizes = taken(_units(rows, claimed)), rows[0].pools or {}
        remaining = {pool: size - amounts.get(pool, 0) for pool, size in sizes.items()}
        clauses = [
            f"{pool} ({amounts.get(pool, 0)} of {sizes.get(pool, 0)} used, {amount} needed for "
            "each unit)"
            for pool, amount in sorted(cost.items())
            if (fitting({pool: amount}, remaining) or 0) < count
        ]
        if clauses:
            return ", ".join(clauses)
    return None


def _by_device(tx: Transaction, term: sa.ColumnElement[bool]) -> dict[int, list[_PooledHandle]]:
    rows = tx.all(
        select(_PooledHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(term)
        .order_by(AttachHandle.id)
    )
    by_device: dict[int, list[_PooledHandle]] = defaultdict(list)
    for row in rows:
        by_device[row.device_id].append(row)
    return by_device


def _units(rows: Sequence[_PooledHandle], claimed: Collection[int] = ()) -> list[Pooled]:
    return [
        Pooled(
            *(row.id, row.deployable_id),
            free=row.free and row.id not in claimed,
            lost=row.lost,
            cost=row.cost or {},
        )
        for row in rows
    ]

# SPDX-License-Identifier: Apache-2.0
"""Instances that have, or had, accelerators: the row that serialises bind against delete.

The row stays when the instance is released, because it remembers the owner: an administrator who
evacuates or unshelves a server binds new ARQs in its owner's name.
"""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.models import Arq, Instance


def lock(tx: sa.Connection, uuids: Iterable[str]) -> dict[str, Record]:
    """Lock the rows that exist; uuid → (uuid, project_id, operation_id, bound)."""
    rows = tx.execute(
        sa.select(Instance.uuid, Instance.project_id, Instance.operation_id, Instance.bound)
        .where(Instance.uuid.in_(sorted(set(uuids))))
        .order_by(Instance.uuid)
        .with_for_update()
    )
    return {row.uuid: row for row in rows}


def bind(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    known: Iterable[str],
    instances: Sequence[dict[str, str | None]],
) -> None:
    """Mark instances (uuid, project_id, hostname, operation_id) as bound.

    ``known`` are the uuids that ``lock`` found. A rival's row for a new one shows as a
    duplicate key, which ends the transaction.
    """
    known = set(known)
    fresh = [{**one, "bound": True} for one in instances if one["uuid"] not in known]
    if fresh:
        tx.execute(sa.insert(Instance).values(updated_ms=now), fresh)
    for one in instances:
        if one["uuid"] in known:
            tx.execute(
                sa.update(Instance)
                .where(Instance.uuid == one["uuid"])
                .values(
                    project_id=one["project_id"],
                    hostname=one["hostname"],
                    operation_id=one["operation_id"],
                    bound=True,
                    updated_ms=now,
                )
            )


def release(tx: sa.Connection, now: sa.ColumnElement[int], uuids: Iterable[str]) -> None:
    """Open instances for their next bind, those only whose last ARQ is gone from them."""
    held = sa.exists().where(Arq.instance_uuid == Instance.uuid)
    tx.execute(
        sa.update(Instance)
        .where(Instance.uuid.in_(sorted(set(uuids))), ~held)
        .values(bound=False, operation_id=None, updated_ms=now)
    )

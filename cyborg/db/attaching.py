# SPDX-License-Identifier: Apache-2.0
"""What attaching and detaching read of an instance: its ARQs, their handles, who is at them."""

from collections import Counter
from collections.abc import Collection

import sqlalchemy as sa

from cyborg.db.base import Record
from cyborg.db.models import Arq, AttachHandle, Deployable, Work
from cyborg.model.arq import State
from cyborg.model.work import WorkKind

#: The ``origin`` of an ARQ that an attach made; those of flavors and ports have none.
ATTACHED = "attach"
_KINDS = [WorkKind.ATTACH.value, WorkKind.DETACH.value]
_BINDING = [State.BOUND.value, State.BIND_STARTED.value]


def busy(tx: sa.Connection, instance_uuid: str) -> Record | None:
    """The work that attaches to or detaches from an instance; None when there is none."""
    return tx.execute(
        sa.select(Work.id, Work.kind, Work.operation_id)
        .where(Work.instance_uuid == instance_uuid, Work.kind.in_(_KINDS))
        .order_by(Work.id)
        .limit(1)
    ).one_or_none()


def wake(tx: sa.Connection, now: sa.ColumnElement[int], instances: Collection[str]) -> None:
    """Have the attach of these instances look again now."""
    if instances:
        tx.execute(
            sa.update(Work)
            .where(
                Work.instance_uuid.in_(sorted(instances)),
                Work.kind == WorkKind.ATTACH.value,
                Work.owner_id.is_(None),
            )
            .values(not_before_ms=now)
        )


def being_prepared(tx: sa.Connection, arq_uuids: Collection[str]) -> bool:
    """Whether the host still has to answer for any of these ARQs."""
    preparing = sa.exists().where(
        Work.arq_uuid.in_(sorted(arq_uuids)), Work.kind == WorkKind.PREPARE.value
    )
    return bool(tx.execute(sa.select(preparing)).scalar_one())


def attach_types(tx: sa.Connection, instance_uuid: str) -> set[str]:
    """How the guest gets hold of what the instance has, or is about to have."""
    rows = tx.execute(
        sa.select(AttachHandle.attach_type)
        .join(Arq, Arq.attach_handle_id == AttachHandle.id)
        .where(Arq.instance_uuid == instance_uuid)
    )
    return set(rows.scalars())


def types_of(tx: sa.Connection, handle_ids: Collection[int]) -> set[str]:
    """The attach types of handles."""
    rows = tx.execute(
        sa.select(AttachHandle.attach_type).where(AttachHandle.id.in_(sorted(handle_ids)))
    )
    return set(rows.scalars())


def units(tx: sa.Connection, instance_uuid: str) -> Counter[str]:
    """How many units of each provider the instance's ARQs bind, or are about to."""
    rows = tx.execute(
        sa.select(Arq.device_rp_uuid, sa.func.count().label("units"))
        .where(Arq.instance_uuid == instance_uuid, Arq.state.in_(_BINDING))
        .group_by(Arq.device_rp_uuid)
    )
    return Counter({row.device_rp_uuid: int(row.units) for row in rows})


def made_by_attach(tx: sa.Connection, instance_uuid: str) -> list[Record]:
    """What attach has added to an instance, and whether it is hidden; the oldest first."""
    rows = tx.execute(
        sa.select(Arq.uuid, Arq.hidden)
        .where(Arq.instance_uuid == instance_uuid, Arq.origin == ATTACHED)
        .order_by(Arq.id)
    )
    return list(rows)


def providers(tx: sa.Connection, arq_uuids: Collection[str]) -> dict[str, str]:
    """The providers of bound ARQs, with their resource classes."""
    rows = tx.execute(
        sa.select(Arq.device_rp_uuid, Deployable.resource_class)
        .join(Deployable, Deployable.id == Arq.deployable_id)
        .where(Arq.uuid.in_(sorted(arq_uuids)))
    )
    return {row.device_rp_uuid: row.resource_class for row in rows}

# SPDX-License-Identifier: Apache-2.0
"""Read what attach and detach need of an instance: its ARQs, their handles, its work."""

from collections import Counter
from collections.abc import Collection

import sqlalchemy as sa

from cyborg.db.models import Arq, AttachHandle, Deployable, Work
from cyborg.db.rows import Row, column, select
from cyborg.db.transaction import Transaction
from cyborg.model.arq import BINDING
from cyborg.model.work import WorkKind

#: The ``origin`` of an ARQ that an attach created; ARQs of flavors and ports have none.
ATTACHED = "attach"
_KINDS = [WorkKind.ATTACH.value, WorkKind.DETACH.value]
_BINDING = sorted(state.value for state in BINDING)


class AttachWork(Row):
    """Work that attaches to or detaches from an instance."""

    id = column(Work.id)
    kind = column(Work.kind)
    operation_id = column(Work.operation_id)


def work_of(tx: Transaction, instance_uuid: str) -> AttachWork | None:
    """Return the work that attaches to or detaches from an instance; None when there is none."""
    return tx.first(
        select(AttachWork)
        .where(Work.instance_uuid == instance_uuid, Work.kind.in_(_KINDS))
        .order_by(Work.id)
        .limit(1)
    )


def make_due(tx: Transaction, instances: Collection[str]) -> None:
    """Make the attach work of these instances due now, unless a conductor owns it.

    The runner is woken after the commit.
    """
    if instances:
        tx.execute(
            sa.update(Work)
            .where(
                Work.instance_uuid.in_(sorted(instances)),
                Work.kind == WorkKind.ATTACH.value,
                Work.owner_id.is_(None),
            )
            .values(not_before_ms=tx.now)
        )
        tx.wake_runner()


def is_preparing(tx: Transaction, arq_uuids: Collection[str]) -> bool:
    """Return whether the preparation of any of these ARQs is not finished."""
    preparing = sa.exists().where(
        Work.arq_uuid.in_(sorted(arq_uuids)), Work.kind == WorkKind.PREPARE.value
    )
    return bool(tx.execute(sa.select(preparing)).scalar_one())


def types_of_instance(tx: Transaction, instance_uuid: str) -> set[str]:
    """Return the attach types of the handles that ARQs of the instance hold or have claimed."""
    rows = tx.execute(
        sa.select(AttachHandle.attach_type)
        .join(Arq, Arq.id == AttachHandle.arq_id)
        .where(Arq.instance_uuid == instance_uuid)
    )
    return set(rows.scalars())


def types_of_handles(tx: Transaction, handle_ids: Collection[int]) -> set[str]:
    """Return the attach types of these handles."""
    rows = tx.execute(
        sa.select(AttachHandle.attach_type).where(AttachHandle.id.in_(sorted(handle_ids)))
    )
    return set(rows.scalars())


def units(tx: Transaction, instance_uuid: str) -> Counter[str]:
    """Return how many units of each provider the instance's ARQs hold or are being bound to."""
    rows = tx.execute(
        sa.select(Arq.device_rp_uuid, sa.func.count())
        .where(Arq.instance_uuid == instance_uuid, Arq.state.in_(_BINDING))
        .group_by(Arq.device_rp_uuid)
    )
    return Counter({provider: amount for provider, amount in rows if provider is not None})


def group_size(tx: Transaction, arq_uuid: str) -> int:
    """Return how many units of its deployable go with the unit of an ARQ; 1 without a unit."""
    query = sa.select(Deployable.group_size).join(Arq, Arq.deployable_id == Deployable.id)
    return tx.execute(query.where(Arq.uuid == arq_uuid)).scalar() or 1


def providers(tx: Transaction, arq_uuids: Collection[str]) -> dict[str, str]:
    """Return provider uuid → resource class of bound ARQs."""
    rows = tx.execute(
        sa.select(Arq.device_rp_uuid, Deployable.resource_class)
        .join(Deployable, Deployable.id == Arq.deployable_id)
        .where(Arq.uuid.in_(sorted(arq_uuids)))
    )
    return {provider: name for provider, name in rows if provider is not None}

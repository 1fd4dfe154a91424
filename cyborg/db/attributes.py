# SPDX-License-Identifier: Apache-2.0
"""Read, store and delete attributes of deployables in SQL."""

from dataclasses import asdict

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.db.models import Deployable
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Attribute, Origin

# The values of ``Attribute`` in its order.
_VISIBLE = sa.select(
    models.Attribute.uuid,
    models.Attribute.deployable_id,
    models.Attribute.key,
    models.Attribute.value,
    models.Attribute.created_at,
    models.Attribute.updated_at,
)
# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_SHOW = _VISIBLE.where(models.Attribute.uuid == sa.bindparam("uuid"))
SORTABLE = listing.sortable(
    models.Attribute, "id", "uuid", "deployable_id", "created_at", "updated_at"
)


def show(tx: Transaction, uuid: str) -> Attribute | None:
    """Return the attribute with this uuid; None when there is none."""
    row = tx.execute(_SHOW, {"uuid": uuid}).first()
    return None if row is None else Attribute(*row)


def page(
    tx: Transaction,
    page: listing.Page,
    *,
    deployable: int | str | None = None,
    key: str | None = None,
) -> list[Attribute]:
    """Return a page of all attributes, or of those of one deployable (by id or uuid) or key."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, page)
    if isinstance(deployable, int):
        query = query.where(models.Attribute.deployable_id == deployable)
    elif deployable is not None:
        of_uuid = sa.select(models.Deployable.id).where(models.Deployable.uuid == deployable)
        query = query.where(models.Attribute.deployable_id == of_uuid.scalar_subquery())
    if key is not None:
        query = query.where(models.Attribute.key == key)
    return [Attribute(*row) for row in tx.execute(query).all()]


def deployable_id(tx: Transaction, key: int | str) -> int | None:
    """Return the id of the deployable with this id or uuid; None when there is none."""
    column = Deployable.id if isinstance(key, int) else Deployable.uuid
    return tx.execute(sa.select(Deployable.id).where(column == key)).scalar()


def insert(tx: Transaction, attribute: Attribute) -> None:
    """Store an operator's attribute; raise Conflict when its uuid exists."""
    tx.execute(
        sa.insert(models.Attribute).values(**asdict(attribute), origin=Origin.OPERATOR.value)
    )


def remove(tx: Transaction, uuid: str) -> bool:
    """Delete an attribute; return False when there is none."""
    result = tx.execute(sa.delete(models.Attribute).where(models.Attribute.uuid == uuid))
    return int(result.rowcount) > 0

# SPDX-License-Identifier: Apache-2.0
"""Read, store and delete attributes of deployables in SQL."""

from dataclasses import asdict

import sqlalchemy as sa

from cyborg.db import deployables, listing, models
from cyborg.db.models import Deployable
from cyborg.db.rows import Shown, shown_hardware
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Attribute, Origin
from cyborg.model.scope import Scope


class _Attribute(models.Attribute, Shown):
    """An attribute of a deployable."""

    __abstract__ = True


_VISIBLE = shown_hardware(
    _Attribute,
    lambda project_id: deployables.is_of_project(models.Attribute.deployable_id, project_id),
)
# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_SHOW = _VISIBLE.where(models.Attribute.uuid == sa.bindparam("uuid"))
SORTABLE = listing.sortable(
    models.Attribute, "id", "uuid", "deployable_id", "created_at", "updated_at"
)


def show(tx: Transaction, uuid: str, scope: Scope) -> Attribute | None:
    """Return the attribute with this uuid if the scope reaches it."""
    row = tx.first(_SHOW.within(scope), {"uuid": uuid})
    return None if row is None else _attribute(row)


def page(
    tx: Transaction,
    page: listing.Page,
    scope: Scope,
    *,
    deployable: int | str | None = None,
    key: str | None = None,
) -> list[Attribute]:
    """Return a page of the attributes in the scope.

    Optionally of one deployable (by id or uuid) or key only.
    """
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    if isinstance(deployable, int):
        query = query.where(models.Attribute.deployable_id == deployable)
    elif deployable is not None:
        of_uuid = sa.select(models.Deployable.id).where(models.Deployable.uuid == deployable)
        query = query.where(models.Attribute.deployable_id == of_uuid.scalar_subquery())
    if key is not None:
        query = query.where(models.Attribute.key == key)
    return [_attribute(row) for row in tx.all(query)]


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


def _attribute(row: _Attribute) -> Attribute:
    return Attribute(
        uuid=row.uuid,
        deployable_id=row.deployable_id,
        key=row.key,
        value=row.value,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )

# SPDX-License-Identifier: Apache-2.0
"""How operators' attributes come and go."""

from dataclasses import asdict

import sqlalchemy as sa

from cyborg.db import models
from cyborg.db.models import Deployable
from cyborg.model.attribute import Attribute, Origin


def deployable_id(tx: sa.Connection, key: int | str) -> int | None:
    """The id of the deployable with this id or uuid; None when there is none."""
    by = Deployable.id if isinstance(key, int) else Deployable.uuid
    found: int | None = tx.execute(sa.select(Deployable.id).where(by == key)).scalar()
    return found


def insert(tx: sa.Connection, attribute: Attribute) -> None:
    """Store an operator's attribute; a uuid that is taken shows as a duplicate key."""
    tx.execute(
        sa.insert(models.Attribute).values(**asdict(attribute), origin=Origin.OPERATOR.value)
    )


def delete(tx: sa.Connection, uuid: str) -> bool:
    """Remove an attribute; False when there is none."""
    gone = tx.execute(sa.delete(models.Attribute).where(models.Attribute.uuid == uuid))
    return int(gone.rowcount) > 0

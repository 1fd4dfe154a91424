# SPDX-License-Identifier: Apache-2.0
"""Serialise the transactions that count what a project has, and count it.

Quotas have the resource ``accelerator_requests``, and for each resource class one for the bound
accelerators, for example ``class:FPGA``.
"""

from typing import Final

import sqlalchemy as sa

from cyborg.db.models import Arq, Deployable, Project
from cyborg.db.transaction import Transaction

_ID: Final = sa.bindparam("project_id", type_=sa.String)
_LOCK: Final = sa.select(Project.id).where(Project.id == _ID).with_for_update()
#: The resource of all ARQs of a project, whatever their state is.
REQUESTS: Final = "accelerator_requests"
_CLASS: Final = "class:"
_UNBOUND: Final = sa.select(sa.func.count()).where(
    Arq.project_id == _ID,
    Arq.instance_uuid.is_(None),
    Arq.operation_id.is_distinct_from(sa.bindparam("request_key", type_=sa.String)),
)


def lock(tx: Transaction, project_id: str) -> None:
    """Lock the row of a project until the end of the transaction, and create it if needed.

    What a later statement of the transaction counts stays true until then, if all transactions
    that add to it have locked the row. The lock comes after those of ARQs.
    """
    if tx.execute(_LOCK, {"project_id": project_id}).first() is None:
        # A row that another transaction has just inserted is locked as well.
        tx.execute(_upsert(tx.dialect.name), {"id": project_id})


def _upsert(dialect: str) -> sa.Insert:
    # Imported here: a process needs the dialect of one database.
    if dialect == "mysql":
        from sqlalchemy.dialects import mysql

        mine = mysql.insert(Project)
        return mine.on_duplicate_key_update(id=mine.inserted.id)
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    new = insert(Project)
    row: sa.Insert = new.on_conflict_do_update(index_elements=["id"], set_={"id": new.excluded.id})
    return row


def count_unbound(tx: Transaction, project_id: str) -> int:
    """Return how many ARQs of a project have no instance, without those of the tx's request."""
    return int(tx.execute(_UNBOUND, _parameters(tx, project_id)).scalar_one())


def exceeds(limit: int, used: int, requested: int) -> bool:
    """Return whether a project would have more than its limit; a negative one stands for none."""
    return 0 <= limit < used + requested


def of_class(resource_class: str) -> str:
    """Return the resource that stands for the bound accelerators of a resource class."""
    return f"{_CLASS}{resource_class}"


def usage(tx: Transaction, project_id: str) -> dict[str, int]:
    """Return resource → how many a project has, without the ARQs of the transaction's request.

    Classes of which the project has no accelerator are missing.
    """
    rows = tx.execute(_USAGE, _parameters(tx, project_id)).all()
    counts = {of_class(row.resource_class): row.amount for row in rows if row.resource_class}
    return {REQUESTS: sum(row.amount for row in rows), **counts}


def _parameters(tx: Transaction, project_id: str) -> dict[str, str]:
    # A repetition of a request that has been carried out must not count its own ARQs.
    return {"project_id": project_id, "request_key": tx.request_key or ""}


_USAGE: Final = (
    sa.select(Deployable.resource_class, sa.func.count().label("amount"))
    .select_from(Arq)
    .outerjoin(Deployable, Deployable.id == Arq.deployable_id)
    .where(
        Arq.project_id == _ID,
        Arq.operation_id.is_distinct_from(sa.bindparam("request_key", type_=sa.String)),
    )
    .group_by(Deployable.resource_class)
)

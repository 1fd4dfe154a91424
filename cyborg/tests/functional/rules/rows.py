# SPDX-License-Identifier: Apache-2.0
"""Looks at rows, and rows changed by hand."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import arqs
from cyborg.db.arqs import LockedArq
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Deployable, Work
from cyborg.db.transaction import Transaction
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.unit_states import HANDLE_ID, UNIT


def execute(db: Database, *statements: sa.Executable) -> None:
    """Change rows by hand, in one transaction."""
    with db.writer() as tx:
        for statement in statements:
            tx.execute(statement)


def handles_of(db: Database, host: str) -> list[tuple[int, str]]:
    """(id, what it is) of the units of a host's device, by id."""
    with db.reader() as tx:
        rows = tx.execute(
            sa.select(AttachHandle.id, UNIT)
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .where(Deployable.rp_uuid == provider_of(host, 0))
            .order_by(AttachHandle.id)
        )
        return [(id_, state) for id_, state in rows]


def set_handle(db: Database, handle_id: int, **values: Any) -> None:
    execute(db, sa.update(AttachHandle).where(AttachHandle.id == handle_id).values(**values))


def arq_of(db: Database, uuid: str) -> Any:
    """The row of an ARQ, by column, with the id of its handle."""
    with db.reader() as tx:
        query = sa.select(Arq.__table__, HANDLE_ID.label("attach_handle_id"))
        return tx.execute(query.where(Arq.uuid == uuid)).one()


def set_arq(db: Database, uuid: str, **values: Any) -> None:
    execute(db, sa.update(Arq).where(Arq.uuid == uuid).values(**values))


def locked(tx: Transaction, uuid: str) -> Sequence[LockedArq]:
    """The ARQ as the moves of a bind take it."""
    return arqs.lock(tx, Arq.uuid == uuid)


def work_kinds(db: Database) -> list[str]:
    """The kinds of all work, sorted."""
    with db.reader() as tx:
        return sorted(tx.execute(sa.select(Work.kind)).scalars())

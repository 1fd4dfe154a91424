# SPDX-License-Identifier: Apache-2.0
"""The append-only history: who had which device when, and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import sqlalchemy as sa

from cyborg.db.models import Event
from cyborg.model.caller import Caller


@dataclass(frozen=True)
class Entry:
    """One line of history; ``noun`` is 'arq', 'device', 'device_profile' or 'attribute'."""

    noun: str
    subject_uuid: str
    action: str
    instance_uuid: str | None = None
    hostname: str | None = None
    reason: str | None = None


def record(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    entries: Iterable[Entry],
    *,
    caller: Caller | None = None,
    operation: str | None = None,
) -> None:
    """Append entries in one statement; ``caller`` is None when the service acts by itself."""
    common = {
        "project_id": caller.project_id if caller else None,
        "user_id": caller.user_id if caller else None,
        "request_id": caller.request_id if caller else None,
        "operation_id": operation,
    }
    rows = [{**vars(entry), **common} for entry in entries]
    if rows:
        tx.execute(_insert(now), rows)


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    return sa.insert(Event).values(at_ms=now)


def done_by(tx: sa.Connection, operation: str, action: str, uuids: Iterable[str]) -> set[str]:
    """Which of the subjects this operation has already treated so."""
    rows = tx.execute(
        sa.select(Event.subject_uuid).where(
            Event.subject_uuid.in_(list(uuids)),
            Event.operation_id == operation,
            Event.action == action,
        )
    )
    return set(rows.scalars())


def operation_known(tx: sa.Connection, operation: str) -> bool:
    """Whether this operation has left its mark, so that it is being repeated now."""
    mark = sa.select(sa.exists().where(Event.operation_id == operation))
    return bool(tx.execute(mark).scalar_one())

# SPDX-License-Identifier: Apache-2.0
"""The append-only history: who had which device when, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from cyborg import context
from cyborg.db.models import Event
from cyborg.model.caller import Caller

#: How many lines of history are told at most.
TOLD: Final = 50
#: Where the detail of a line has what its request was known by besides its own id.
_ORIGIN: Final = "origin"


@dataclass(frozen=True)
class Entry:
    """One line of history.

    ``noun`` says what it is about: 'arq', 'device', 'deployable', 'handle', 'instance',
    'device_profile', 'attribute', 'service', 'driver' or 'operation'. ``state`` is what it is from
    now on, where the action does not tell.
    """

    noun: str
    subject_uuid: str
    action: str
    instance_uuid: str | None = None
    hostname: str | None = None
    reason: str | None = None
    state: str | None = None

    def columns(self, known: Mapping[str, str]) -> dict[str, Any]:
        """What is stored of it; ``known`` is what else is known of the request, see ``origin``."""
        columns = dict(vars(self))
        state = columns.pop("state")
        detail = {"state": state, _ORIGIN: known}
        return {**columns, "detail": {key: told for key, told in detail.items() if told} or None}


def record(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    entries: Iterable[Entry],
    *,
    caller: Caller | None = None,
    operation: str | None = None,
) -> None:
    """Append entries in one statement; ``caller`` is None when the service acts by itself.

    Raises Unavailable when the caller's request has expired: its transaction must not stand.
    """
    known = context.ids() if caller else {}
    known.pop(context.REQUEST_ID, None)
    common = {
        "project_id": caller.project_id if caller else None,
        "user_id": caller.user_id if caller else None,
        "request_id": caller.request_id if caller else None,
        "operation_id": operation,
    }
    rows = [{**entry.columns(known), **common} for entry in entries]
    expires = caller.expires_ms if caller else None
    if rows and expires is not None:
        tx.execute(_insert_in_time(now), [{**row, "expires": expires} for row in rows])
    elif rows:
        tx.execute(_insert(now), rows)


def origin(request_id: str, detail: Mapping[str, Any] | None) -> dict[str, str]:
    """The ids of the request that a line with this id and detail is of, see ``cyborg.context``."""
    return {**(detail or {}).get(_ORIGIN, {}), context.REQUEST_ID: request_id}


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    return sa.insert(Event).values(at_ms=now)


@cache
def _insert_in_time(now: sa.ColumnElement[int]) -> sa.Insert:
    """The same, which no database takes when it is too late: there is no moment for it.

    It costs no statement more, and the clock is looked at when all else has been done.
    """
    late = now >= sa.bindparam("expires", type_=sa.BigInteger)
    return sa.insert(Event).values(at_ms=sa.case((late, sa.null()), else_=now))


def of_subject(tx: sa.Connection, noun: str, uuid: str) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """The last ``TOLD`` lines of history of one thing, the newest first."""
    return tx.execute(_OF_SUBJECT, {"noun": noun, "uuid": uuid}).all()


_OF_SUBJECT: sa.Select[*tuple[Any, ...]] = (
    sa.select(
        Event.at_ms,
        Event.action,
        Event.hostname,
        Event.instance_uuid,
        Event.reason,
        Event.request_id,
        Event.user_id,
    )
    .where(Event.subject_uuid == sa.bindparam("uuid"), Event.noun == sa.bindparam("noun"))
    .order_by(Event.id.desc())
    .limit(TOLD)
)


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


def treated_by(tx: sa.Connection, operation: str, action: str) -> str | None:
    """The one subject that this operation has treated so; None when it has not yet."""
    return tx.execute(
        sa.select(Event.subject_uuid)
        .where(Event.operation_id == operation, Event.action == action)
        .limit(1)
    ).scalar_one_or_none()


def mark_of(operation: str) -> sa.Exists:
    """Whether this operation has left its mark, as a term of another statement."""
    return sa.exists().where(Event.operation_id == operation)


def operation_known(tx: sa.Connection, operation: str) -> bool:
    """Whether this operation has left its mark, so that it is being repeated now."""
    return bool(tx.execute(sa.select(mark_of(operation))).scalar_one())

# SPDX-License-Identifier: Apache-2.0
"""The append-only history: who had which device when, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from cyborg import context
from cyborg.db import engine, listing
from cyborg.db.models import Event, Host
from cyborg.model.caller import Caller

#: How many lines of history are told at most.
TOLD: Final = 50
#: Where the detail of a line has what its request was known by besides its own id.
_ORIGIN: Final = "origin"

Row = sa.Row[*tuple[Any, ...]]
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    Event.id,
    Event.at_ms,
    Event.noun,
    Event.subject_uuid,
    Event.action,
    Event.reason,
    Event.device_uuid,
    Event.hostname,
    Event.instance_uuid,
    Event.request_id,
    Event.operation_id,
    Event.project_id,
    Event.user_id,
    Event.detail,
)
SORTABLE = listing.Sortable(
    id=Event.__table__.c.id,
    uuid=Event.__table__.c.id,
    columns={"id": Event.__table__.c.id, "at": Event.__table__.c.at_ms},
)
_FILTERS: Mapping[str, sa.SQLColumnExpression[Any]] = {
    "device": Event.device_uuid,
    "instance": Event.instance_uuid,
    "arq": Event.subject_uuid,
    "request_id": Event.request_id,
}


@dataclass(frozen=True)
class Entry:
    """One line of history.

    ``noun`` says what it is about: 'arq', 'device', 'deployable', 'handle', 'instance',
    'device_profile', 'attribute', 'service', 'driver' or 'operation'. ``state`` is what it is from
    now on, where the action does not tell. ``device_uuid`` is the device that the line concerns; a
    line about a device has it anyway, as a line about an instance has its ``instance_uuid``.
    """

    noun: str
    subject_uuid: str
    action: str
    instance_uuid: str | None = None
    hostname: str | None = None
    reason: str | None = None
    state: str | None = None
    device_uuid: str | None = None

    def columns(self, known: Mapping[str, str]) -> dict[str, Any]:
        """What is stored of it; ``known`` is what else is known of the request, see ``origin``."""
        columns = dict(vars(self))
        state = columns.pop("state")
        if self.noun in ("device", "instance"):
            columns[f"{self.noun}_uuid"] = self.subject_uuid
        detail = {"state": state, _ORIGIN: known}
        return {**columns, "detail": {key: told for key, told in detail.items() if told} or None}


def record(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    entries: Iterable[Entry],
    *,
    caller: Caller | None = None,
    operation: str | None = None,
    ordered_by: Mapping[str, str] | None = None,
) -> None:
    """Append entries in one statement; ``caller`` is None when the service acts by itself.

    ``ordered_by`` are the ids of the request that ordered work which is done now, as ``origin``
    gives them; a caller's own ids go before them.

    Raises Unavailable when the caller's request has expired: its transaction must not stand.
    """
    known = context.ids() if caller else dict(ordered_by or {})
    request_id = known.pop(context.REQUEST_ID, None)
    common = {
        "project_id": caller.project_id if caller else None,
        "user_id": caller.user_id if caller else None,
        "request_id": caller.request_id if caller else request_id,
        "operation_id": operation,
    }
    rows = [{**entry.columns(known), **common} for entry in entries]
    expires = caller.expires_ms if caller else None
    if rows and expires is not None:
        tx.execute(_insert_in_time(now), [{**row, "expires": expires} for row in rows])
        engine.expires(expires)
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


def page(tx: sa.Connection, wanted: listing.Page, asked: Mapping[str, Any]) -> Sequence[Row]:
    """A page of the events that match all filters of ``asked``.

    ``host`` is either name of a host, ``since`` a time in milliseconds. One statement, one more
    for a marker and one more for a host.
    """
    query = listing.paged(tx, _VISIBLE, SORTABLE, wanted)
    equal = [column == asked[name] for name, column in _FILTERS.items() if name in asked]
    query = query.where(*equal)
    if "arq" in asked:
        query = query.where(Event.noun == "arq")
    if "since" in asked:
        query = query.where(Event.at_ms >= asked["since"])
    if "host" in asked:
        name = asked["host"]
        either = sa.or_(Host.name == name, Host.service_host == name)
        # Apart from the page: an index finds the events of a few names.
        row = tx.execute(sa.select(Host.name, Host.service_host).where(either)).first()
        names = {name, *(row or ())} - {None}
        query = query.where(Event.hostname.in_(sorted(names)))
    return tx.execute(query).all()


def of_device(tx: sa.Connection, uuid: str, limit: int) -> Sequence[Row]:
    """The last events that concern a device, the newest first."""
    query = _VISIBLE.where(Event.device_uuid == uuid).order_by(Event.id.desc()).limit(limit)
    return tx.execute(query).all()


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

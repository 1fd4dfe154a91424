# SPDX-License-Identifier: Apache-2.0
"""Write and read the append-only history: who had which device when, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from cyborg import context
from cyborg.db import listing
from cyborg.db.models import Arq, Event, Host, Outbox
from cyborg.db.rows import Shown, column, shown
from cyborg.db.transaction import Transaction
from cyborg.model.notification import NOTIFIED
from cyborg.model.scope import Scope

#: Maximum number of history entries that ``of_subject`` returns.
SUBJECT_LIMIT: Final = 50
#: Key in the detail of an event: the ids of its request besides the request id.
_ORIGIN: Final = "origin"


class SubjectEvent(Shown):
    """An event as the history of its subject shows it."""

    at_ms = column(Event.at_ms)
    action = column(Event.action)
    hostname = column(Event.hostname)
    instance_uuid = column(Event.instance_uuid)
    reason = column(Event.reason)
    request_id = column(Event.request_id)
    user_id = column(Event.user_id)


class VisibleEvent(SubjectEvent):
    """An event as operators see it."""

    id = column(Event.id)
    noun = column(Event.noun)
    subject_uuid = column(Event.subject_uuid)
    device_uuid = column(Event.device_uuid)
    operation_id = column(Event.operation_id)
    project_id = column(Event.project_id)
    detail: dict[str, Any] | None = column(Event.detail)


def _of_project(project_id: str) -> sa.ColumnElement[bool]:
    """Return the term: the event is about an ARQ of the project, or one of its callers caused it.

    The owner of an ARQ sees its whole history, also the events that others caused.
    """
    own = sa.exists().where(Arq.uuid == Event.subject_uuid, Arq.project_id == project_id)
    return sa.or_(Event.project_id == project_id, sa.and_(Event.noun == "arq", own))


_VISIBLE = shown(VisibleEvent, _of_project)
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
    """A new event of the history.

    ``noun`` is the type of the subject: 'arq', 'device', 'deployable', 'handle', 'instance',
    'device_profile', 'attribute', 'service', 'driver' or 'operation'. ``state`` is the subject's
    new state where the action does not imply it. ``device_uuid`` is the device that the event
    concerns. Events about a device get it from ``subject_uuid``, and events about an instance get
    their ``instance_uuid`` from there.
    """

    noun: str
    subject_uuid: str
    action: str
    instance_uuid: str | None = None
    hostname: str | None = None
    reason: str | None = None
    state: str | None = None
    device_uuid: str | None = None

    def columns(self, origin: Mapping[str, str]) -> dict[str, Any]:
        """Return the values to store; ``origin`` holds the other ids of the request."""
        columns = dict(vars(self))
        state = columns.pop("state")
        if self.noun in ("device", "instance"):
            columns[f"{self.noun}_uuid"] = self.subject_uuid
        detail = {"state": state, _ORIGIN: origin}
        return {**columns, "detail": {key: value for key, value in detail.items() if value} or None}


def record(tx: Transaction, entries: Sequence[Entry]) -> None:
    """Append events of the request that this transaction carries out, as ``record_for`` does.

    Raises Unavailable when the caller's request has expired; ``Database.writer`` checks this again
    before it commits.
    """
    caller = tx.caller
    if caller is None or not entries:
        record_for(tx, entries, request_key=tx.request_key)
        return
    ids = context.ids()
    ids.pop(context.REQUEST_ID, None)
    began = tx.seconds()
    at_ms = _append(
        tx,
        [entry.columns(ids) for entry in entries],
        request_id=caller.request_id,
        operation_id=tx.request_key,
        project_id=caller.project_id,
        user_id=caller.user_id,
    )
    if caller.expires_ms is not None:
        now_ms = at_ms or tx.execute(sa.select(tx.now)).scalar_one()
        tx.set_expiry(caller.expires_ms, now_ms, began)


def record_for(
    tx: Transaction,
    entries: Sequence[Entry],
    *,
    request_key: str | None = None,
    ordered_by: Mapping[str, str] | None = None,
) -> None:
    """Append events in one statement that the service causes by itself, or by ordered work.

    ``ordered_by`` holds the ids of the request that ordered the work, as ``origin`` returns them.
    One statement more puts them in the outbox, if ``Database.outbox`` is set and any of them can be
    a notification. MySQL has no INSERT ... RETURNING: there the outbox costs one INSERT for each
    event, and a caller's expiry one statement that reads the clock.
    """
    if entries:
        ids = dict(ordered_by or {})
        request_id = ids.pop(context.REQUEST_ID, None)
        values = [entry.columns(ids) for entry in entries]
        _append(tx, values, request_id=request_id, operation_id=request_key)


def _append(
    tx: Transaction,
    values: Sequence[Mapping[str, Any]],
    *,
    request_id: str | None,
    operation_id: str | None,
    project_id: str | None = None,
    user_id: str | None = None,
) -> int | None:
    """Append events; return the time of the last one where the database returns it."""
    common = {
        "request_id": request_id,
        "operation_id": operation_id,
        "project_id": project_id,
        "user_id": user_id,
    }
    rows = [{**value, **common} for value in values]
    insert = _insert(tx.now)
    outbox = tx.outbox and any(row["noun"] in NOTIFIED for row in rows)
    at_ms, pending = None, []
    if tx.dialect.insert_executemany_returning:
        inserted = tx.execute(insert.returning(Event.id, Event.noun, Event.at_ms), rows).all()
        at_ms = inserted[-1].at_ms
        pending = [row.id for row in inserted if row.noun in NOTIFIED]
    elif outbox:
        for row in rows:
            key = tx.execute(insert, row).inserted_primary_key or (0,)
            if row["noun"] in NOTIFIED:
                pending.append(key[0])
    else:
        tx.execute(insert, rows)
    if outbox:
        tx.execute(sa.insert(Outbox), [{"event_id": id_} for id_ in pending])
    return at_ms


def origin(request_id: str, detail: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the ids of the request that an event belongs to, see ``cyborg.context``.

    ``request_id`` and ``detail`` are the columns of the event.
    """
    return {**(detail or {}).get(_ORIGIN, {}), context.REQUEST_ID: request_id}


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    return sa.insert(Event).values(at_ms=now)


def of_subject(tx: Transaction, noun: str, uuid: str, scope: Scope) -> Sequence[SubjectEvent]:
    """Return the last ``SUBJECT_LIMIT`` events of a subject in the scope, newest first."""
    query = _OF_SUBJECT.within(scope).order_by(Event.id.desc()).limit(SUBJECT_LIMIT)
    return tx.all(query, {"noun": noun, "uuid": uuid})


_OF_SUBJECT = shown(SubjectEvent, _of_project).where(
    Event.subject_uuid == sa.bindparam("uuid"), Event.noun == sa.bindparam("noun")
)


def page(
    tx: Transaction, page: listing.Page, scope: Scope, filters: Mapping[str, Any]
) -> Sequence[VisibleEvent]:
    """Return a page of the events in the scope that match all filters.

    ``host`` is either name of a host, ``since`` a time in milliseconds. Executes one statement, one
    more for a marker and one more for a host.
    """
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    equal = [column == filters[name] for name, column in _FILTERS.items() if name in filters]
    query = query.where(*equal)
    if "arq" in filters:
        query = query.where(Event.noun == "arq")
    if "since" in filters:
        query = query.where(Event.at_ms >= filters["since"])
    if "host" in filters:
        name = filters["host"]
        either = sa.or_(Host.name == name, Host.service_host == name)
        # In a statement of its own: an index then serves the few names.
        row = tx.execute(sa.select(Host.name, Host.service_host).where(either)).first()
        names = {name, *(row or ())} - {None}
        query = query.where(Event.hostname.in_(sorted(names)))
    return tx.all(query)


def of_device(tx: Transaction, uuid: str, scope: Scope, limit: int) -> Sequence[VisibleEvent]:
    """Return the last ``limit`` events in the scope that concern a device, newest first."""
    query = _VISIBLE.where(Event.device_uuid == uuid).within(scope)
    return tx.all(query.order_by(Event.id.desc()).limit(limit))


def subjects_of(tx: Transaction, request_key: str, action: str, uuids: Iterable[str]) -> set[str]:
    """Return those of the subjects to which this operation has already applied the action."""
    rows = tx.execute(
        sa.select(Event.subject_uuid).where(
            Event.subject_uuid.in_(list(uuids)),
            Event.operation_id == request_key,
            Event.action == action,
        )
    )
    return set(rows.scalars())


def subject_of(tx: Transaction, request_key: str, action: str) -> str | None:
    """Return the subject to which this operation has applied the action; None: not yet."""
    return tx.execute(
        sa.select(Event.subject_uuid)
        .where(Event.operation_id == request_key, Event.action == action)
        .limit(1)
    ).scalar_one_or_none()


def has_operation(request_key: str) -> sa.Exists:
    """Return the term: the history has an event of this operation."""
    return sa.exists().where(Event.operation_id == request_key)


def is_repeated(tx: Transaction, request_key: str) -> bool:
    """Return whether the history has an event of this operation; if so, this run repeats it."""
    return bool(tx.execute(sa.select(has_operation(request_key))).scalar_one())

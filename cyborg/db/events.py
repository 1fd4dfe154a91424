# SPDX-License-Identifier: Apache-2.0
"""Write and read the append-only history: who had which device when, and why."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from cyborg import context
from cyborg.db import listing, usage
from cyborg.db.models import Arq, Event, Host, Outbox
from cyborg.db.rows import A, Row, Shown, column, select, shown
from cyborg.db.transaction import EVENTS_WITHIN, Transaction
from cyborg.model.notification import NOTIFIED
from cyborg.model.position import MOST_RUNS, Position
from cyborg.model.scope import Scope

#: Maximum number of history entries that ``of_subject`` returns.
SUBJECT_LIMIT: Final = 50
#: How long the events of an ARQ that was never bound stay after it is deleted, in milliseconds. Any
#: member of a project can cause them without a limit. A repeated request needs them for a minute.
BRIEF_MS: Final = 3_600_000
#: Key in the detail of an event: the ids of its request besides the request id.
_ORIGIN: Final = "origin"
#: The action of the event: an audit has compared a host with Placement, after a restore.
CHECKED: Final = "checked"
#: The action of the event: a host was found to know more than the database.
UNCHECKED: Final = "unchecked"
#: The actions of events after which a host may have had guests that the history does not show.
_FORGETS: Final = ("forgotten", "retired", "host renamed", "host taken over", UNCHECKED)


class VisibleEvent(Event, Shown):
    """An event as the API shows it."""

    __abstract__ = True


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
#: Age, in milliseconds, from which on no event with a smaller id becomes visible any more. Twice
#: the limit of a transaction: in a cluster, the node of another writer may give out smaller ids
#: until it has applied the first one. The rest is for nodes that lag, and for their clocks.
_SETTLED_MS: Final = int(2000 * EVENTS_WITHIN) + 15_000


@dataclass(frozen=True)
class Entry:
    """A new event of the history.

    ``noun`` is the type of the subject: 'arq', 'device', 'deployable', 'handle', 'instance',
    'device_profile', 'attribute', 'service', 'driver' or 'operation'. ``state`` is the subject's
    new state where the action does not imply it. ``device_uuid`` is the device that the event
    concerns. Events about a device get it from ``subject_uuid``, and events about an instance get
    their ``instance_uuid`` from there. A ``brief`` event is deleted after an hour. With an event
    that ``takes_unit`` an ARQ has got a unit, and with one that has ``left_by``, the id of an ARQ,
    it has given its unit back: ``cyborg.db.usage`` counts the time between them.
    """

    noun: str
    subject_uuid: str
    action: str
    instance_uuid: str | None = None
    hostname: str | None = None
    reason: str | None = None
    state: str | None = None
    device_uuid: str | None = None
    brief: bool = False
    takes_unit: bool = False
    left_by: int | None = None

    def columns(self, origin: Mapping[str, str]) -> dict[str, Any]:
        """Return the values to store; ``origin`` holds the other ids of the request."""
        columns = dict(vars(self))
        state = columns.pop("state")
        del columns["takes_unit"], columns["left_by"]
        columns["lifetime_ms"] = BRIEF_MS if columns.pop("brief") else None
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
        entries,
        ids,
        request_id=caller.request_id,
        operation_id=tx.request_key,
        project_id=caller.project_id,
        user_id=caller.user_id,
    )
    if caller.expires_ms is not None:
        now_ms, checked = tx.read_clock() if at_ms is None else (at_ms, began)
        tx.set_expiry(caller.expires_ms, now_ms, checked)


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
        _append(tx, entries, ids, request_id=request_id, operation_id=request_key)


def _append(
    tx: Transaction,
    entries: Sequence[Entry],
    ids: Mapping[str, str],
    *,
    request_id: str | None,
    operation_id: str | None,
    project_id: str | None = None,
    user_id: str | None = None,
) -> int | None:
    """Append events, and begin and end the uses of units at their times.

    Return the time of the last one where the database returns it. ``ids`` are those of the request
    besides the request id.
    """
    common = {
        "request_id": request_id,
        "operation_id": operation_id,
        "project_id": project_id,
        "user_id": user_id,
    }
    rows = [{**entry.columns(ids), **common} for entry in entries]
    tx.begin_events()
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
    usage.begin(tx, [entry.subject_uuid for entry in entries if entry.takes_unit])
    usage.end(tx, [entry.left_by for entry in entries if entry.left_by is not None])
    return at_ms


def origin(request_id: str, detail: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the ids of the request that an event belongs to, see ``cyborg.context``.

    ``request_id`` and ``detail`` are the columns of the event.
    """
    return {**(detail or {}).get(_ORIGIN, {}), context.REQUEST_ID: request_id}


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    lifetime = sa.bindparam("lifetime_ms", type_=sa.BigInteger)
    return sa.insert(Event).values(at_ms=now, expires_ms=now + lifetime)


def expire_soon(tx: Transaction, noun: str, uuids: Collection[str]) -> None:
    """Make the present events of these subjects brief, see ``Entry``."""
    if uuids:
        tx.execute(
            sa.update(Event)
            .where(Event.subject_uuid.in_(uuids), Event.noun == noun)
            .values(expires_ms=tx.now + BRIEF_MS)
        )


def of_subject(tx: Transaction, noun: str, uuid: str, scope: Scope) -> Sequence[VisibleEvent]:
    """Return the last ``SUBJECT_LIMIT`` events of a subject in the scope, newest first."""
    query = _OF_SUBJECT.within(scope).order_by(Event.id.desc()).limit(SUBJECT_LIMIT)
    return tx.all(query, {"noun": noun, "uuid": uuid})


@dataclass(frozen=True)
class LastEvent:
    """The name of the last event of a host, empty if it has none, and what is known of another.

    ``stored``: the other event is here. ``has_older``: events are here that are older than it, so
    that it was not deleted with the oldest ones.
    """

    name: str
    stored: bool
    has_older: bool


def last_of_host(tx: Transaction, hostname: str, stored_before: str) -> LastEvent:
    """Return the last event of a host; ``stored_before`` names the other event, if there is one."""
    last = sa.select(sa.func.max(Event.id)).where(Event.hostname == hostname).scalar_subquery()
    id_, at_ms = _parse(stored_before)
    terms = (
        sa.exists().where(Event.id == id_, Event.at_ms == at_ms),
        sa.exists().where(Event.at_ms < at_ms),
    )
    name = sa.select(Event.id, Event.at_ms).where(Event.id == last).subquery()
    last_id, last_ms, stored, has_older = tx.execute(
        sa.select(
            *(sa.select(name.c[column]).scalar_subquery() for column in ("id", "at_ms")),
            *(sa.case((term, 1), else_=0) for term in terms),
        )
    ).one()
    return LastEvent(
        "" if last_id is None else f"{last_id}:{last_ms}", bool(stored), bool(has_older)
    )


def is_checked(tx: Transaction, hostname: str, stored_before: str) -> bool:
    """Return whether an audit has compared a host with Placement later than this event was."""
    later = Event.at_ms > _parse(stored_before)[1]
    checked = sa.exists().where(Event.hostname == hostname, Event.action == CHECKED, later)
    return bool(tx.execute(sa.select(checked)).scalar_one())


def tell_of_guests(hostname: str) -> sa.ColumnElement[bool]:
    """Return the term: by the history, a host has had guests or may have had some."""
    return sa.exists().where(
        Event.hostname == hostname, sa.or_(Event.noun == "arq", Event.action.in_(_FORGETS))
    )


def _parse(name: str) -> tuple[int, int]:
    """Return id and time of an event from its name; zeros for an empty one."""
    id_, at_ms = name.split(":") if name else (0, 0)
    return int(id_), int(at_ms)


_OF_SUBJECT = _VISIBLE.where(
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
    return tx.all(query.where(*_matching(tx, filters)))


def _matching(tx: Transaction, filters: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    """Return the terms of all filters; execute one statement for a host."""
    terms = [column == filters[name] for name, column in _FILTERS.items() if name in filters]
    if "arq" in filters:
        terms.append(Event.noun == "arq")
    if "since" in filters:
        terms.append(Event.at_ms >= filters["since"])
    if "host" in filters:
        name = filters["host"]
        either = sa.or_(Host.name == name, Host.service_host == name)
        # In a statement of its own: an index then serves the few names.
        row = tx.execute(sa.select(Host.name, Host.service_host).where(either)).first()
        names = {name, *(row or ())} - {None}
        terms.append(Event.hostname.in_(sorted(names)))
    return terms


class WrittenEvent(Row):
    """An event with the columns of the filters, see ``may_match``."""

    id = column(Event.id)


def may_match(row: WrittenEvent, filters: Mapping[str, Any]) -> bool:
    """Return False if the filters exclude an event; a host and the scope are not looked at."""
    return all(getattr(row, name) == filters[name] for name in _FILTERS if name in filters)


def newest(tx: Transaction, scope: Scope, filters: Mapping[str, Any]) -> Position:
    """Return the position after the visible events that match all filters.

    ``follow`` from there returns the events that are written from now on. Executes two statements,
    and one more for a host.
    """
    settled = _settled(tx, tx.now - _SETTLED_MS)
    # The newest ones, of which a position has room for so many.
    query = _VISIBLE.within(scope).with_only_columns(Event.id)
    query = query.where(Event.id > settled, *_matching(tx, filters))
    ids = tx.execute(query.order_by(Event.id.desc()).limit(MOST_RUNS)).scalars().all()
    after = ids[-1] - 1 if len(ids) == MOST_RUNS else settled
    return Position(after).read(ids)


def oldest(tx: Transaction, since_ms: int) -> Position:
    """Return the position before the events that are not older than a time, in milliseconds."""
    return Position(_settled(tx, sa.literal(since_ms - _SETTLED_MS, sa.BigInteger)))


def follow(
    tx: Transaction, position: Position, scope: Scope, filters: Mapping[str, Any], *, limit: int
) -> tuple[Sequence[VisibleEvent], Position]:
    """Return events in the scope that match all filters and are not read, and the new position.

    They are at most ``limit``, in the order of their ids. Each event is returned once, also one
    that is committed after others with greater ids, because the database has no order of commits:
    the position keeps which of the latest events are read, until no smaller id can become visible.
    While it has no room for more of those, they have to wait. Executes two statements, and one more
    for a host.
    """
    query = _VISIBLE.within(scope).where(*_matching(tx, filters))
    rows, position, _ = _unread(tx, query, position, limit)
    return rows, position


def written(
    tx: Transaction, position: Position, limit: int
) -> tuple[Sequence[WrittenEvent], Position, bool]:
    """Return events as ``follow`` does, of everybody, and whether these are all. Two statements."""
    return _unread(tx, select(WrittenEvent, **_FILTERS), position, limit)


def _unread(
    tx: Transaction, query: sa.Select[A], position: Position, limit: int
) -> tuple[Sequence[A], Position, bool]:
    """Return unread rows of a query with an id, the position after them, and whether it has all."""
    # First: up to this id the next statement sees everything.
    settled = _settled(tx, tx.now - _SETTLED_MS)
    single = [first for first, last in position.runs if first == last]
    several = [run for run in position.runs if run[0] < run[1]]
    terms = [Event.id > position.after]
    if single:
        terms.append(Event.id.not_in(single))
    terms += [sa.not_(Event.id.between(*run)) for run in several]
    rows: Sequence[Any] = tx.all(query.where(*terms).order_by(Event.id).limit(limit))
    is_cut = len(rows) == limit
    old = sum(row.id <= settled for row in rows)
    read = rows[: old + position.room(settled)]
    if is_cut and rows:
        settled = min(settled, rows[-1].id)
    position = position.read(row.id for row in read).settled(settled)
    return read, position, len(read) == len(rows) and not is_cut


def _settled(tx: Transaction, before_ms: sa.ColumnElement[int]) -> int:
    """Return the id of the last event that is older than a time; 0 if there is none."""
    query = sa.select(Event.id).where(Event.at_ms < before_ms)
    query = query.order_by(Event.at_ms.desc(), Event.id.desc()).limit(1)
    return tx.execute(query).scalar_one_or_none() or 0


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

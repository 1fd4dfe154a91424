# SPDX-License-Identifier: Apache-2.0
"""The invariants of the database: a table of queries, each of which returns only violations.

Every query is one statement, so that it sees each transaction completely or not at all, and is
read in pages: by id, or by hosts where Placement is compared. Memory grows with the violations.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import providers
from cyborg.db.engine import Reader
from cyborg.db.hosts import IS_AGENT
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    Driver,
    Event,
    Host,
    Instance,
    Service,
    Work,
)
from cyborg.db.providers import Part
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model.arq import BINDING, State
from cyborg.model.audit_findings import Ages, Finding, Kind
from cyborg.model.device import UNRELEASED, HandleState
from cyborg.model.readiness import duration
from cyborg.model.report import DriverState
from cyborg.model.work import WorkKind

R = TypeVar("R", bound="Paged")
Ts = TypeVarTuple("Ts")
#: The number of violations, instances or other keys in one statement.
PAGE = 1000
#: The number of hosts that are compared with Placement together.
_HOSTS = 50
#: The value of ``now - age`` of the check, in milliseconds and as a date.
_BEFORE = sa.bindparam("before", type_=sa.BigInteger)
_BEFORE_DATE = sa.bindparam("before_date", type_=sa.DateTime)


class Paged(Row):
    """A row with the value by which its query is read in pages."""

    page: Any


class Violation(Paged):
    """A row of a check: key and host of its finding, and the fields of its cause."""

    key: str
    host: str | None
    _mapping: Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """An invariant that one statement checks.

    ``query`` is read in pages by ``page``. Of several rows with one key, the first counts. A
    violation must be older than ``age`` returns, in milliseconds, which the query compares with
    ``_BEFORE``. ``cause`` may use every column, ``age`` (the time since the column ``since``), and
    ``because`` (``attempts`` and ``error`` of work). Severity, remedy and repair of ``kind`` are in
    ``RULES``.
    """

    kind: Kind
    noun: str
    cause: str
    query: sa.Select[Violation]
    page: sa.SQLColumnExpression[Any]
    age: Callable[[Ages], int] = lambda ages: 0

    def finding(self, row: Violation, now: int) -> Finding:
        """Return the finding for a row of the query."""
        words = {"noun": self.noun, "error": None, **row._mapping}
        if "since" in words:
            since = words["since"]
            if since is None:
                # A column for display: UTC, without a time zone.
                since = int(words["changed"].replace(tzinfo=UTC).timestamp() * 1000)
            words["age"] = duration(now - since)
        error = words["error"]
        words["because"] = f", {words['attempts']} time(s): {error}" if error else "."
        return Finding(self.kind, words["noun"], row.key, self.cause.format_map(words), row.host)


def _columns(page: Any, key: Any, host: Any, **others: Any) -> sa.Select[Violation]:
    """Select the columns that every check needs, and others."""
    return select(Violation, page=page, key=key, host=host, **others)


def _handles(kind: Kind, cause: str, *terms: Any, join: Any = None, **others: Any) -> Check:
    """Return a check of handles, joined with the table and the term of ``join``."""
    # Outer joins, so that databases read the handles first, in the order of their ids.
    query = (
        _columns(AttachHandle.id, AttachHandle.uuid, Host.name, state=AttachHandle.state, **others)
        .select_from(AttachHandle)
        .outerjoin(Deployable, Deployable.id == AttachHandle.deployable_id)
        .outerjoin(Device, Device.id == Deployable.device_id)
        .outerjoin(Host, Host.id == Device.host_id)
    )
    query = query if join is None else query.join(*join)
    return Check(kind, "handle", cause, query.where(*terms), AttachHandle.id)


def _held_handles(kind: Kind, cause: str, *terms: Any) -> Check:
    """Return a check of handles that an ARQ has."""
    return _handles(kind, cause, *terms, join=(Arq, _HOLDER), arq=Arq.uuid)


#: The host where an ARQ has its unit, or will have it.
_PLACE: sa.SQLColumnExpression[Any] = sa.func.coalesce(Host.name, Arq.hostname)


def _placed(query: sa.Select[*Ts], handle: Any = AttachHandle, other: Any = None) -> sa.Select[*Ts]:
    """Join handle, deployable, device and host of ARQs; each may be missing.

    Where there is no ARQ, the deployable is ``other``.
    """
    deployable_id: Any = sa.func.coalesce(handle.deployable_id, Arq.deployable_id)
    if other is not None:
        deployable_id = sa.case((Arq.id.is_not(None), deployable_id), else_=other)
    return (
        query.outerjoin(handle, handle.arq_id == Arq.id)
        .outerjoin(Deployable, Deployable.id == deployable_id)
        .outerjoin(Device, Device.id == Deployable.device_id)
        .outerjoin(Host, Host.id == Device.host_id)
    )


def _arqs(
    kind: Kind,
    cause: str,
    *terms: Any,
    age: Callable[[Ages], int] = lambda ages: 0,
    **others: Any,
) -> Check:
    """Return a check of ARQs."""
    query = _columns(Arq.id, Arq.uuid, _PLACE, state=Arq.state, **others).select_from(Arq)
    return Check(kind, "arq", cause, _placed(query).where(*terms), Arq.id, age)


def _work(kind: Kind, cause: str, *terms: Any, since: Any, age: Callable[[Ages], int]) -> Check:
    """Return a check of work; its finding is about its ARQ, its handle, or the work itself."""
    arqs_handle, work_host = orm.aliased(AttachHandle), orm.aliased(Host)
    has_arq, has_handle = Arq.id.is_not(None), AttachHandle.id.is_not(None)
    query = (
        _columns(
            Work.id,
            sa.func.coalesce(Arq.uuid, AttachHandle.uuid, Work.uuid),
            sa.case((has_arq, _PLACE), (has_handle, Host.name), else_=work_host.name),
            noun=sa.case((has_arq, "arq"), (has_handle, "handle"), else_="work"),
            kind=Work.kind,
            attempts=Work.attempts,
            error=Work.error,
            since=since,
        )
        .select_from(Work)
        .outerjoin(Arq, sa.and_(Arq.uuid == Work.arq_uuid, Work.kind != WorkKind.RELEASE.value))
        .outerjoin(AttachHandle, AttachHandle.id == Work.attach_handle_id)
        .outerjoin(work_host, work_host.id == Work.host_id)
        .where(*terms, since < _BEFORE)
    )
    query = _placed(query, arqs_handle, AttachHandle.deployable_id)
    return Check(kind, "work", cause, query, Work.id, age)


def _state(*states: StrEnum) -> sa.ColumnElement[bool]:
    column = AttachHandle.state if isinstance(states[0], HandleState) else Arq.state
    return column.in_([state.value for state in states])


_BINDING = _state(*BINDING)
_HOLDER = Arq.id == AttachHandle.arq_id
_IS_BOUND = sa.exists().where(_HOLDER, _state(State.BOUND)).correlate(AttachHandle)
_RELEASE = sa.and_(Work.attach_handle_id == AttachHandle.id, Work.kind == WorkKind.RELEASE.value)
_IN_RELEASE = sa.exists().where(_RELEASE).correlate(AttachHandle)
_IN_PREPARATION = sa.exists().where(Work.arq_uuid == Arq.uuid, Work.kind == WorkKind.PREPARE.value)
_IN_ATTACH = sa.and_(
    Arq.hidden,
    sa.exists().where(Work.instance_uuid == Arq.instance_uuid, Work.kind == WorkKind.ATTACH.value),
)
#: The time of an ARQ's last event. Dates of rows are by the clock of the process that wrote them,
#: so they count only if there is no event.
_TOLD = (
    sa.select(Event.at_ms)
    .where(Event.subject_uuid == Arq.uuid)
    .order_by(Event.id.desc())
    .limit(1)
    .correlate(Arq)
    .scalar_subquery()
)
_CHANGED = sa.func.coalesce(Arq.updated_at, Arq.created_at)
_IS_OLD = sa.or_(_TOLD < _BEFORE, sa.and_(_TOLD.is_(None), _CHANGED < _BEFORE_DATE))
#: The invariants that need nothing but the rows. Those that compare whole tables use outer joins:
#: MariaDB needs several times as long for NOT EXISTS.
CHECKS: tuple[Check, ...] = (
    _held_handles(
        Kind.UNSAFE_HANDLE,
        "It is about to be released, but ARQ {arq} has it.",
        _state(State.BOUND),
        _state(HandleState.RELEASING),
    ),
    _held_handles(
        Kind.UNSAFE_HANDLE,
        "It is in quarantine, but ARQ {arq} has it.",
        _state(State.BOUND),
        _state(HandleState.QUARANTINED),
    ),
    _handles(
        Kind.STRANDED_RELEASE,
        "It is to be released, but there is no work for it.",
        _state(*UNRELEASED),
        sa.not_(AttachHandle.suspect),
        ~_IN_RELEASE,
        ~_IS_BOUND,
    ),
    _handles(
        Kind.SUSPECT_HANDLE,
        "It is in quarantine, because a server without a request may have it.",
        AttachHandle.suspect,
        _state(HandleState.QUARANTINED),
        ~_IS_BOUND,
    ),
    _handles(
        Kind.QUARANTINED_HANDLE,
        "Its host does not release it; tried for {age}{because}",
        _state(HandleState.QUARANTINED),
        ~_IS_BOUND,
        join=(Work, _RELEASE),
        since=Work.created_ms,
        attempts=Work.attempts,
        error=Work.error,
    ),
    _arqs(
        Kind.NEEDLESS_HOLD,
        "It is {state} and has a handle.",
        _state(State.INITIAL, State.UNBOUND, State.BIND_FAILED),
        AttachHandle.id.is_not(None),
    ),
    _arqs(
        Kind.EMPTY_BIND,
        "It is Bound and has no handle.",
        _state(State.BOUND),
        AttachHandle.id.is_(None),
    ),
    _arqs(
        Kind.FORGOTTEN_BIND,
        "It is BindStarted, but nobody is to finish its bind.",
        _state(State.BIND_STARTED),
        ~_IN_PREPARATION,
        ~_IN_ATTACH,
    ),
    _arqs(
        Kind.OBSOLETE_STATE,
        "It is {state}, a state that no request gets into any more.",
        _state(State.UNBIND_FAILED, State.DELETING),
    ),
    _arqs(
        Kind.WRONG_PROVIDER,
        "It names provider {device_rp_uuid}, but has a unit of {rp_uuid}.",
        _BINDING,
        AttachHandle.id.is_not(None),
        Arq.device_rp_uuid.is_distinct_from(Deployable.rp_uuid),
        device_rp_uuid=Arq.device_rp_uuid,
        rp_uuid=Deployable.rp_uuid,
    ),
    _arqs(
        Kind.WRONG_PROVIDER,
        "It names deployable {deployable_id}, but has a unit of {id}.",
        _BINDING,
        AttachHandle.id.is_not(None),
        Arq.device_rp_uuid.is_not_distinct_from(Deployable.rp_uuid),
        Arq.deployable_id.is_distinct_from(Deployable.id),
        deployable_id=Arq.deployable_id,
        id=Deployable.id,
    ),
    _arqs(
        Kind.AGED_ARQ,
        "It has been {state} for {age}.",
        _state(State.INITIAL, State.UNBOUND),
        _IS_OLD,
        age=lambda ages: ages.unbound,
        since=_TOLD,
        changed=_CHANGED,
    ),
    Check(
        Kind.FAILED_DRIVER,
        "driver",
        "It fails: {why}",
        _columns(
            Driver.id,
            Host.name + "/" + Driver.name,
            Host.name,
            why=sa.func.coalesce(sa.func.nullif(Driver.error, ""), "it does not say why"),
        )
        .join(Host, Host.id == Driver.host_id)
        .where(Driver.state == DriverState.FAILED.value),
        Driver.id,
    ),
    Check(
        Kind.UNCHECKED_HOST,
        "host",
        "The database is older than its last guests: none of its units is offered or cleaned.",
        _columns(Host.id, Host.name, Host.name).where(Host.unchecked.is_(True)),
        Host.id,
    ),
    Check(
        Kind.LOST_DEVICE,
        "device",
        "It was last seen {age} ago.",
        _columns(Device.id, Device.uuid, Host.name, since=Device.lost_ms)
        .join(Host, Host.id == Device.host_id)
        .where(Device.lost_ms < _BEFORE),
        Device.id,
        lambda ages: ages.lost,
    ),
    Check(
        Kind.REFUSED_PROVIDER,
        "provider",
        "Placement refuses {name}: {publish_error}",
        _columns(
            Deployable.id,
            sa.func.coalesce(Deployable.rp_uuid, Deployable.name),
            Host.name,
            name=Deployable.name,
            publish_error=Deployable.publish_error,
        )
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(Deployable.publish_error.is_not(None)),
        Deployable.id,
    ),
)
_MAY_STICK = (WorkKind.ATTACH, WorkKind.DETACH, WorkKind.PROGRAM, WorkKind.RELEASE)
#: The invariants of the work queue, which hold only while a conductor is up.
WORK_CHECKS: tuple[Check, ...] = (
    _work(
        Kind.NOVA_NOT_NOTIFIED,
        "Nova could not be told for {age}{because}",
        Work.kind == WorkKind.NOTIFY.value,
        since=Work.created_ms,
        age=lambda ages: ages.notify + ages.work,
    ),
    _work(
        Kind.OVERDUE_BIND,
        "Its bind is {age} past its deadline{because}",
        Work.kind == WorkKind.PREPARE.value,
        since=Work.deadline_ms,
        age=lambda ages: ages.work,
    ),
    _work(
        Kind.STUCK_WORK,
        "Its {kind} has been tried for {age}{because}",
        Work.kind.in_([kind.value for kind in _MAY_STICK]),
        # A handle in quarantine has a finding of its own.
        sa.or_(
            Work.kind != WorkKind.RELEASE.value,
            AttachHandle.id.is_(None),
            ~_state(HandleState.QUARANTINED),
        ),
        since=Work.created_ms,
        age=lambda ages: ages.stuck,
    ),
)
#: The instances among those that Nova does not have (``page``) with ARQs that are old enough.
VANISHED = Check(
    Kind.VANISHED_INSTANCE,
    "instance",
    "It has ARQs, but Nova has no such server.",
    _placed(_columns(Arq.instance_uuid, Arq.instance_uuid, _PLACE).select_from(Arq)).where(
        sa.or_(_IS_OLD, sa.and_(_TOLD.is_(None), _CHANGED.is_(None)))
    ),
    Arq.instance_uuid,
    lambda ages: ages.settle,
)


def violations(
    db: Reader, check: Check, ages: Ages, only: Collection[Any] | None = None
) -> Iterator[tuple[Any, Finding]]:
    """Yield the value of ``page`` and the finding of each violation.

    With ``only``, check only rows with one of these values of ``page``. Raises Unavailable.
    """
    with db.reader() as tx:
        now = read_clock(tx, db)
        before = now - check.age(ages)
        values = {
            "before": before,
            "before_date": datetime.fromtimestamp(before / 1000, UTC).replace(tzinfo=None),
        }
        seen: set[str] = set()
        for rows in _pages(tx, check.query, check.page, values=values, only=only):
            for row in rows:
                if row.key not in seen:
                    seen.add(row.key)
                    yield row.page, check.finding(row, now)


def _pages(
    tx: Transaction,
    query: sa.Select[R],
    key: sa.SQLColumnExpression[Any],
    *,
    values: Mapping[str, Any],
    only: Collection[Any] | None = None,
) -> Iterator[Sequence[R]]:
    query = query.order_by(key)
    if only is not None:
        for chunk in _chunks(only):
            yield tx.all(query.where(key.in_(chunk)), values)
        return
    page: Sequence[R] = ()
    while True:
        after = query.where(key > page[-1].page) if page else query
        page = tx.all(after.limit(PAGE), values)
        yield page
        if len(page) < PAGE:
            return


def _chunks(keys: Collection[Any], size: int = PAGE) -> Iterator[list[Any]]:
    ordered = sorted(keys)
    return (ordered[start : start + size] for start in range(0, len(ordered), size))


def read_clock(tx: Transaction, db: Reader) -> int:
    """Return the database's clock in milliseconds."""
    return int(tx.execute(sa.select(db.now)).scalar_one())


def waiting_work(tx: Transaction, before: int) -> int:
    """Return how much work has been due since before a time, in milliseconds."""
    query = sa.select(sa.func.count()).select_from(Work).where(Work.not_before_ms < before)
    return int(tx.execute(query).scalar_one())


def bound_instances(db: Reader, host: str | None = None) -> Iterator[str]:
    """Yield the uuids of the instances that have ARQs (on a host), in order.

    No transaction is open while the caller works on a page. Raises Unavailable.
    """
    query = sa.select(sa.NotNullable(Arq.instance_uuid)).where(Arq.instance_uuid.is_not(None))
    if host is not None:
        query = _placed(query).where(_PLACE.in_([host]))
    query = query.distinct().order_by(Arq.instance_uuid).limit(PAGE)
    page: Sequence[str] = ()
    while True:
        after = query.where(Arq.instance_uuid > page[-1]) if page else query
        with db.reader() as tx:
            page = tx.execute(after).scalars().all()
        yield from page
        if len(page) < PAGE:
            return


def instance_count(db: Reader) -> int:
    """Return how many instances have ARQs; raises Unavailable."""
    with db.reader() as tx:
        return int(tx.execute(sa.select(sa.func.count(Arq.instance_uuid.distinct()))).scalar_one())


def binding_units(db: Reader, consumers: Collection[str]) -> set[tuple[str, str]]:
    """Return (provider, instance) of the ARQs that bind a unit for one of these instances."""
    query = sa.select(Arq.device_rp_uuid, sa.NotNullable(Arq.instance_uuid)).where(_BINDING)
    rows = _among(db, query, Arq.instance_uuid, consumers)
    return {(provider, instance) for provider, instance in rows if provider is not None}


def changing(db: Reader, consumers: Collection[str]) -> set[str]:
    """Return those of these instances to which accelerators are attached, or detached, now."""
    query = sa.select(sa.NotNullable(Work.instance_uuid)).where(
        Work.kind.in_([WorkKind.ATTACH.value, WorkKind.DETACH.value])
    )
    return {instance for (instance,) in _among(db, query, Work.instance_uuid, consumers)}


def unbound_since(db: Reader, uuids: Collection[str]) -> dict[str, int]:
    """Return uuid → time of its release, in ms, of those instances that were bound before."""
    bound = sa.exists().where(Arq.instance_uuid == Instance.uuid)
    query = sa.select(Instance.uuid, Instance.updated_ms).where(~bound)
    return dict(_among(db, query, Instance.uuid, uuids))


def published(db: Reader, providers: Collection[str]) -> set[str]:
    """Return those of these uuids that are the provider of a deployable."""
    rows = _among(db, sa.select(sa.NotNullable(Deployable.rp_uuid)), Deployable.rp_uuid, providers)
    return {provider for (provider,) in rows}


def _among(
    db: Reader, query: sa.Select[*Ts], key: sa.SQLColumnExpression[Any], keys: Collection[str]
) -> Iterator[sa.Row[*Ts]]:
    """Yield the rows whose column has one of these values."""
    with db.reader() as tx:
        for chunk in _chunks(keys):
            yield from tx.execute(query.where(key.in_(chunk)))


@dataclass(frozen=True)
class HostRow:
    """A host with its deployables; times are ages in milliseconds.

    ``changed_age`` counts from the last change of its desired state, ``agent_silence`` from the
    last heartbeat of its agent, None if it never sent one. ``bound`` is the number of ARQs that
    bind a unit, by provider and instance; ``owed`` the same without those that an attach or a
    detach changes now. ``publish_error`` is why the agent cannot publish, None while it can.
    """

    id: int
    name: str
    changed_age: int
    agent_silence: int | None
    deployables: Sequence[Part]
    bound: Mapping[str, Counter[str]]
    owed: Mapping[str, Counter[str]]
    publish_error: str | None

    @property
    def providers(self) -> set[str]:
        """Return the uuids of its providers."""
        return {part.desired.uuid for part in self.deployables if part.desired.uuid}


def host_pages(db: Reader, only: Collection[int] | None = None) -> Iterator[list[HostRow]]:
    """Yield all hosts, or those with one of these ids, in pages, each from one consistent read.

    No transaction is open while the caller works on a page. Raises Unavailable.
    """
    if only is not None:
        for chunk in _chunks(only, _HOSTS):
            yield _read_hosts(db, Host.id.in_(chunk))
        return
    last = 0
    while True:
        page = _read_hosts(db, Host.id > last)
        yield page
        if len(page) < _HOSTS:
            return
        last = page[-1].id


class _Host(Row):
    """A host with the ages of ``HostRow``."""

    id = column(Host.id)
    name = column(Host.name)
    changed_age: int
    agent_silence: int | None
    publish_error = nullable(Service.publish_error)


def _read_hosts(db: Reader, term: sa.ColumnElement[bool]) -> list[HostRow]:
    with db.reader() as tx:
        if tx.dialect.name != "sqlite":
            # Otherwise each statement would see all commits before it. The level applies to this
            # transaction only; SQLite always reads like this.
            tx.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rows = tx.all(
            select(
                _Host,
                changed_age=db.now - Host.updated_ms,
                agent_silence=db.now - Service.last_seen_ms,
            )
            .outerjoin(Service, IS_AGENT)
            .where(term)
            .order_by(Host.id)
            .limit(_HOSTS)
        )
        ids = [row.id for row in rows]
        deployables = providers.of_hosts(tx, ids)
        bound, owed = _bound_units(tx, ids)
    return [
        HostRow(
            row.id,
            row.name,
            row.changed_age,
            row.agent_silence,
            deployables[row.id],
            bound[row.id],
            owed[row.id],
            row.publish_error or None,
        )
        for row in rows
    ]


_Bound = dict[int, dict[str, Counter[str]]]


def _bound_units(tx: Transaction, hosts: Sequence[int]) -> tuple[_Bound, _Bound]:
    """Return ``bound`` and ``owed`` of ``HostRow`` by the id of the host."""
    bound: _Bound = {id_: defaultdict(Counter) for id_ in hosts}
    owed: _Bound = {id_: defaultdict(Counter) for id_ in hosts}
    for id_, provider, instance, hidden, amount in tx.execute(
        sa.select(
            Device.host_id,
            sa.NotNullable(Arq.device_rp_uuid),
            sa.NotNullable(Arq.instance_uuid),
            Arq.hidden,
            sa.func.count(),
        )
        .join(Deployable, Deployable.rp_uuid == Arq.device_rp_uuid)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id.in_(hosts), _BINDING, Arq.instance_uuid.is_not(None))
        .group_by(Device.host_id, Arq.device_rp_uuid, Arq.instance_uuid, Arq.hidden)
    ):
        bound[id_][provider][instance] += amount
        if not hidden:
            owed[id_][provider][instance] += amount
    return bound, owed

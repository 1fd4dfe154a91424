# SPDX-License-Identifier: Apache-2.0
"""Read the events to publish as notifications, and store the position in the history.

The database assigns the ids of events before their transactions commit, so a query for all events
with an id above the last one misses those that commit late. The position is therefore an id up to
which no further event can appear, and the published events after it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import NAMESPACE_DNS, uuid5

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from cyborg.db.base import Record
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Event, Service, Work
from cyborg.model.notification import DeviceFacts, HistoryEvent
from cyborg.model.work import WorkKind

#: The uuid of the only work row that publishes notifications; the unique key allows one.
WORK_UUID: Final = str(uuid5(NAMESPACE_DNS, "notifications.cyborg"))
#: Age in milliseconds after which the transaction of an event has certainly ended: servers end idle
#: transactions after 10 seconds, and the longest wait for a lock takes 50 seconds.
SETTLED_AFTER: Final = 60_000

_COLUMNS = (
    Event.id,
    Event.at_ms,
    Event.noun,
    Event.subject_uuid,
    Event.action,
    Event.instance_uuid,
    Event.hostname,
    Event.reason,
    Event.request_id,
    Event.detail,
)


@dataclass(frozen=True)
class Position:
    """What has been published.

    These are all events up to the id ``settled``, the events in ``published`` (id → time of the
    event in milliseconds), and that the services in ``down`` (binary, host) are down.
    """

    settled: int
    published: Mapping[int, int]
    down: frozenset[tuple[str, str]]

    @property
    def newest(self) -> int:
        """Return the highest id of a published event."""
        return max(self.published, default=self.settled)

    def after(self, events: Collection[HistoryEvent], now_ms: int) -> "Position":
        """Return the position after these events are published; drop ids that are now settled."""
        published = {**self.published, **{event.id: event.at_ms for event in events}}
        old = [id_ for id_, at_ms in published.items() if at_ms < now_ms - SETTLED_AFTER]
        settled = max([self.settled, *old])
        later = {id_: at_ms for id_, at_ms in published.items() if id_ > settled}
        return Position(settled, later, self.down)

    def dump(self) -> dict[str, Any]:
        """Return the JSON that is stored."""
        return {
            "settled": self.settled,
            "published": sorted(map(list, self.published.items())),
            "down": sorted(map(list, self.down)),
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Self:
        """Return the position that ``dump`` has stored."""
        return cls(
            int(stored["settled"]),
            {int(id_): int(at_ms) for id_, at_ms in stored["published"]},
            frozenset((binary, host) for binary, host in stored["down"]),
        )


def is_enabled(tx: sa.Connection) -> bool:
    """Return whether notifications are published: the work row exists."""
    return tx.execute(sa.select(Work.id).where(Work.uuid == WORK_UUID)).first() is not None


def begin(tx: sa.Connection, now: sa.ColumnElement[int], position: Position) -> None:
    """Start to publish from a position; raises Conflict when the work row exists."""
    tx.execute(
        sa.insert(Work).values(
            uuid=WORK_UUID,
            kind=WorkKind.PUBLISH_NOTIFICATIONS.value,
            spec=position.dump(),
            not_before_ms=now,
            created_ms=now,
        )
    )


def newest(tx: sa.Connection) -> int:
    """Return the highest id of the history; 0 when it is empty."""
    return int(tx.execute(sa.select(sa.func.max(Event.id))).scalar_one() or 0)


def lag(tx: sa.Connection, now: sa.ColumnElement[int]) -> int:
    """Return for how many milliseconds the oldest unpublished event waits; 0: there is none.

    Returns 0 too when notifications are off. Executes one statement more when they are on.
    """
    stored = tx.execute(sa.select(Work.spec).where(Work.uuid == WORK_UUID)).scalar_one_or_none()
    if stored is None:
        return 0
    age = sa.select(now - sa.func.min(Event.at_ms)).where(Event.id > Position.load(stored).newest)
    return int(tx.execute(age).scalar_one() or 0)


def owned_now(tx: sa.Connection, now: sa.ColumnElement[int], row: Record) -> int | None:
    """Return the time in milliseconds; None when another conductor has taken over this work."""
    query = sa.select(now).where(Work.id == row.id, Work.fence == row.fence)
    now_ms: int | None = tx.execute(query).scalar_one_or_none()
    return now_ms


def next_events(
    tx: sa.Connection, position: Position, limit: int
) -> tuple[list[HistoryEvent], bool]:
    """Return the events to publish next, in order, and whether there are more.

    Executes two statements, and two more when a transaction has committed late.
    """
    query = sa.select(*_COLUMNS).order_by(Event.id)
    late: list[Record] = []
    between = (Event.id > position.settled, Event.id <= position.newest)
    if position.published:
        count = tx.execute(sa.select(sa.func.count()).select_from(Event).where(*between))
        if count.scalar_one() > len(position.published):
            ids = set(tx.execute(sa.select(Event.id).where(*between)).scalars())
            missed = sorted(ids - position.published.keys())[:limit]
            late = list(tx.execute(query.where(Event.id.in_(missed))).all())
    new = tx.execute(query.where(Event.id > position.newest).limit(limit)).all()
    events = [
        HistoryEvent(
            row.id,
            row.at_ms,
            row.noun,
            row.subject_uuid,
            row.action,
            row.instance_uuid,
            row.hostname,
            row.reason,
            row.request_id,
            (row.detail or {}).get("state"),
        )
        for row in (*late, *new)
    ]
    return events, len(new) == limit or len(late) == limit


def arq_projects(tx: sa.Connection, uuids: Collection[str]) -> dict[str, str | None]:
    """Return ARQ uuid → project id of those ARQs that exist."""
    if not uuids:
        return {}
    rows = tx.execute(sa.select(Arq.uuid, Arq.project_id).where(Arq.uuid.in_(uuids)))
    return {row.uuid: row.project_id for row in rows}


def devices(tx: sa.Connection, uuids: Collection[str]) -> dict[str, DeviceFacts]:
    """Return uuid → facts of those devices that exist, with the ARQs that hold units of them."""
    if not uuids:
        return {}
    users: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for row in tx.execute(
        sa.select(Device.uuid, Arq.uuid.label("arq"), Arq.instance_uuid, Arq.project_id)
        .join(Deployable, Deployable.device_id == Device.id)
        .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        .join(Arq, Arq.attach_handle_id == AttachHandle.id)
        .where(Device.uuid.in_(uuids))
        .order_by(Arq.id)
    ):
        users.setdefault(row.uuid, []).append((row.arq, row.instance_uuid, row.project_id))
    rows = tx.execute(
        sa.select(Device.uuid, Device.type, Device.driver, Device.vendor, Device.model).where(
            Device.uuid.in_(uuids)
        )
    )
    return {
        row.uuid: DeviceFacts(
            row.type, row.driver, row.vendor, row.model, tuple(users.get(row.uuid, ()))
        )
        for row in rows
    }


def down_services(
    tx: sa.Connection, now: sa.ColumnElement[int], down_after: Mapping[str, int]
) -> dict[tuple[str, str], int]:
    """Return (binary, host) → time of the last heartbeat, of services with no process that is up.

    A process is up until its last heartbeat is older than ``down_after`` of its binary, in
    milliseconds.
    """
    limit = now - sa.case(down_after, value=Service.binary)
    other = aliased(Service)
    alive = sa.exists().where(
        other.host == Service.host,
        other.binary == Service.binary,
        other.last_seen_ms >= now - sa.case(down_after, value=other.binary),
    )
    rows = tx.execute(
        sa.select(Service.binary, Service.host, sa.func.max(Service.last_seen_ms).label("seen"))
        .where(Service.binary.in_(down_after), Service.last_seen_ms < limit, ~alive)
        .group_by(Service.binary, Service.host)
    )
    return {(row.binary, row.host): int(row.seen) for row in rows}


def last_heartbeats(
    tx: sa.Connection, down: Collection[tuple[str, str]]
) -> Mapping[tuple[str, str], int]:
    """Return (binary, host) → time of the last heartbeat, of those services that have a row."""
    if not down:
        return {}
    rows = tx.execute(
        sa.select(Service.binary, Service.host, sa.func.max(Service.last_seen_ms).label("seen"))
        .where(Service.host.in_({host for _, host in down}))
        .group_by(Service.binary, Service.host)
    )
    seen = {(row.binary, row.host): int(row.seen) for row in rows}
    return {service: seen[service] for service in down if service in seen}

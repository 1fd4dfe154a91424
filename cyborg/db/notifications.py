# SPDX-License-Identifier: Apache-2.0
"""How far notifications have followed the history, and what they tell besides.

Ids of events are given before their transactions commit, so "all that is newer than the last one"
would miss those that commit late. The position is therefore an id below which everything is
settled, and the events after it that have been told.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import NAMESPACE_DNS, uuid5

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from cyborg.db.base import Record
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Event, Service, Work
from cyborg.model.notification import DeviceFacts, Happening
from cyborg.model.work import WorkKind

#: There is one such piece of work in a database: its uuid is known, and unique.
MARK: Final = str(uuid5(NAMESPACE_DNS, "notifications.cyborg"))
#: No transaction lives for so many milliseconds after it has written its history: servers end
#: those in which nothing happens after ten seconds, and the longest wait for a lock takes fifty.
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
    """What has been told.

    All events up to the id ``settled``, those of ``told`` (id → its moment), and that the services
    ``down`` (binary, host) are down.
    """

    settled: int
    told: Mapping[int, int]
    down: frozenset[tuple[str, str]]

    @property
    def newest(self) -> int:
        """The highest id that has been told."""
        return max(self.told, default=self.settled)

    def after(self, events: Collection[Happening], now_ms: int) -> "Position":
        """The position once these have been told, too; forgets what is settled by now."""
        told = {**self.told, **{one.id: one.at_ms for one in events}}
        old = [id_ for id_, at_ms in told.items() if at_ms < now_ms - SETTLED_AFTER]
        settled = max([self.settled, *old])
        left = {id_: at_ms for id_, at_ms in told.items() if id_ > settled}
        return Position(settled, left, self.down)

    def dump(self) -> dict[str, Any]:
        """The form that is stored."""
        return {
            "settled": self.settled,
            "told": sorted(map(list, self.told.items())),
            "down": sorted(map(list, self.down)),
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Self:
        """Read what ``dump`` made."""
        return cls(
            int(stored["settled"]),
            {int(id_): int(at_ms) for id_, at_ms in stored["told"]},
            frozenset((binary, host) for binary, host in stored["down"]),
        )


def exists(tx: sa.Connection) -> bool:
    """Whether the history is followed."""
    return tx.execute(sa.select(Work.id).where(Work.uuid == MARK)).first() is not None


def begin(tx: sa.Connection, now: sa.ColumnElement[int], position: Position) -> None:
    """Have the history followed from a position on; raises Conflict when it is already."""
    tx.execute(
        sa.insert(Work).values(
            uuid=MARK,
            kind=WorkKind.PUBLISH_NOTIFICATIONS.value,
            spec=position.dump(),
            not_before_ms=now,
            created_ms=now,
        )
    )


def newest(tx: sa.Connection) -> int:
    """The highest id of the history, 0 when there is none."""
    return int(tx.execute(sa.select(sa.func.max(Event.id))).scalar_one() or 0)


def behind(tx: sa.Connection, now: sa.ColumnElement[int]) -> int:
    """For how many milliseconds the oldest event that has not been told waits; 0: there is none.

    So it is where nobody listens, too. One statement more where somebody does.
    """
    stored = tx.execute(sa.select(Work.spec).where(Work.uuid == MARK)).scalar_one_or_none()
    if stored is None:
        return 0
    waits = sa.select(now - sa.func.min(Event.at_ms)).where(Event.id > Position.load(stored).newest)
    return int(tx.execute(waits).scalar_one() or 0)


def clock(tx: sa.Connection, now: sa.ColumnElement[int], row: Record) -> int | None:
    """What time it is, as long as this work is ours; None when another has taken it over."""
    query = sa.select(now).where(Work.id == row.id, Work.fence == row.fence)
    found: int | None = tx.execute(query).scalar_one_or_none()
    return found


def happened(tx: sa.Connection, position: Position, limit: int) -> tuple[list[Happening], bool]:
    """What is to be told next, in order, and whether there is more; two statements as a rule.

    A third and a fourth where a transaction has committed late.
    """
    query = sa.select(*_COLUMNS).order_by(Event.id)
    late: list[Record] = []
    between = (Event.id > position.settled, Event.id <= position.newest)
    if position.told:
        count = tx.execute(sa.select(sa.func.count()).select_from(Event).where(*between))
        if count.scalar_one() > len(position.told):
            ids = set(tx.execute(sa.select(Event.id).where(*between)).scalars())
            missed = sorted(ids - position.told.keys())[:limit]
            late = list(tx.execute(query.where(Event.id.in_(missed))).all())
    fresh = tx.execute(query.where(Event.id > position.newest).limit(limit)).all()
    found = [_happening(row) for row in (*late, *fresh)]
    return found, len(fresh) == limit or len(late) == limit


def owners(tx: sa.Connection, uuids: Collection[str]) -> dict[str, str | None]:
    """The projects of the requests that are there."""
    if not uuids:
        return {}
    rows = tx.execute(sa.select(Arq.uuid, Arq.project_id).where(Arq.uuid.in_(uuids)))
    return {row.uuid: row.project_id for row in rows}


def devices(tx: sa.Connection, uuids: Collection[str]) -> dict[str, DeviceFacts]:
    """The devices that are there, with who holds units of them."""
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
        sa.select(
            Device.uuid,
            Device.type,
            Device.driver,
            Device.vendor,
            Device.model,
        ).where(Device.uuid.in_(uuids))
    )
    return {
        row.uuid: DeviceFacts(
            row.type,
            row.driver,
            row.vendor,
            row.model,
            tuple(users.get(row.uuid, ())),
        )
        for row in rows
    }


def silent(
    tx: sa.Connection, now: sa.ColumnElement[int], down_after: Mapping[str, int]
) -> dict[tuple[str, str], int]:
    """The services (binary, host) none of whose processes is up, and when one was last heard of.

    ``down_after`` says of each binary after how many milliseconds of silence that is.
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


def known(tx: sa.Connection, down: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], int]:
    """Those of the services that still have a row, and when they were last heard of."""
    if not down:
        return {}
    rows = tx.execute(
        sa.select(Service.binary, Service.host, sa.func.max(Service.last_seen_ms).label("seen"))
        .where(Service.host.in_({host for _, host in down}))
        .group_by(Service.binary, Service.host)
    )
    seen = {(row.binary, row.host): int(row.seen) for row in rows}
    return {one: seen[one] for one in down if one in seen}


def _happening(row: Record) -> Happening:
    return Happening(
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

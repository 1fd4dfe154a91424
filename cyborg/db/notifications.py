# SPDX-License-Identifier: Apache-2.0
"""Read what waits to be sent as notifications, and record what was sent.

Events of the history wait in the table ``outbox``. The rows of services tell which of them were
reported as down.
"""

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    Driver,
    Event,
    Instance,
    Outbox,
    Service,
)
from cyborg.db.rows import Row, column, select
from cyborg.db.transaction import Transaction
from cyborg.model.notification import DeviceFacts, HistoryEvent


def lag(tx: Transaction) -> int:
    """Return for how many milliseconds the oldest event in the outbox waits; 0: it is empty."""
    oldest = sa.select(sa.func.min(Outbox.event_id)).scalar_subquery()
    age = tx.execute(sa.select(tx.now - Event.at_ms).where(Event.id == oldest))
    return int(age.scalar_one_or_none() or 0)


def pending(tx: Transaction, limit: int) -> list[int]:
    """Return the ids of the oldest events in the outbox, at most ``limit``, in order."""
    ids = sa.select(Outbox.event_id).order_by(Outbox.event_id).limit(limit)
    return list(tx.execute(ids).scalars())


def remove(tx: Transaction, ids: Collection[int]) -> None:
    """Remove events from the outbox."""
    if ids:
        tx.execute(sa.delete(Outbox).where(Outbox.event_id.in_(ids)))


def events(tx: Transaction, ids: Collection[int]) -> list[HistoryEvent]:
    """Return these events, in order; without ids no statement is executed."""
    if not ids:
        return []
    return [
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
        for row in tx.all(select(Event).where(Event.id.in_(ids)).order_by(Event.id))
    ]


def arq_projects(tx: Transaction, uuids: Collection[str]) -> dict[str, str | None]:
    """Return ARQ uuid → project id of those ARQs that exist."""
    if not uuids:
        return {}
    rows = tx.execute(sa.select(Arq.uuid, Arq.project_id).where(Arq.uuid.in_(uuids)))
    return dict(rows.all())


def instance_projects(tx: Transaction, uuids: Collection[str]) -> dict[str, str | None]:
    """Return instance uuid → project id of those instances that exist."""
    if not uuids:
        return {}
    query = sa.select(Instance.uuid, Instance.project_id).where(Instance.uuid.in_(uuids))
    return dict(tx.execute(query).all())


def drivers(tx: Transaction, uuids: Collection[str]) -> dict[str, tuple[str, list[str]]]:
    """Return uuid → name of those drivers that exist, with the uuids of their devices."""
    result: dict[str, tuple[str, list[str]]] = {}
    if uuids:
        of_driver = sa.and_(Device.host_id == Driver.host_id, Device.driver == Driver.name)
        query = sa.select(Driver.uuid, Driver.name, Device.uuid).outerjoin(Device, of_driver)
        for uuid, name, device in tx.execute(query.where(Driver.uuid.in_(uuids))):
            devices_of_driver = result.setdefault(uuid, (name, []))[1]
            if device is not None:
                devices_of_driver.append(device)
    return result


def devices(tx: Transaction, uuids: Collection[str]) -> dict[str, DeviceFacts]:
    """Return uuid → facts of those devices that exist, with the ARQs that hold units of them."""
    if not uuids:
        return {}
    users: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for uuid, arq, instance, project in tx.execute(
        sa.select(Device.uuid, Arq.uuid, Arq.instance_uuid, Arq.project_id)
        .join(Deployable, Deployable.device_id == Device.id)
        .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        .join(Arq, Arq.id == AttachHandle.arq_id)
        .where(Device.uuid.in_(uuids))
        .order_by(Arq.id)
    ):
        users.setdefault(uuid, []).append((arq, instance, project))
    rows = tx.execute(
        sa.select(Device.uuid, Device.type, Device.driver, Device.vendor, Device.model).where(
            Device.uuid.in_(uuids)
        )
    )
    return {
        uuid: DeviceFacts(type_, driver, vendor, model, tuple(users.get(uuid, ())))
        for uuid, type_, driver, vendor, model in rows
    }


_SEEN = sa.func.max(Service.last_seen_ms)
_REPORTED = sa.func.max(Service.reported_down_ms).is_not(None)


class UnreportedService(Row):
    """A service that is down and was not reported as down, or the other way round.

    ``seen_ms`` is the time of the last heartbeat of any process, ``now_ms`` the present time,
    ``reported`` whether the service was reported as down.
    """

    binary = column(Service.binary)
    host = column(Service.host)
    seen_ms = column(_SEEN)
    now_ms: int
    reported = column(_REPORTED)


def unreported_services(
    tx: Transaction, down_after: Mapping[str, int]
) -> Sequence[UnreportedService]:
    """Return the services whose state is not the one that was reported.

    A process is up until its last heartbeat is older than ``down_after`` of its binary, in
    milliseconds.
    """
    down = tx.now - sa.case(down_after, value=Service.binary) > _SEEN
    return tx.all(
        select(UnreportedService, now_ms=tx.now)
        .where(Service.binary.in_(down_after))
        .group_by(Service.binary, Service.host)
        .having(down != _REPORTED)
        .order_by(Service.binary, Service.host)
    )


def set_reported(tx: Transaction, row: UnreportedService) -> None:
    """Record that the change of a service was sent."""
    tx.execute(
        sa.update(Service)
        .where(Service.binary == row.binary, Service.host == row.host)
        .values(reported_down_ms=None if row.reported else tx.now)
    )

# SPDX-License-Identifier: Apache-2.0
"""Read units (attach handles) in SQL: the state of each one, and counts by resource class.

The terms repeat ``cyborg.model.availability``, which computes the desired state of a host, so that
every display agrees with Placement: *offered* units are those that Placement may allocate, used or
not; the rest of an inventory is *reserved*.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db.hosts import DISABLED
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Driver, Host
from cyborg.model import health
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState

Row = sa.Row[*tuple[Any, ...]]
USED: Final = "used"
FREE: Final = "free"
LOST: Final = "lost"

#: The operator has enabled the device, and it is not lost.
IN_SERVICE = sa.and_(Device.status == DeviceStatus.ENABLED.value, Device.lost_ms.is_(None))
#: The health of the device allows its use.
HEALTHY = sa.or_(Device.health.is_(None), Device.health.in_(sorted(health.OFFERED)))
#: The driver is ready; a driver that was never reported counts as ready.
DRIVER_WORKS = sa.func.coalesce(Driver.state, DriverState.READY.value) == DriverState.READY.value
#: Neither the unit nor its deployable is out of service; the device is not considered.
PART_IN_SERVICE = sa.and_(
    Deployable.lost_ms.is_(None),
    AttachHandle.lost_ms.is_(None),
    AttachHandle.state != HandleState.QUARANTINED.value,
)
#: The unit is not reserved in Placement.
OFFERED = sa.and_(IN_SERVICE, HEALTHY, DRIVER_WORKS, sa.not_(DISABLED), PART_IN_SERVICE)
_IS_LOST = sa.or_(
    AttachHandle.lost_ms.is_not(None), Deployable.lost_ms.is_not(None), Device.lost_ms.is_not(None)
)
#: What a unit counts as: used, free, or the first reason why it is out of service. The statuses of
#: devices are such reasons.
WORD: sa.SQLColumnExpression[str] = sa.case(
    (Arq.id.is_not(None), USED),
    (_IS_LOST, LOST),
    (AttachHandle.state == HandleState.QUARANTINED.value, "quarantined"),
    (AttachHandle.state == HandleState.RELEASING.value, "releasing"),
    (DISABLED, "host_disabled"),
    (Device.status != DeviceStatus.ENABLED.value, Device.status),
    (sa.not_(HEALTHY), "unhealthy"),
    (sa.not_(DRIVER_WORKS), "driver_not_ready"),
    (Deployable.publish_error.is_not(None), "provider_refused"),
    (AttachHandle.state == HandleState.HELD.value, "leaked"),
    else_=FREE,
)


def select(*columns: Any) -> sa.Select[*tuple[Any, ...]]:
    """Select columns of units with their deployable, device, host, driver and ARQ."""
    return (
        sa.select(*columns)
        .select_from(AttachHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .outerjoin(Driver, sa.and_(Driver.host_id == Device.host_id, Driver.name == Device.driver))
        .outerjoin(Arq, Arq.attach_handle_id == AttachHandle.id)
    )


def of_devices(tx: sa.Connection, ids: Sequence[int]) -> Sequence[Row]:
    """Return the deployables of devices with counts of their units.

    Rows are (device_id, uuid, name, rp_uuid, resource_class, publish_error, word, offered,
    amount), one for each combination of word and offered; a deployable without units has one row,
    whose ``word`` is None.
    """
    each = (
        select(Deployable.id.label("part"), WORD.label("word"), OFFERED.label("offered"))
        .where(Device.id.in_(ids))
        .subquery()
    )
    counted = (
        sa.select(each.c.part, each.c.word, each.c.offered, sa.func.count().label("amount"))
        .group_by(each.c.part, each.c.word, each.c.offered)
        .subquery()
    )
    return tx.execute(
        sa.select(
            Deployable.device_id,
            Deployable.uuid,
            Deployable.name,
            Deployable.rp_uuid,
            Deployable.resource_class,
            Deployable.publish_error,
            counted.c.word,
            counted.c.offered,
            counted.c.amount,
        )
        .outerjoin(counted, counted.c.part == Deployable.id)
        .where(Deployable.device_id.in_(ids))
        .order_by(Deployable.id, counted.c.word)
    ).all()


#: The names of microversion 2.4 for the values of ``WORD``.
_OLDER: Final = {FREE: "offered", USED: "bound", LOST: "lost"}
_STATE = sa.case(_OLDER, value=WORD, else_="reserved")
STATES: Final = ("offered", "bound", "reserved", "lost")
_SUMS = [sa.func.sum(sa.case({state: 1}, value=_STATE, else_=0)).label(state) for state in STATES]
#: The columns by which units can be counted, besides their resource class.
GROUPS: Final[Mapping[str, sa.SQLColumnExpression[Any]]] = {
    "type": Device.type,
    "host": Device.hostname,
    "project_id": Arq.project_id,
}


def by_class(
    tx: sa.Connection, filters: Mapping[str, Any], project_id: str | None, groups: Collection[str]
) -> Sequence[Row]:
    """Return (resource_class, type, host, project_id, word, amount), ordered by the first four.

    ``word`` is a value of ``WORD``. Columns that are not in ``groups`` are None. With
    ``project_id``, only the units of this project are counted.
    """
    columns: list[sa.Label[Any]] = [GROUPS[name].label(name) for name in GROUPS if name in groups]
    each = (
        select(Deployable.resource_class, *columns, WORD.label("word"))
        .where(*_terms(filters, project_id))
        .subquery()
    )
    keys = [each.c.resource_class, *(each.c[column.name] for column in columns)]
    empty = [sa.null().label(name) for name in GROUPS if name not in groups]
    # The place of NULL in an order differs between databases.
    order = [sa.func.coalesce(key, "") for key in keys]
    return tx.execute(
        sa.select(*keys, *empty, each.c.word, sa.func.count().label("amount"))
        .group_by(*keys, each.c.word)
        .order_by(*order, each.c.word)
    ).all()


def count(tx: sa.Connection, filters: Mapping[str, Any], project_id: str | None) -> Sequence[Row]:
    """Return (type, host, project_id, offered, bound, reserved, lost), ordered by the first three.

    There is one row for all units of a type on a host that no project has, and one for each project
    that has some. With ``project_id``, only the units of this project are counted, for all hosts in
    one row, whose host is None.
    """
    host: sa.SQLColumnExpression[Any] = Device.hostname
    if project_id is not None:
        host = sa.null()
    groups: list[sa.SQLColumnExpression[Any]] = [Device.type, Arq.project_id]
    query = select(Device.type, host.label("host"), Arq.project_id, *_SUMS)
    query = query.where(*_terms(filters, project_id))
    if project_id is None:
        groups.insert(1, Device.hostname)
    # The place of NULL in an order differs between databases.
    owner = sa.func.coalesce(Arq.project_id, "")
    order = [owner if column is groups[-1] else column for column in groups]
    return tx.execute(query.group_by(*groups).order_by(*order)).all()


def _terms(filters: Mapping[str, Any], project_id: str | None) -> list[sa.ColumnElement[bool]]:
    """Return the terms of the filters of a request, and of the project that limits it."""
    terms: list[sa.ColumnElement[bool]] = []
    if project_id is not None:
        terms.append(Arq.project_id == project_id)
    if "resource_class" in filters:
        terms.append(Deployable.resource_class == filters["resource_class"])
    if "type" in filters:
        terms.append(Device.type == filters["type"])
    if "host" in filters:
        terms.append(sa.or_(Host.name == filters["host"], Host.service_host == filters["host"]))
    if "project_id" in filters:
        terms.append(Arq.project_id == filters["project_id"])
    return terms

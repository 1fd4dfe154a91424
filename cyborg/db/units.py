# SPDX-License-Identifier: Apache-2.0
"""SQL for units (attach handles): the state of each one, and counts by resource class.

The terms repeat ``cyborg.model.availability``, by which the desired state of a host is computed, so
that every display agrees with Placement: *offered* is what Placement may give out, used or not;
the rest of an inventory is *reserved*.
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

#: The operator has enabled the device, and its host shows it.
IN_SERVICE = sa.and_(Device.status == DeviceStatus.ENABLED.value, Device.lost_ms.is_(None))
#: The health of the device allows its use.
HEALTHY = sa.or_(Device.health.is_(None), Device.health.in_(sorted(health.OFFERED)))
#: A driver that was never reported is in no trouble.
DRIVER_WORKS = sa.func.coalesce(Driver.state, DriverState.READY.value) == DriverState.READY.value
#: Nothing withholds this unit of a device that is offered.
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
    """The deployables of devices with their units, counted.

    (device_id, uuid, name, rp_uuid, resource_class, publish_error, word, offered, amount), one row
    for each combination of word and offered; a deployable without units has ``word`` None.
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


#: What microversion 2.4 calls the words of ``units``.
_OLDER: Final = {FREE: "offered", USED: "bound", LOST: "lost"}
_STATE = sa.case(_OLDER, value=WORD, else_="reserved")
STATES: Final = ("offered", "bound", "reserved", "lost")
_SUMS = [sa.func.sum(sa.case({one: 1}, value=_STATE, else_=0)).label(one) for one in STATES]
#: What rows can be counted by besides their resource class.
GROUPS: Final[Mapping[str, sa.SQLColumnExpression[Any]]] = {
    "type": Device.type,
    "host": Device.hostname,
    "project_id": Arq.project_id,
}


def by_class(
    tx: sa.Connection, asked: Mapping[str, Any], project_id: str | None, groups: Collection[str]
) -> Sequence[Row]:
    """(resource_class, type, host, project_id, word, amount), in the order of the first four.

    ``word`` is that of ``units.WORD``. Columns that are not in ``groups`` are None. With
    ``project_id`` only the units of this project.
    """
    columns: list[sa.Label[Any]] = [GROUPS[name].label(name) for name in GROUPS if name in groups]
    each = (
        select(Deployable.resource_class, *columns, WORD.label("word"))
        .where(*_terms(asked, project_id))
        .subquery()
    )
    keys = [each.c.resource_class, *(each.c[column.name] for column in columns)]
    empty = [sa.null().label(name) for name in GROUPS if name not in groups]
    # Databases do not agree on where nothing comes.
    order = [sa.func.coalesce(key, "") for key in keys]
    return tx.execute(
        sa.select(*keys, *empty, each.c.word, sa.func.count().label("amount"))
        .group_by(*keys, each.c.word)
        .order_by(*order, each.c.word)
    ).all()


def count(tx: sa.Connection, asked: Mapping[str, Any], project_id: str | None) -> Sequence[Row]:
    """(type, host, project_id, offered, bound, reserved, lost), in the order of the first three.

    One row for all units of a type on a host that nobody has, and one for each project that has
    some. With ``project_id`` those of this project alone, all hosts in one row, whose host is None.
    """
    host: sa.SQLColumnExpression[Any] = Device.hostname
    if project_id is not None:
        host = sa.null()
    groups: list[sa.SQLColumnExpression[Any]] = [Device.type, Arq.project_id]
    query = select(Device.type, host.label("host"), Arq.project_id, *_SUMS)
    query = query.where(*_terms(asked, project_id))
    if project_id is None:
        groups.insert(1, Device.hostname)
    # Databases do not agree on where nothing comes.
    whose = sa.func.coalesce(Arq.project_id, "")
    order = [whose if one is groups[-1] else one for one in groups]
    return tx.execute(query.group_by(*groups).order_by(*order)).all()


def _terms(asked: Mapping[str, Any], project_id: str | None) -> list[sa.ColumnElement[bool]]:
    """The filters of a request, and the project that it is limited to."""
    terms: list[sa.ColumnElement[bool]] = []
    if project_id is not None:
        terms.append(Arq.project_id == project_id)
    if "resource_class" in asked:
        terms.append(Deployable.resource_class == asked["resource_class"])
    if "type" in asked:
        terms.append(Device.type == asked["type"])
    if "host" in asked:
        terms.append(sa.or_(Host.name == asked["host"], Host.service_host == asked["host"]))
    if "project_id" in asked:
        terms.append(Arq.project_id == asked["project_id"])
    return terms

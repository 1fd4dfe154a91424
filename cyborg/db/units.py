# SPDX-License-Identifier: Apache-2.0
"""Units (attach handles) in SQL: which are offered in Placement, and what each one counts as.

The terms repeat ``cyborg.model.offering``, by which the desired state of a host is computed, so
that every display agrees with Placement: *offered* is what Placement may give out, used or not;
the rest of an inventory is *reserved*.
"""

from collections.abc import Sequence
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

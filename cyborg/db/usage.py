# SPDX-License-Identifier: Apache-2.0
"""How many units there are of what, where, and whose: counted from handles, devices and ARQs."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db.hosts import DISABLED
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Driver, Host
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState

Row = sa.Row[*tuple[Any, ...]]

_HELD = Arq.id.is_not(None)
_LOST = sa.or_(
    AttachHandle.lost_ms.is_not(None), Deployable.lost_ms.is_not(None), Device.lost_ms.is_not(None)
)
#: A driver that has never been reported is in no trouble.
_OFFERED = sa.and_(
    Device.status == DeviceStatus.ENABLED.value,
    sa.func.coalesce(Driver.state, DriverState.READY.value) == DriverState.READY.value,
    Deployable.publish_error.is_(None),
    AttachHandle.state == HandleState.FREE.value,
    sa.not_(DISABLED),
)
#: Each unit counts once: the first that holds.
_STATE = sa.case((_HELD, "bound"), (_LOST, "lost"), (_OFFERED, "offered"), else_="reserved")
STATES = ("offered", "bound", "reserved", "lost")
_SUMS = [sa.func.sum(sa.case({one: 1}, value=_STATE, else_=0)).label(one) for one in STATES]


def count(tx: sa.Connection, asked: Mapping[str, str], project_id: str | None) -> Sequence[Row]:
    """(type, host, project_id, offered, bound, reserved, lost), in the order of the first three.

    One row for all units of a type on a host that nobody has, and one for each project that has
    some. With ``project_id`` those of this project alone, all hosts in one row, whose host is None.
    """
    host: sa.SQLColumnExpression[Any] = Device.hostname
    if project_id is not None:
        host = sa.null()
    groups: list[sa.SQLColumnExpression[Any]] = [Device.type, Arq.project_id]
    query: sa.Select[*tuple[Any, ...]] = (
        sa.select(
            Device.type,
            host.label("host"),
            Arq.project_id,
            *_SUMS,
        )
        .select_from(AttachHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .outerjoin(Driver, sa.and_(Driver.host_id == Device.host_id, Driver.name == Device.driver))
        .outerjoin(Arq, Arq.attach_handle_id == AttachHandle.id)
    )
    if project_id is not None:
        query = query.where(Arq.project_id == project_id)
    else:
        groups.insert(1, Device.hostname)
    if "type" in asked:
        query = query.where(Device.type == asked["type"])
    if "host" in asked:
        query = query.where(sa.or_(Host.name == asked["host"], Host.service_host == asked["host"]))
    if "project_id" in asked:
        query = query.where(Arq.project_id == asked["project_id"])
    # Databases do not agree on where nothing comes.
    whose = sa.func.coalesce(Arq.project_id, "")
    order = [whose if one is groups[-1] else one for one in groups]
    return tx.execute(query.group_by(*groups).order_by(*order)).all()

# SPDX-License-Identifier: Apache-2.0
"""Read the accelerator requests that a drain of a host or a device waits for."""

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg.db.models import Arq, Deployable, Device, DeviceProfile, Host, Instance
from cyborg.db.rows import Shown, column, nullable, shown
from cyborg.db.transaction import Transaction
from cyborg.model.scope import Scope


class HeldUnit(Shown):
    """A unit of a server: its ARQ, what that requests, and where the unit is."""

    id = column(Arq.id)
    arq_uuid = column(Arq.uuid)
    project_id = column(Arq.project_id)
    instance_uuid = column(Arq.instance_uuid)
    origin = column(Arq.origin)
    profile_id = column(Arq.device_profile_id)
    profile = column(DeviceProfile.name)
    group_index = column(Arq.device_profile_group_id)
    group_spec = column(Arq.group_spec)
    device_uuid = column(Device.uuid)
    provider = column(Deployable.rp_uuid)
    #: Whether the drain is about this unit.
    drained: bool
    name = nullable(Instance.name)
    status = nullable(Instance.status)


def of_host(agent: str) -> sa.ColumnElement[bool]:
    """Return the term: the device is one of the host of this agent (``[DEFAULT] host``)."""
    return Device.host_id.in_(sa.select(Host.id).where(Host.service_host == agent))


def of_device(uuid: str) -> sa.ColumnElement[bool]:
    """Return the term: it is this device."""
    return Device.uuid == uuid


def held(
    tx: Transaction, scope: Scope, subject: sa.ColumnElement[bool], limit: int
) -> Sequence[HeldUnit]:
    """Return the units of the servers that have units of the subject, ordered by server.

    These are at most ``limit`` units. Units that no server has, such as those of a request that is
    being attached, are there as well.
    """
    mine = (
        sa.select(Arq.id, Arq.instance_uuid)
        .join(Deployable, Deployable.id == Arq.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(subject)
        .subquery()
    )
    query = (
        shown(HeldUnit, _of_project, drained=sa.case((subject, 1), else_=0))
        .within(scope)
        .select_from(Arq)
        .join(DeviceProfile, DeviceProfile.id == Arq.device_profile_id)
        .join(Deployable, Deployable.id == Arq.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(Instance, Instance.uuid == Arq.instance_uuid)
        .where(
            sa.or_(
                Arq.id.in_(sa.select(mine.c.id)),
                Arq.instance_uuid.in_(sa.select(mine.c.instance_uuid)),
            )
        )
    )
    # The place of NULL in an order differs between databases.
    return tx.all(query.order_by(sa.func.coalesce(Arq.instance_uuid, ""), Arq.id).limit(limit))


def _of_project(project_id: str) -> sa.ColumnElement[bool]:
    return Arq.project_id == project_id

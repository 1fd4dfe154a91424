# SPDX-License-Identifier: Apache-2.0
"""What stands behind a resource provider: the facts that a bind and its work need."""

from collections.abc import Iterable

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.hosts import AGENT_EPOCH, DISABLED
from cyborg.db.models import AttachHandle, Deployable, Device, Host

_OFFER = (
    Deployable.id,
    Deployable.uuid,
    Deployable.rp_uuid,
    Deployable.name,
    Deployable.resource_class,
    Deployable.prepare,
    Deployable.programmable,
    Deployable.bitstream_id,
    Deployable.lost_ms,
    Deployable.publish_error,
    Device.uuid.label("device_uuid"),
    Device.driver,
    Device.device_key,
    Device.hostname,
    Device.status,
    Device.lost_ms.label("device_lost_ms"),
    Device.health,
    Device.host_id,
    Host.service_host,
    DISABLED.label("host_disabled"),
)


# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_BY_PROVIDER = (
    sa.select(*_OFFER)
    .join(Device, Device.id == Deployable.device_id)
    .join(Host, Host.id == Device.host_id)
    .where(Deployable.rp_uuid.in_(sa.bindparam("uuids", expanding=True)))
)


def by_provider(tx: sa.Connection, rp_uuids: Iterable[str]) -> dict[str, Record]:
    """The deployables behind resource providers; provider uuid → row."""
    return {row.rp_uuid: row for row in tx.execute(_BY_PROVIDER, {"uuids": sorted(set(rp_uuids))})}


def by_uuid(tx: sa.Connection, uuid: str) -> Record | None:
    """One deployable with its device; None when there is none."""
    return tx.execute(
        sa.select(*_OFFER, AGENT_EPOCH.label("agent_epoch"))
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(Deployable.uuid == uuid)
    ).one_or_none()


def tasks(tx: sa.Connection, handle_ids: Iterable[int]) -> dict[int, Record]:
    """What an agent must know of attach handles to work on them; handle id → row."""
    rows = tx.execute(
        sa.select(
            AttachHandle.id,
            AttachHandle.uuid,
            AttachHandle.handle_key,
            AttachHandle.state,
            AttachHandle.deployable_id,
            Deployable.name,
            Deployable.prepare,
            Deployable.programmable,
            Deployable.bitstream_id,
            Device.uuid.label("device_uuid"),
            Device.driver,
            Device.device_key,
            Device.hostname,
            Device.host_id,
            Host.service_host,
            AGENT_EPOCH.label("agent_epoch"),
        )
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(AttachHandle.id.in_(sorted(set(handle_ids))))
    )
    return {row.id: row for row in rows}

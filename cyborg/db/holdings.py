# SPDX-License-Identifier: Apache-2.0
"""Who has which of a host's units that binds have to be prepared for."""

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.models import Arq, AttachHandle, Deployable, Device


def of_host(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """One row per attach handle, with its holder's state (None: nobody), in one statement."""
    lost = sa.or_(
        AttachHandle.lost_ms.is_not(None),
        Deployable.lost_ms.is_not(None),
        Device.lost_ms.is_not(None),
    )
    return tx.execute(
        sa.select(
            AttachHandle.uuid,
            AttachHandle.handle_key,
            AttachHandle.state,
            Deployable.name,
            Device.driver,
            Device.device_key,
            lost.label("lost"),
            Arq.state.label("holder_state"),
            Arq.prepared,
            Arq.group_spec,
        )
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(Arq, Arq.attach_handle_id == AttachHandle.id)
        .where(Device.host_id == host_id, sa.or_(Deployable.prepare, Arq.prepared))
        .order_by(AttachHandle.id)
    ).all()

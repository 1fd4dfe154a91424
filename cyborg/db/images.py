# SPDX-License-Identifier: Apache-2.0
"""Read and change the image that a deployable has loaded, and read who uses or changes it."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from cyborg.db.base import Record
from cyborg.db.models import Arq, Deployable, Device, Work
from cyborg.model.work import WorkKind

_KINDS = tuple(kind.value for kind in (WorkKind.PREPARE, WorkKind.RELEASE, WorkKind.PROGRAM))


def lock(tx: sa.Connection, deployable_id: int) -> str | None:
    """Lock a deployable and return the uuid of its image; None when it is unknown.

    Read everything that decides about an image after this. Take this lock after those of ARQs and
    before those of attach handles.
    """
    query = sa.select(Deployable.bitstream_id).where(Deployable.id == deployable_id)
    image: str | None = tx.execute(query.with_for_update()).scalar_one()
    return image


def note(tx: sa.Connection, deployable_id: int, image_uuid: str | None) -> None:
    """Store which image a deployable has loaded; None: unknown."""
    tx.execute(
        sa.update(Deployable).where(Deployable.id == deployable_id).values(bitstream_id=image_uuid)
    )


def users(tx: sa.Connection, deployable_id: int) -> Sequence[Record]:
    """Return the ARQs that have an attach handle of a deployable, in order of id."""
    return tx.execute(
        sa.select(Arq.uuid, Arq.state, Arq.group_spec, Arq.attach_handle_id)
        .where(Arq.deployable_id == deployable_id, Arq.attach_handle_id.is_not(None))
        .order_by(Arq.id)
    ).all()


def work_on(tx: sa.Connection, deployable_id: int) -> Sequence[Record]:
    """Return the agent's unfinished work on a deployable, oldest first."""
    return tx.execute(
        sa.select(Work.id, Work.kind, Work.arq_uuid, Work.spec)
        .where(Work.deployable_id == deployable_id, Work.kind.in_(_KINDS))
        .order_by(Work.id)
    ).all()


def forget_unused(tx: sa.Connection, host_id: int) -> None:
    """Mark the images of a host's unused deployables as unknown, because its agent has started.

    The host may have been rebooted, and most devices lose their image without power.
    """
    own = sa.select(Device.id).where(Device.host_id == host_id)
    used = sa.exists().where(Arq.deployable_id == Deployable.id, Arq.attach_handle_id.is_not(None))
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(own), Deployable.bitstream_id.is_not(None), ~used)
        .values(bitstream_id=None)
    )


def forget_lost(tx: sa.Connection, device_ids: Collection[int]) -> None:
    """Mark the images of lost devices as unknown: they may have been without power."""
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(sorted(device_ids)), Deployable.bitstream_id.is_not(None))
        .values(bitstream_id=None)
    )

# SPDX-License-Identifier: Apache-2.0
"""The image that a deployable holds, and who uses or changes it."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from cyborg.db.base import Record
from cyborg.db.models import Arq, Deployable, Device, Work
from cyborg.model.work import WorkKind

_KINDS = tuple(one.value for one in (WorkKind.PREPARE, WorkKind.RELEASE, WorkKind.PROGRAM))


def lock(tx: sa.Connection, deployable_id: int) -> str | None:
    """Lock a deployable and return the image that it holds; None when nobody knows.

    What decides about an image is read after that. The lock comes after those of ARQs and before
    those of attach handles.
    """
    query = sa.select(Deployable.bitstream_id).where(Deployable.id == deployable_id)
    image: str | None = tx.execute(query.with_for_update()).scalar_one()
    return image


def note(tx: sa.Connection, deployable_id: int, image_uuid: str | None) -> None:
    """Store which image a deployable holds from now on; None: nobody knows."""
    tx.execute(
        sa.update(Deployable).where(Deployable.id == deployable_id).values(bitstream_id=image_uuid)
    )


def users(tx: sa.Connection, deployable_id: int) -> Sequence[Record]:
    """Return the ARQs that have an attach handle of a deployable."""
    return tx.execute(
        sa.select(Arq.uuid, Arq.state, Arq.group_spec, Arq.attach_handle_id)
        .where(Arq.deployable_id == deployable_id, Arq.attach_handle_id.is_not(None))
        .order_by(Arq.id)
    ).all()


def work_on(tx: sa.Connection, deployable_id: int) -> Sequence[Record]:
    """Return the agent's work on a deployable that is not done, in the order of its issue."""
    return tx.execute(
        sa.select(Work.id, Work.kind, Work.arq_uuid, Work.spec)
        .where(Work.deployable_id == deployable_id, Work.kind.in_(_KINDS))
        .order_by(Work.id)
    ).all()


def forget_unused(tx: sa.Connection, host_id: int) -> None:
    """Forget the images of a host's deployables that nobody uses.

    Its agent has just started: the host may have been booted, and most devices lose their image
    with the power.
    """
    mine = sa.select(Device.id).where(Device.host_id == host_id)
    used = sa.exists().where(Arq.deployable_id == Deployable.id, Arq.attach_handle_id.is_not(None))
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(mine), Deployable.bitstream_id.is_not(None), ~used)
        .values(bitstream_id=None)
    )


def forget_lost(tx: sa.Connection, device_ids: Collection[int]) -> None:
    """Forget the images of devices that are lost: they may have been without power."""
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(sorted(device_ids)), Deployable.bitstream_id.is_not(None))
        .values(bitstream_id=None)
    )

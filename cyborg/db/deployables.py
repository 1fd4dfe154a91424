# SPDX-License-Identifier: Apache-2.0
"""Read deployables in SQL, and read and change the images that they have loaded."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models, units
from cyborg.db.base import Record
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Driver, Host, Work
from cyborg.db.transaction import Transaction
from cyborg.model.work import WorkKind

_D = models.Deployable.__table__.c
_A = models.Attribute.__table__.c
#: Work of the agent that uses or changes an image.
_IMAGE_WORK = tuple(kind.value for kind in (WorkKind.PREPARE, WorkKind.RELEASE, WorkKind.PROGRAM))
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _D.id,
    _D.uuid,
    _D.parent_id,
    _D.root_id,
    _D.name,
    _D.num_accelerators,
    _D.device_id,
    _D.rp_uuid,
    _D.driver_name,
    _D.bitstream_id,
    _D.created_at,
    _D.updated_at,
)
SORTABLE = listing.sortable(
    models.Deployable,
    "id",
    "uuid",
    "name",
    "num_accelerators",
    "device_id",
    "driver_name",
    "created_at",
    "updated_at",
)


@dataclass(frozen=True)
class Detail:
    """A deployable and its attributes as (key, value), in the order of their creation."""

    row: sa.Row[*tuple[Any, ...]]
    attributes: Sequence[tuple[str, str]]


def show(tx: Transaction, uuid: str) -> Detail | None:
    """Return the deployable with this uuid; None when there is none."""
    deployables = _with_attributes(tx, _VISIBLE.where(_D.uuid == uuid))
    return deployables[0] if deployables else None


def programmable_classes(tx: Transaction) -> frozenset[str]:
    """Return the resource classes of the deployables into which images can be loaded."""
    classes = sa.select(_D.resource_class).where(_D.programmable, _D.lost_ms.is_(None)).distinct()
    return frozenset(tx.execute(classes).scalars())


def page(tx: Transaction, page: listing.Page, name: str | None = None) -> list[Detail]:
    """Return a page of all deployables, or of the one with this name."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, page)
    return _with_attributes(tx, query if name is None else query.where(_D.name == name))


def _with_attributes(tx: Transaction, query: sa.Select[*tuple[Any, ...]]) -> list[Detail]:
    rows = tx.execute(query).all()
    # The page is repeated as a derived table: this needs no bound parameter for each row, and
    # MySQL does not accept LIMIT in an IN subquery.
    chosen = query.with_only_columns(_D.id.label("id")).subquery()
    attributes: dict[int, list[tuple[str, str]]] = {row.id: [] for row in rows}
    for deployable_id, key, value in tx.execute(
        sa.select(_A.deployable_id, _A.key, _A.value)
        .join(chosen, chosen.c.id == _A.deployable_id)
        .order_by(_A.id)
    ):
        attributes.setdefault(deployable_id, []).append((key, value))
    return [Detail(row, attributes[row.id]) for row in rows]


_OFFER = (
    Deployable.id,
    Deployable.uuid,
    Deployable.rp_uuid,
    Deployable.name,
    Deployable.resource_class,
    Deployable.prepare,
    Deployable.programmable,
    Deployable.bitstream_id,
    Device.uuid.label("device_uuid"),
    Device.driver,
    Device.device_key,
    Device.hostname,
    Device.host_id,
    Host.service_host,
)


# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_BY_PROVIDER = (
    sa.select(*_OFFER, units.REASON.label("unavailable"))
    .join(Device, Device.id == Deployable.device_id)
    .join(Host, Host.id == Device.host_id)
    .outerjoin(Driver, units.OF_DEVICE)
    .where(Deployable.rp_uuid.in_(sa.bindparam("uuids", expanding=True)))
)


def by_provider(tx: Transaction, rp_uuids: Iterable[str]) -> dict[str, Record]:
    """Return provider uuid → row of the deployables that these resource providers represent.

    ``unavailable`` is the reason why none of their units may be given out; None: there is none.
    """
    return {row.rp_uuid: row for row in tx.execute(_BY_PROVIDER, {"uuids": sorted(set(rp_uuids))})}


def by_uuid(tx: Transaction, uuid: str) -> Record | None:
    """Return a deployable with its device and host; None when there is none."""
    return tx.execute(
        sa.select(*_OFFER, AGENT_EPOCH.label("agent_epoch"))
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(Deployable.uuid == uuid)
    ).one_or_none()


def tasks(tx: Transaction, handle_ids: Iterable[int]) -> dict[int, Record]:
    """Return handle id → row with all that an agent needs to prepare or release attach handles."""
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


def lock_image(tx: Transaction, deployable_id: int) -> str | None:
    """Lock a deployable and return the uuid of its image; None when it is unknown.

    Read everything that decides about an image after this. Take this lock after those of ARQs and
    before those of attach handles.
    """
    query = sa.select(Deployable.bitstream_id).where(Deployable.id == deployable_id)
    image: str | None = tx.execute(query.with_for_update()).scalar_one()
    return image


def set_image(tx: Transaction, deployable_id: int, image_uuid: str | None) -> None:
    """Store which image a deployable has loaded; None: unknown."""
    tx.execute(
        sa.update(Deployable).where(Deployable.id == deployable_id).values(bitstream_id=image_uuid)
    )


def image_users(tx: Transaction, deployable_id: int) -> Sequence[Record]:
    """Return the ARQs that have an attach handle of a deployable, in order of id."""
    return tx.execute(
        sa.select(Arq.uuid, Arq.state, Arq.group_spec, Arq.attach_handle_id)
        .where(Arq.deployable_id == deployable_id, Arq.attach_handle_id.is_not(None))
        .order_by(Arq.id)
    ).all()


def image_work(tx: Transaction, deployable_id: int) -> Sequence[Record]:
    """Return the agent's unfinished work on a deployable, oldest first."""
    return tx.execute(
        sa.select(Work.id, Work.kind, Work.arq_uuid, Work.spec)
        .where(Work.deployable_id == deployable_id, Work.kind.in_(_IMAGE_WORK))
        .order_by(Work.id)
    ).all()


def clear_unused_images(tx: Transaction, host_id: int) -> None:
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


def clear_lost_images(tx: Transaction, device_ids: Collection[int]) -> None:
    """Mark the images of lost devices as unknown: they may have been without power."""
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(sorted(device_ids)), Deployable.bitstream_id.is_not(None))
        .values(bitstream_id=None)
    )

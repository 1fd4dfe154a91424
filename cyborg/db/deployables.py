# SPDX-License-Identifier: Apache-2.0
"""Read deployables in SQL, and read and change the images that they have loaded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg.db import listing, units
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import Arq, AttachHandle, Attribute, Deployable, Device, Driver, Host, Work
from cyborg.db.rows import Row, Shown, column, required, select, shown_hardware
from cyborg.db.transaction import Transaction
from cyborg.model.scope import Scope
from cyborg.model.work import WorkKind

#: Work of the agent that uses or changes an image.
_IMAGE_WORK = tuple(kind.value for kind in (WorkKind.PREPARE, WorkKind.RELEASE, WorkKind.PROGRAM))


#: The name that the driver of a deployable uses: another than ``name`` after the device has moved.
KEY: sa.SQLColumnExpression[str] = sa.func.coalesce(Deployable.key, Deployable.name)
#: How many units of a deployable a guest takes at a time.
GROUP_SIZE: sa.SQLColumnExpression[int] = sa.func.coalesce(Deployable.group_size, 1)


class VisibleDeployable(Deployable, Shown):
    """A deployable as the API shows it."""

    __abstract__ = True


def is_of_project(
    deployable_id: sa.SQLColumnExpression[int], project_id: str
) -> sa.ColumnElement[bool]:
    """Return the term: an ARQ of the project holds a unit of the deployable's device."""
    held = sa.select(Deployable.device_id).join(Arq, Arq.deployable_id == Deployable.id)
    devices = held.where(Arq.project_id == project_id)
    return deployable_id.in_(sa.select(Deployable.id).where(Deployable.device_id.in_(devices)))


_VISIBLE = shown_hardware(
    VisibleDeployable, lambda project_id: is_of_project(Deployable.id, project_id)
)
SORTABLE = listing.sortable(
    Deployable,
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

    row: VisibleDeployable
    attributes: Sequence[tuple[str, str]]
    #: Whether the scope is that of its users; the image is theirs.
    held: bool


def show(tx: Transaction, uuid: str, scope: Scope) -> Detail | None:
    """Return the deployable with this uuid if the scope reaches it."""
    query = _VISIBLE.where(Deployable.uuid == uuid).within(scope)
    deployables = _with_attributes(tx, query, scope)
    return deployables[0] if deployables else None


def programmable_classes(tx: Transaction) -> frozenset[str]:
    """Return the resource classes of the deployables into which images can be loaded."""
    classes = (
        sa.select(Deployable.resource_class)
        .where(Deployable.programmable, Deployable.lost_ms.is_(None))
        .distinct()
    )
    return frozenset(tx.execute(classes).scalars())


def page(
    tx: Transaction, page: listing.Page, scope: Scope, name: str | None = None
) -> list[Detail]:
    """Return a page of the deployables in the scope, or the one of them with this name."""
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    if name is not None:
        query = query.where(Deployable.name == name)
    return _with_attributes(tx, query, scope)


def _with_attributes(
    tx: Transaction, query: sa.Select[VisibleDeployable], scope: Scope
) -> list[Detail]:
    rows = tx.all(query)
    # The page is repeated as a derived table: this needs no bound parameter for each row, and
    # MySQL does not accept LIMIT in an IN subquery.
    chosen = query.with_only_columns(Deployable.id.label("id")).subquery()
    attributes: dict[int, list[tuple[str, str]]] = {row.id: [] for row in rows}
    for deployable_id, key, value in tx.execute(
        sa.select(Attribute.deployable_id, Attribute.key, Attribute.value)
        .join(chosen, chosen.c.id == Attribute.deployable_id)
        .order_by(Attribute.id)
    ):
        attributes.setdefault(deployable_id, []).append((key, value))
    held = set(attributes)
    if scope.project_id is not None:
        own = sa.select(Deployable.id).where(is_of_project(Deployable.id, scope.project_id))
        held = set(tx.execute(own).scalars())
    return [Detail(row, attributes[row.id], row.id in held) for row in rows]


class PlacedDeployable(Row):
    """The columns of a deployable and its device that a host's agent needs."""

    name = column(Deployable.name)
    key = column(KEY)
    prepare = column(Deployable.prepare)
    programmable = column(Deployable.programmable)
    bitstream_id = column(Deployable.bitstream_id)
    device_uuid = column(Device.uuid)
    driver = column(Device.driver)
    device_key = column(Device.device_key)
    hostname = column(Device.hostname)
    host_id = column(Device.host_id)
    service_host = column(Host.service_host)
    #: Neither offered nor reset, because the database may not know its guests.
    unchecked = column(Host.unchecked)


class Offer(PlacedDeployable):
    """A deployable of a provider.

    ``pooled`` tells whether the units of its device share capacity, ``cost`` what each of its own
    takes of that. Guests take units ``group_size`` at a time. ``unavailable`` is the reason why
    none of its units may be given out; None: there is none.
    """

    id = column(Deployable.id)
    uuid = column(Deployable.uuid)
    rp_uuid = required(Deployable.rp_uuid)
    resource_class = column(Deployable.resource_class)
    pooled = column(Device.pools.is_not(None))
    cost = column(Deployable.cost)
    group_size = column(GROUP_SIZE)
    clean = column(Deployable.clean)
    unavailable = column(units.REASON)


class AgentDeployable(PlacedDeployable):
    """A deployable with the epoch of its host's agent, None while the host has no agent."""

    id = column(Deployable.id)
    agent_epoch: int | None = column(AGENT_EPOCH)


class AgentHandle(PlacedDeployable):
    """An attach handle with the epoch of its host's agent, None while the host has no agent."""

    id = column(AttachHandle.id)
    uuid = column(AttachHandle.uuid)
    #: The ARQ that has it, or waits for it; None: no ARQ.
    arq_uuid: str | None = column(
        sa.select(Arq.uuid).where(Arq.id == AttachHandle.arq_id).scalar_subquery()
    )
    handle_key = column(AttachHandle.handle_key)
    state = column(AttachHandle.state)
    deployable_id = column(AttachHandle.deployable_id)
    cleaning = column(AttachHandle.cleaning)
    suspect = column(AttachHandle.suspect)
    clean = column(Deployable.clean)
    clean_record = column(AttachHandle.clean_record)
    pooled = column(Device.pools.is_not(None))
    device_status = column(Device.status)
    agent_epoch: int | None = column(AGENT_EPOCH)


# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_BY_PROVIDER = (
    select(Offer)
    .join(Device, Device.id == Deployable.device_id)
    .join(Host, Host.id == Device.host_id)
    .outerjoin(Driver, units.OF_DEVICE)
    .where(Deployable.rp_uuid.in_(sa.bindparam("uuids", expanding=True)))
)


def by_provider(tx: Transaction, rp_uuids: Iterable[str]) -> dict[str, Offer]:
    """Return provider uuid → deployable that this resource provider represents."""
    return {row.rp_uuid: row for row in tx.all(_BY_PROVIDER, {"uuids": sorted(set(rp_uuids))})}


def group_sizes(
    tx: Transaction, hostname: str, resource_classes: Collection[str]
) -> Sequence[tuple[str, int]]:
    """Return class and group size of the deployables of a host that give out units in groups."""
    rows = tx.execute(
        sa.select(Deployable.resource_class, GROUP_SIZE)
        .join(Device, Device.id == Deployable.device_id)
        .where(
            Device.hostname == hostname,
            Deployable.resource_class.in_(sorted(resource_classes)),
            Deployable.group_size > 1,
        )
        .distinct()
        .order_by(Deployable.resource_class, GROUP_SIZE)
    )
    return [(name, size) for name, size in rows]


def by_uuid(tx: Transaction, uuid: str) -> AgentDeployable | None:
    """Return a deployable with its device and host; None when there is none."""
    return tx.first(
        select(AgentDeployable)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(Deployable.uuid == uuid)
    )


def tasks(tx: Transaction, handle_ids: Iterable[int]) -> dict[int, AgentHandle]:
    """Return handle id → all that an agent needs to prepare or release the attach handle."""
    rows = tx.all(
        select(AgentHandle)
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
    return tx.execute(query.with_for_update()).scalar_one()


def set_image(tx: Transaction, deployable_id: int, image_uuid: str | None) -> None:
    """Store which image a deployable has loaded; None: unknown."""
    tx.execute(
        sa.update(Deployable).where(Deployable.id == deployable_id).values(bitstream_id=image_uuid)
    )


class ImageUser(Row):
    """An ARQ that has an attach handle of a deployable."""

    uuid = column(Arq.uuid)
    state = column(Arq.state)
    group_spec = column(Arq.group_spec)
    attach_handle_id = column(AttachHandle.id)


def image_users(tx: Transaction, deployable_id: int) -> Sequence[ImageUser]:
    """Return the ARQs that have an attach handle of a deployable, in order of id."""
    return tx.all(
        select(ImageUser)
        .join(AttachHandle, AttachHandle.arq_id == Arq.id)
        .where(Arq.deployable_id == deployable_id)
        .order_by(Arq.id)
    )


class ImageWork(Row):
    """Work of the agent that uses or changes an image."""

    id = column(Work.id)
    kind = column(Work.kind)
    arq_uuid = column(Work.arq_uuid)
    spec = column(Work.spec)


def image_work(tx: Transaction, deployable_id: int) -> Sequence[ImageWork]:
    """Return the agent's unfinished work on a deployable, oldest first."""
    return tx.all(
        select(ImageWork)
        .where(Work.deployable_id == deployable_id, Work.kind.in_(_IMAGE_WORK))
        .order_by(Work.id)
    )


def clear_unused_images(tx: Transaction, host_id: int) -> None:
    """Mark the images of a host's unused deployables as unknown, because its agent has started.

    The host may have been rebooted, and most devices lose their image without power.
    """
    own = sa.select(Device.id).where(Device.host_id == host_id)
    used = sa.exists().where(
        AttachHandle.deployable_id == Deployable.id, AttachHandle.arq_id.is_not(None)
    )
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(own), Deployable.bitstream_id.is_not(None), ~used)
        .values(bitstream_id=None)
    )


def note_published(tx: Transaction, units: Mapping[int, Sequence[int] | None]) -> None:
    """Store what an agent has published of deployables: id → total and reserved units, or None.

    This is no change of the deployables, and their time of the last change stays.
    """
    if units:
        tx.execute(
            sa.update(Deployable)
            .where(Deployable.id == sa.bindparam("row_id"))
            .values(
                published_total=sa.bindparam("total"),
                published_reserved=sa.bindparam("reserved"),
                updated_at=Deployable.updated_at,
            ),
            [
                dict(
                    zip(("row_id", "total", "reserved"), (id_, *(now or (None, None))), strict=True)
                )
                for id_, now in sorted(units.items())
            ],
        )


def note_reserved(tx: Transaction, providers: Collection[str]) -> None:
    """Store that all published units of these providers were reserved in Placement."""
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.rp_uuid.in_(providers), Deployable.published_total.is_not(None))
        .values(published_reserved=Deployable.published_total, updated_at=Deployable.updated_at)
    )


def clear_lost_images(tx: Transaction, device_ids: Collection[int]) -> None:
    """Mark the images of lost devices as unknown: they may have been without power."""
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id.in_(sorted(device_ids)), Deployable.bitstream_id.is_not(None))
        .values(bitstream_id=None)
    )

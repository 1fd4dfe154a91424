# SPDX-License-Identifier: Apache-2.0
"""Read and change the drivers of hosts in SQL, with their backends, hardware and devices.

The lists for operators are ``DRIVERS``, ``BACKENDS`` and ``HARDWARE``; see ``show`` and ``page``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import attach_handles, listing, units
from cyborg.db.base import Record
from cyborg.db.lost_devices import UNHELD
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Backend,
    Deployable,
    Device,
    Driver,
    Hardware,
    Host,
    Work,
)
from cyborg.db.transaction import Transaction
from cyborg.model.device import DeviceStatus
from cyborg.model.report import DriverState
from cyborg.model.work import WorkKind

#: The columns of a driver that every read returns.
COLUMNS = (
    Driver.id,
    Driver.uuid,
    Driver.host_id,
    Driver.name,
    Driver.state,
    Driver.error,
    Driver.version,
    Driver.device_type,
    Driver.endpoint,
    Driver.requested,
    Driver.enabled,
    Driver.options,
    Driver.accepts,
)


@dataclass(frozen=True)
class StoredBackend:
    """A backend of a driver, as it was last reported."""

    id: int
    state: str
    services: Sequence[Mapping[str, str]]
    capabilities: Mapping[str, Any]
    creates: str | None


def of_host(tx: Transaction, host_id: int) -> dict[str, Record]:
    """Return name → driver of a host."""
    rows = tx.execute(sa.select(*COLUMNS).where(Driver.host_id == host_id))
    return {row.name: row for row in rows}


def on_hosts(tx: Transaction, name: str, host_ids: Collection[int]) -> Sequence[Record]:
    """Return the rows of a driver on these hosts, in order of host id."""
    return tx.execute(
        sa.select(*COLUMNS)
        .where(Driver.name == name, Driver.host_id.in_(sorted(host_ids)))
        .order_by(Driver.host_id)
    ).all()


def named(tx: Transaction, key: str) -> Sequence[Record]:
    """Return the rows of the driver with this name, or the row with this uuid, by host id."""
    return tx.execute(
        sa.select(*COLUMNS)
        .where(sa.or_(Driver.name == key, Driver.uuid == key))
        .order_by(Driver.host_id)
    ).all()


def with_backends(
    tx: Transaction, host_id: int
) -> tuple[dict[str, Record], dict[tuple[str, str], StoredBackend]]:
    """Return the drivers of a host by name, and its backends by driver and name. One statement."""
    own = (Backend.id, Backend.name, Backend.state)
    labels = [column.label(f"backend_{column.key}") for column in own]
    rows = tx.execute(
        sa.select(*COLUMNS, *labels, Backend.services, Backend.capabilities, Backend.creates)
        .outerjoin(Backend, Backend.driver_id == Driver.id)
        .where(Driver.host_id == host_id)
    ).all()
    backends = {
        (row.name, row.backend_name): StoredBackend(
            row.backend_id, row.backend_state, row.services, row.capabilities, row.creates
        )
        for row in rows
        if row.backend_id is not None
    }
    return {row.name: row for row in rows}, backends


def hardware(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return the hardware of a host."""
    return tx.execute(
        sa.select(
            Hardware.id,
            Hardware.uuid,
            Hardware.driver,
            Hardware.hardware_key,
            Hardware.device_type,
            Hardware.offered,
            Hardware.setup_required,
            Hardware.reboot_required,
            Hardware.reason,
            Hardware.acc_specs,
            Hardware.acc_status,
        ).where(Hardware.host_id == host_id)
    ).all()


def is_uninstalling(tx: Transaction, host_ids: Collection[int], name: str) -> bool:
    """Return whether a driver is being uninstalled on one of these hosts."""
    specs = sa.select(Work.spec).where(
        Work.kind == WorkKind.UNINSTALL_DRIVER.value, Work.host_id.in_(sorted(host_ids))
    )
    return any(spec["driver"] == name for spec in tx.execute(specs).scalars())


def arqs(tx: Transaction, host_ids: Collection[int], name: str) -> list[str]:
    """Return the ARQs that hold or have claimed units of a driver on these hosts."""
    own = _deployables(host_ids, name)
    held = sa.select(AttachHandle.id).where(AttachHandle.deployable_id.in_(own))
    uuids = tx.execute(
        sa.select(Arq.uuid)
        .where(sa.or_(Arq.deployable_id.in_(own), Arq.attach_handle_id.in_(held)))
        .order_by(Arq.id)
    )
    return list(uuids.scalars())


def count_unreleased(tx: Transaction, host_id: int, name: str) -> int:
    """Return how many handles of a driver are held, or not yet released by the host."""
    return int(
        tx.execute(
            sa.select(sa.func.count())
            .select_from(AttachHandle)
            .where(
                AttachHandle.deployable_id.in_(_deployables([host_id], name)),
                AttachHandle.state.not_in(UNHELD),
            )
        ).scalar_one()
    )


def enabled_devices(tx: Transaction, host_ids: Collection[int], name: str) -> list[str]:
    """Return the uuids of the enabled devices of a driver."""
    query = sa.select(Device.uuid).where(
        *_own(host_ids, name), Device.status == DeviceStatus.ENABLED.value
    )
    return list(tx.execute(query.order_by(Device.id)).scalars())


def count_devices(tx: Transaction, host_id: int, name: str) -> int:
    """Return how many devices a driver has on a host, including lost devices."""
    query = sa.select(sa.func.count()).select_from(Device).where(*_own([host_id], name))
    return int(tx.execute(query).scalar_one())


def removal_errors(tx: Transaction, host_id: int, name: str) -> list[str]:
    """Return the distinct reasons why Placement refuses to remove providers of a driver."""
    errors = tx.execute(
        sa.select(Deployable.publish_error)
        .join(Device, Device.id == Deployable.device_id)
        .where(*_own([host_id], name), Deployable.publish_error.is_not(None))
        .order_by(Deployable.id)
    )
    return list(dict.fromkeys(map(str, errors.scalars())))


def lock_handles(tx: Transaction, host_ids: Collection[int], name: str) -> None:
    """Lock the attach handles of a driver on these hosts, by id, so that no bind claims one."""
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_deployables(host_ids, name)))


def set_requested(tx: Transaction, host_id: int, name: str, values: Mapping[str, Any]) -> None:
    """Store what operators request of a driver on a host; the caller has locked the host."""
    result = tx.execute(
        sa.update(Driver).where(Driver.host_id == host_id, Driver.name == name).values(**values)
    )
    if not result.rowcount:
        tx.execute(
            sa.insert(Driver).values(
                uuid=str(uuid4()),
                host_id=host_id,
                name=name,
                state=DriverState.STARTING.value,
                **values,
            )
        )


def remove_driver(tx: Transaction, host_id: int, name: str) -> None:
    """Delete a driver of a host, with its backends, when it has never worked there."""
    ids = sa.select(Driver.id).where(Driver.host_id == host_id, Driver.name == name)
    tx.execute(sa.delete(Backend).where(Backend.driver_id.in_(ids)))
    tx.execute(sa.delete(Driver).where(Driver.host_id == host_id, Driver.name == name))


def reserve(tx: Transaction, host_ids: Collection[int], name: str, reason: str) -> Sequence[Record]:
    """Take all devices of a driver out of service; return (uuid, hostname) of the changed ones."""
    changed = _devices(tx, *_own(host_ids, name), Device.status != DeviceStatus.MAINTAINING.value)
    tx.execute(
        sa.update(Device)
        .where(*_own(host_ids, name))
        .values(status=DeviceStatus.MAINTAINING.value, status_reason=reason)
    )
    return changed


def return_to_service(
    tx: Transaction, host_id: int, name: str, enabled_devices: Collection[str]
) -> Sequence[Record]:
    """Enable devices again when their driver is not uninstalled after all.

    ``enabled_devices`` are the uuids of those that were enabled before. Returns (uuid, hostname) of
    the changed devices.
    """
    reserved = (*_own([host_id], name), Device.status == DeviceStatus.MAINTAINING.value)
    chosen = Device.uuid.in_(sorted(enabled_devices))
    changed = _devices(tx, *reserved, chosen)
    tx.execute(sa.update(Device).where(*reserved, chosen).values(status=DeviceStatus.ENABLED.value))
    tx.execute(sa.update(Device).where(*_own([host_id], name)).values(status_reason=None))
    return changed


def mark_lost(tx: Transaction, host_id: int, name: str) -> Sequence[Record]:
    """Mark all devices of a driver as lost; return (uuid, hostname) of the changed ones."""
    present = (*_own([host_id], name), Device.lost_ms.is_(None))
    changed = _devices(tx, *present)
    tx.execute(sa.update(Device).where(*present).values(lost_ms=tx.now))
    return changed


def set_discovered(
    tx: Transaction, model: Any, ids: Collection[int], now: sa.ColumnElement[int]
) -> None:
    """Store that the host has just reported drivers or backends."""
    if ids:
        tx.execute(sa.update(model).where(model.id.in_(sorted(ids))).values(discovered_ms=now))


def _devices(tx: Transaction, *terms: sa.ColumnElement[bool]) -> Sequence[Record]:
    return tx.execute(
        sa.select(Device.uuid, Device.hostname).where(*terms).order_by(Device.id)
    ).all()


def _own(host_ids: Collection[int], name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return Device.host_id.in_(sorted(host_ids)), Device.driver == name


def _deployables(host_ids: Collection[int], name: str) -> sa.Select[Any]:
    return (
        sa.select(Deployable.id)
        .join(Device, Device.id == Deployable.device_id)
        .where(*_own(host_ids, name))
    )


Row = sa.Row[*tuple[Any, ...]]

_OF_DRIVER = (Device.host_id == Driver.host_id, Device.driver == Driver.name)
_PRESENT = (*_OF_DRIVER, Device.lost_ms.is_(None))


def _count(*terms: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """Return a subquery that counts the devices of a driver that match the terms."""
    return (
        sa.select(sa.func.count())
        .select_from(Device)
        .where(*terms)
        .correlate(Driver)
        .scalar_subquery()
    )


_USED = (
    sa.exists()
    .where(
        Deployable.device_id == Device.id,
        AttachHandle.deployable_id == Deployable.id,
        Arq.attach_handle_id == AttachHandle.id,
    )
    .correlate(Device)
)
#: Placement can allocate a unit of the device, or has allocated it.
_OFFERED = (
    sa.exists()
    .where(
        Deployable.device_id == Device.id,
        AttachHandle.deployable_id == Deployable.id,
        units.OFFERED,
    )
    .correlate(Device, Driver, Host)
)


@dataclass(frozen=True)
class Kind:
    """A type of row: its columns, and the API's names for sort keys and filters."""

    visible: sa.Select[*tuple[Any, ...]]
    sortable: listing.Sortable
    filters: Mapping[str, sa.SQLColumnExpression[Any]]
    #: Filters that do not compare for equality.
    conditions: Mapping[str, Callable[[Any], sa.ColumnElement[bool]]] = field(default_factory=dict)


def _has_remote(remote: bool) -> sa.ColumnElement[bool]:
    """Return the term: the hardware has units that are remote to its host, or has none."""
    count = Hardware.acc_specs["remote"].as_integer()
    return count > 0 if remote else sa.or_(count.is_(None), count == 0)


def _has_capability(name: str) -> sa.ColumnElement[bool]:
    """Return the term: the capabilities of the hardware contain this name."""
    member: sa.ColumnElement[Any] = Hardware.acc_specs["acc_capability", name].as_string()
    return member.is_not(None)


def _backend_has_capability(name: str) -> sa.ColumnElement[bool]:
    """Return the term: the capabilities of the backend contain this name."""
    member: sa.ColumnElement[Any] = Backend.capabilities[name].as_string()
    return member.is_not(None)


DRIVERS = Kind(
    sa.select(
        Driver.uuid,
        Host.name.label("host"),
        Driver.name,
        Driver.state,
        Driver.version,
        Driver.device_type,
        Driver.endpoint,
        Driver.enabled,
        Driver.options,
        Driver.accepts,
        Driver.error,
        Driver.discovered_ms,
        _count(*_PRESENT).label("found"),
        _count(*_OF_DRIVER, _OFFERED).label("offered"),
        _count(*_OF_DRIVER, _USED).label("in_use"),
    ).join(Host, Host.id == Driver.host_id),
    listing.sortable(Driver, "id", "uuid", "name", "state", host=Host.name),
    {"name": Driver.name, "state": Driver.state},
)
BACKENDS = Kind(
    sa.select(
        Backend.uuid,
        Host.name.label("host"),
        Driver.name.label("driver"),
        Backend.name,
        Backend.state,
        Backend.services,
        Backend.capabilities,
        Backend.creates,
        Backend.discovered_ms,
    )
    .join(Driver, Driver.id == Backend.driver_id)
    .join(Host, Host.id == Driver.host_id),
    listing.sortable(Backend, "id", "uuid", "name", "state", driver=Driver.name, host=Host.name),
    {"driver": Driver.name, "name": Backend.name},
    {"capability": _backend_has_capability},
)
HARDWARE = Kind(
    sa.select(
        Hardware.uuid,
        Host.name.label("host"),
        Hardware.driver,
        Hardware.hardware_key,
        Hardware.offered,
        Hardware.acc_specs,
        Hardware.acc_status,
    ).join(Host, Host.id == Hardware.host_id),
    listing.sortable(
        Hardware,
        "id",
        "uuid",
        "driver",
        "setup_required",
        type=Hardware.device_type,
        host=Host.name,
    ),
    {
        "driver": Hardware.driver,
        "type": Hardware.device_type,
        "setup_required": Hardware.setup_required,
    },
    {"remote": _has_remote, "capability": _has_capability},
)


def show(tx: Transaction, kind: Kind, uuid: str) -> Row | None:
    """Return the row with this uuid; None when there is none."""
    return tx.execute(kind.visible.where(kind.sortable.uuid == uuid)).first()


def page(
    tx: Transaction, kind: Kind, page: listing.Page, filters: Mapping[str, Any]
) -> Sequence[Row]:
    """Return a page of the rows that match all filters; ``host`` is either name of a host."""
    query = listing.paged(tx, kind.visible, kind.sortable, page)
    query = query.where(
        *(kind.filters[name] == filters[name] for name in kind.filters if name in filters),
        *(kind.conditions[name](filters[name]) for name in kind.conditions if name in filters),
    )
    if "host" in filters:
        host = filters["host"]
        query = query.where(sa.or_(Host.name == host, Host.service_host == host))
    return tx.execute(query).all()

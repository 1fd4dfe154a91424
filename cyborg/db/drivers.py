# SPDX-License-Identifier: Apache-2.0
"""Read and change the drivers of hosts in SQL, with their backends, hardware and devices.

The lists for operators are ``DRIVERS``, ``BACKENDS`` and ``HARDWARE``; see ``show`` and ``page``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import attach_handles, hosts, listing, units
from cyborg.db.lost_devices import RELEASED
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
from cyborg.db.rows import Query, Row, S, Shown, column, nullable, select, shown_hardware
from cyborg.db.transaction import Transaction
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState
from cyborg.model.scope import Scope
from cyborg.model.work import WorkKind


class _WithBackend(Driver):
    """A driver of a host with one of its backends, whose columns are None if it has none."""

    __abstract__ = True

    backend_id = nullable(Backend.id)
    backend_name = nullable(Backend.name)
    backend_state = nullable(Backend.state)
    services = nullable(Backend.services)
    capabilities = nullable(Backend.capabilities)
    creates = nullable(Backend.creates)


@dataclass(frozen=True)
class StoredBackend:
    """A backend of a driver, as it was last reported."""

    id: int
    state: str
    services: Sequence[Mapping[str, str]] | None
    capabilities: Mapping[str, Any] | None
    creates: str | None


class ChangedDevice(Row):
    """A device whose status has changed."""

    uuid = column(Device.uuid)
    hostname = column(Device.hostname)


def of_host(tx: Transaction, host_id: int) -> dict[str, Driver]:
    """Return name → driver of a host."""
    rows = tx.all(select(Driver).where(Driver.host_id == host_id))
    return {row.name: row for row in rows}


def on_hosts(tx: Transaction, name: str, host_ids: Collection[int]) -> Sequence[Driver]:
    """Return the rows of a driver on these hosts, in order of host id."""
    return tx.all(
        select(Driver)
        .where(Driver.name == name, Driver.host_id.in_(sorted(host_ids)))
        .order_by(Driver.host_id)
    )


def named(tx: Transaction, key: str) -> Sequence[Driver]:
    """Return the rows of the driver with this name, or the row with this uuid, by host id."""
    return tx.all(
        select(Driver)
        .where(sa.or_(Driver.name == key, Driver.uuid == key))
        .order_by(Driver.host_id)
    )


class DriverOptions(Row):
    """The options that operators have set of a driver of a host, and those that they may set."""

    host = column(Host.name)
    name = column(Driver.name)
    options = column(Driver.options)
    accepts = column(Driver.accepts)


def with_options(tx: Transaction) -> Sequence[DriverOptions]:
    """Return the drivers of which operators have set options, by name and host."""
    return tx.all(
        select(DriverOptions)
        .join(Host, Host.id == Driver.host_id)
        .where(Driver.options.is_not(None))
        .order_by(Driver.name, Host.name)
    )


def with_backends(
    tx: Transaction, host_id: int
) -> tuple[dict[str, Driver], dict[tuple[str, str], StoredBackend]]:
    """Return the drivers of a host by name, and its backends by driver and name. One statement."""
    rows = tx.all(
        select(_WithBackend)
        .outerjoin(Backend, Backend.driver_id == Driver.id)
        .where(Driver.host_id == host_id)
    )
    backends = {
        (row.name, row.backend_name): StoredBackend(
            row.backend_id, row.backend_state, row.services, row.capabilities, row.creates
        )
        for row in rows
        if row.backend_id is not None
        and row.backend_name is not None
        and row.backend_state is not None
    }
    return {row.name: row for row in rows}, backends


def hardware(tx: Transaction, host_id: int) -> Sequence[Hardware]:
    """Return the hardware of a host."""
    return tx.all(select(Hardware).where(Hardware.host_id == host_id))


def is_uninstalling(tx: Transaction, host_ids: Collection[int], name: str) -> bool:
    """Return whether a driver is being uninstalled on one of these hosts."""
    specs = sa.select(Work.spec).where(
        Work.kind == WorkKind.UNINSTALL_DRIVER.value, Work.host_id.in_(sorted(host_ids))
    )
    return any(spec["driver"] == name for spec in tx.execute(specs).scalars())


def arqs(tx: Transaction, host_ids: Collection[int], name: str) -> list[str]:
    """Return the ARQs that hold or have claimed units of a driver on these hosts."""
    own = _deployables(host_ids, name)
    held = sa.select(AttachHandle.arq_id).where(AttachHandle.deployable_id.in_(own))
    uuids = tx.execute(
        sa.select(Arq.uuid)
        .where(sa.or_(Arq.deployable_id.in_(own), Arq.id.in_(held)))
        .order_by(Arq.id)
    )
    return list(uuids.scalars())


def count_unreleased(tx: Transaction, host_id: int, name: str, *, force: bool) -> int:
    """Return how many handles of a driver an ARQ has, or the host has not yet released.

    With ``force`` those in quarantine do not count.
    """
    released = RELEASED if force else (HandleState.READY.value,)
    return int(
        tx.execute(
            sa.select(sa.func.count())
            .select_from(AttachHandle)
            .where(
                AttachHandle.deployable_id.in_(_deployables([host_id], name)),
                sa.or_(AttachHandle.arq_id.is_not(None), AttachHandle.state.not_in(released)),
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


def reserve(
    tx: Transaction, host_ids: Collection[int], name: str, reason: str
) -> Sequence[ChangedDevice]:
    """Take all devices of a driver out of service; return the changed ones."""
    changed = _devices(tx, *_own(host_ids, name), Device.status != DeviceStatus.MAINTAINING.value)
    tx.execute(
        sa.update(Device)
        .where(*_own(host_ids, name))
        .values(status=DeviceStatus.MAINTAINING.value, status_reason=reason)
    )
    return changed


def return_to_service(
    tx: Transaction, host_id: int, name: str, enabled_devices: Collection[str]
) -> Sequence[ChangedDevice]:
    """Enable devices again when their driver is not uninstalled after all.

    ``enabled_devices`` are the uuids of those that were enabled before. Returns the changed
    devices.
    """
    reserved = (*_own([host_id], name), Device.status == DeviceStatus.MAINTAINING.value)
    chosen = Device.uuid.in_(sorted(enabled_devices))
    changed = _devices(tx, *reserved, chosen)
    tx.execute(sa.update(Device).where(*reserved, chosen).values(status=DeviceStatus.ENABLED.value))
    tx.execute(sa.update(Device).where(*_own([host_id], name)).values(status_reason=None))
    return changed


def mark_lost(tx: Transaction, host_id: int, name: str) -> Sequence[ChangedDevice]:
    """Mark all devices of a driver as lost; return the changed ones."""
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


def _devices(tx: Transaction, *terms: sa.ColumnElement[bool]) -> Sequence[ChangedDevice]:
    return tx.all(select(ChangedDevice).where(*terms).order_by(Device.id))


def _own(host_ids: Collection[int], name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return Device.host_id.in_(sorted(host_ids)), Device.driver == name


def _deployables(host_ids: Collection[int], name: str) -> sa.Select[Any]:
    return (
        sa.select(Deployable.id)
        .join(Device, Device.id == Deployable.device_id)
        .where(*_own(host_ids, name))
    )


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
        AttachHandle.arq_id.is_not(None),
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
class RowKind(Generic[S]):
    """The query of a type of row, and the API's names for sort keys and filters."""

    visible: Query[S]
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


class VisibleDriver(Driver, Shown):
    """A driver of a host as the API shows it, with the numbers of its devices."""

    __abstract__ = True

    host = column(Host.name)
    present = column(_count(*_PRESENT))
    offered = column(_count(*_OF_DRIVER, _OFFERED))
    in_use = column(_count(*_OF_DRIVER, _USED))


class VisibleBackend(Backend, Shown):
    """A backend of a driver as the API shows it."""

    __abstract__ = True

    host = column(Host.name)
    driver = column(Driver.name)


class VisibleHardware(Hardware, Shown):
    """A piece of hardware as the API shows it."""

    __abstract__ = True

    host = column(Host.name)


DRIVERS = RowKind(
    shown_hardware(VisibleDriver, hosts.is_of_project).join(Host, Host.id == Driver.host_id),
    listing.sortable(Driver, "id", "uuid", "name", "state", host=Host.name),
    {"name": Driver.name, "state": Driver.state},
)
BACKENDS = RowKind(
    shown_hardware(VisibleBackend, hosts.is_of_project)
    .join(Driver, Driver.id == Backend.driver_id)
    .join(Host, Host.id == Driver.host_id),
    listing.sortable(Backend, "id", "uuid", "name", "state", driver=Driver.name, host=Host.name),
    {"driver": Driver.name, "name": Backend.name},
    {"capability": _backend_has_capability},
)
HARDWARE = RowKind(
    shown_hardware(VisibleHardware, hosts.is_of_project).join(Host, Host.id == Hardware.host_id),
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


def show(tx: Transaction, kind: RowKind[S], uuid: str, scope: Scope) -> S | None:
    """Return the row with this uuid if the scope reaches its host."""
    return tx.first(kind.visible.where(kind.sortable.uuid == uuid).within(scope))


def page(
    tx: Transaction,
    kind: RowKind[S],
    page: listing.Page,
    scope: Scope,
    *,
    filters: Mapping[str, Any],
) -> Sequence[S]:
    """Return a page of the rows in the scope that match all filters.

    ``host`` is either name of a host.
    """
    query = listing.paged(tx, kind.visible.within(scope), kind.sortable, page)
    query = query.where(
        *(kind.filters[name] == filters[name] for name in kind.filters if name in filters),
        *(kind.conditions[name](filters[name]) for name in kind.conditions if name in filters),
    )
    if "host" in filters:
        host = filters["host"]
        query = query.where(sa.or_(Host.name == host, Host.service_host == host))
    return tx.all(query)


def uuids(tx: Transaction, host_id: int, names: Collection[str]) -> dict[str, str]:
    """Return name → uuid of the drivers of a host that have one of these names."""
    query = sa.select(Driver.name, Driver.uuid)
    rows = tx.execute(query.where(Driver.host_id == host_id, Driver.name.in_(sorted(names))))
    return dict(rows.all())

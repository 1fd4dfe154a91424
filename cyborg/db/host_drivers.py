# SPDX-License-Identifier: Apache-2.0
"""Read drivers, backends and hardware of all hosts in SQL, for operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, units
from cyborg.db.hosts import DISABLED
from cyborg.db.models import Arq, AttachHandle, Backend, Deployable, Device, Driver, Hardware, Host

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
#: Placement may offer a unit of the device, used or not, if its driver and host allow it.
_OFFERED = (
    sa.exists()
    .where(
        Deployable.device_id == Device.id,
        Deployable.publish_error.is_(None),
        AttachHandle.deployable_id == Deployable.id,
        units.PART_IN_SERVICE,
    )
    .correlate(Device)
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
    units = Hardware.acc_specs["remote"].as_integer()
    return units > 0 if remote else sa.or_(units.is_(None), units == 0)


def _has_capability(name: str) -> sa.ColumnElement[bool]:
    """Return the term: the capabilities of the hardware contain this name."""
    member: sa.ColumnElement[Any] = Hardware.acc_specs["acc_capability", name].as_string()
    return member.is_not(None)


def _backend_has_capability(name: str) -> sa.ColumnElement[bool]:
    """Return the term: the capabilities of the backend contain this name."""
    member: sa.ColumnElement[Any] = Backend.capabilities[name].as_string()
    return member.is_not(None)


def _sortable(model: Any, **columns: sa.SQLColumnExpression[Any]) -> listing.Sortable:
    return listing.Sortable(
        id=model.id,
        uuid=model.uuid,
        columns={"id": model.id, "uuid": model.uuid, "host": Host.name, **columns},
    )


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
        sa.case(
            (
                sa.and_(units.DRIVER_WORKS, sa.not_(DISABLED)),
                _count(*_OF_DRIVER, units.IN_SERVICE, units.HEALTHY, _OFFERED),
            ),
            else_=0,
        ).label("offered"),
        _count(*_OF_DRIVER, _USED).label("in_use"),
    ).join(Host, Host.id == Driver.host_id),
    _sortable(Driver, name=Driver.name, state=Driver.state),
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
    _sortable(Backend, driver=Driver.name, name=Backend.name, state=Backend.state),
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
    _sortable(
        Hardware,
        driver=Hardware.driver,
        type=Hardware.device_type,
        setup_required=Hardware.setup_required,
    ),
    {
        "driver": Hardware.driver,
        "type": Hardware.device_type,
        "setup_required": Hardware.setup_required,
    },
    {"remote": _has_remote, "capability": _has_capability},
)


def show(tx: sa.Connection, kind: Kind, uuid: str) -> Row | None:
    """Return the row with this uuid; None when there is none."""
    return tx.execute(kind.visible.where(kind.sortable.uuid == uuid)).first()


def page(
    tx: sa.Connection, kind: Kind, page: listing.Page, filters: Mapping[str, Any]
) -> Sequence[Row]:
    """Return a page of the rows that match all filters; ``host`` is either name of a host."""
    query = listing.paged(tx, kind.visible, kind.sortable, page)
    query = query.where(
        *(kind.filters[name] == filters[name] for name in kind.filters if name in filters),
        *(kind.conditions[name](filters[name]) for name in kind.conditions if name in filters),
    )
    if "host" in filters:
        query = query.where(named(filters["host"]))
    return tx.execute(query).all()


def named(host: str) -> sa.ColumnElement[bool]:
    """Return the term: Placement or the agent calls the host by this name."""
    return sa.or_(Host.name == host, Host.service_host == host)

# SPDX-License-Identifier: Apache-2.0
"""SQL for the drivers of hosts: requested and reported drivers, and what depends on them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import attach_handles, base
from cyborg.db.base import Record
from cyborg.db.lost_devices import UNHELD
from cyborg.db.models import Arq, AttachHandle, Backend, Deployable, Device, Driver, Hardware, Work
from cyborg.model.device import DeviceStatus
from cyborg.model.report import DriverState
from cyborg.model.work import WorkKind

#: What is read of a driver, whoever reads.
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
    Driver.wanted,
    Driver.enabled,
    Driver.options,
    Driver.accepts,
)


def of_host(tx: sa.Connection, host_id: int) -> dict[str, Record]:
    """The drivers of a host by name."""
    rows = tx.execute(sa.select(*COLUMNS).where(Driver.host_id == host_id))
    return {row.name: row for row in rows}


def on_hosts(tx: sa.Connection, name: str, host_ids: Collection[int]) -> Sequence[Record]:
    """The rows of a driver on these hosts, by host."""
    return tx.execute(
        sa.select(*COLUMNS)
        .where(Driver.name == name, Driver.host_id.in_(sorted(host_ids)))
        .order_by(Driver.host_id)
    ).all()


def named(tx: sa.Connection, key: str) -> Sequence[Record]:
    """The rows that a name means on all hosts, or a uuid on one, by host."""
    return tx.execute(
        sa.select(*COLUMNS)
        .where(sa.or_(Driver.name == key, Driver.uuid == key))
        .order_by(Driver.host_id)
    ).all()


def want(tx: sa.Connection, host_id: int, name: str, values: Mapping[str, Any]) -> None:
    """Store what is wanted of a driver on a host, under the host's lock."""
    changed = tx.execute(
        sa.update(Driver).where(Driver.host_id == host_id, Driver.name == name).values(**values)
    )
    if not changed.rowcount:
        tx.execute(
            sa.insert(Driver).values(
                uuid=str(uuid4()),
                host_id=host_id,
                name=name,
                state=DriverState.STARTING.value,
                **values,
            )
        )


def forget(tx: sa.Connection, host_id: int, name: str) -> None:
    """Remove a driver of which nothing ever came to be on a host."""
    mine = sa.select(Driver.id).where(Driver.host_id == host_id, Driver.name == name)
    tx.execute(sa.delete(Backend).where(Backend.driver_id.in_(mine)))
    tx.execute(sa.delete(Driver).where(Driver.host_id == host_id, Driver.name == name))


def leaving(tx: sa.Connection, host_ids: Collection[int], name: str) -> bool:
    """Whether a driver is being uninstalled on one of these hosts."""
    at_work = sa.select(Work.spec).where(
        Work.kind == WorkKind.UNINSTALL.value, Work.host_id.in_(sorted(host_ids))
    )
    return any(spec["driver"] == name for spec in tx.execute(at_work).scalars())


def lock_handles(tx: sa.Connection, host_ids: Collection[int], name: str) -> None:
    """Lock all that a driver offers on these hosts, by id: no bind takes it meanwhile."""
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_deployables(host_ids, name)))


def arqs(tx: sa.Connection, host_ids: Collection[int], name: str) -> list[str]:
    """The ARQs that have, or are promised, an accelerator of a driver on these hosts."""
    mine = _deployables(host_ids, name)
    held = sa.select(AttachHandle.id).where(AttachHandle.deployable_id.in_(mine))
    found = tx.execute(
        sa.select(Arq.uuid)
        .where(sa.or_(Arq.deployable_id.in_(mine), Arq.attach_handle_id.in_(held)))
        .order_by(Arq.id)
    )
    return list(found.scalars())


def unreleased(tx: sa.Connection, host_id: int, name: str) -> int:
    """How many handles of a driver somebody has, or the host is still cleaning up."""
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


def reserve(
    tx: sa.Connection, host_ids: Collection[int], name: str, reason: str
) -> Sequence[Record]:
    """Take all devices of a driver out of service; answers (uuid, hostname) of those it changed."""
    changed = _devices(tx, *_mine(host_ids, name), Device.status != DeviceStatus.MAINTAINING.value)
    tx.execute(
        sa.update(Device)
        .where(*_mine(host_ids, name))
        .values(status=DeviceStatus.MAINTAINING.value, status_reason=reason)
    )
    return changed


def in_service(tx: sa.Connection, host_ids: Collection[int], name: str) -> list[str]:
    """The uuids of the devices of a driver that are in service."""
    query = sa.select(Device.uuid).where(
        *_mine(host_ids, name), Device.status == DeviceStatus.ENABLED.value
    )
    return list(tx.execute(query.order_by(Device.id)).scalars())


def put_back(
    tx: sa.Connection, host_id: int, name: str, served: Collection[str]
) -> Sequence[Record]:
    """Its driver stays after all: those that were in service are so again; answers as above."""
    mine = (*_mine([host_id], name), Device.status == DeviceStatus.MAINTAINING.value)
    again = Device.uuid.in_(sorted(served))
    changed = _devices(tx, *mine, again)
    tx.execute(sa.update(Device).where(*mine, again).values(status=DeviceStatus.ENABLED.value))
    tx.execute(sa.update(Device).where(*_mine([host_id], name)).values(status_reason=None))
    return changed


def lose(
    tx: sa.Connection, now: sa.ColumnElement[int], host_id: int, name: str
) -> Sequence[Record]:
    """Note that no device of a driver will be seen any more; answers as above."""
    seen = (*_mine([host_id], name), Device.lost_ms.is_(None))
    changed = _devices(tx, *seen)
    tx.execute(sa.update(Device).where(*seen).values(lost_ms=now))
    return changed


def devices(tx: sa.Connection, host_id: int, name: str) -> int:
    """How many devices of a driver there are on a host, lost ones included."""
    mine = sa.select(sa.func.count()).select_from(Device).where(*_mine([host_id], name))
    return int(tx.execute(mine).scalar_one())


def obstacles(tx: sa.Connection, host_id: int, name: str) -> list[str]:
    """What Placement says against letting providers of a driver go."""
    said = tx.execute(
        sa.select(Deployable.publish_error)
        .join(Device, Device.id == Deployable.device_id)
        .where(*_mine([host_id], name), Deployable.publish_error.is_not(None))
        .order_by(Deployable.id)
    )
    return list(dict.fromkeys(map(str, said.scalars())))


def _devices(tx: sa.Connection, *which: sa.ColumnElement[bool]) -> Sequence[Record]:
    return tx.execute(
        sa.select(Device.uuid, Device.hostname).where(*which).order_by(Device.id)
    ).all()


def _mine(host_ids: Collection[int], name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return Device.host_id.in_(sorted(host_ids)), Device.driver == name


def _deployables(host_ids: Collection[int], name: str) -> sa.Select[Any]:
    return (
        sa.select(Deployable.id)
        .join(Device, Device.id == Deployable.device_id)
        .where(*_mine(host_ids, name))
    )


def driven(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """The drivers of a host with their backends (``backend_*``): one row for each pair."""
    return tx.execute(
        sa.select(
            *COLUMNS,
            Backend.id.label("backend_id"),
            Backend.name.label("backend_name"),
            Backend.state.label("backend_state"),
            Backend.services,
            Backend.capabilities,
            Backend.creates,
        )
        .outerjoin(Backend, Backend.driver_id == Driver.id)
        .where(Driver.host_id == host_id)
    ).all()


def hardware(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """The hardware of a host."""
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


def seen(tx: sa.Connection, model: Any, ids: Collection[int], now: sa.ColumnElement[int]) -> None:
    """Note that drivers or backends have just been asked."""
    if ids:
        tx.execute(sa.update(model).where(model.id.in_(sorted(ids))).values(discovered_ms=now))


def remove(tx: sa.Connection, model: Any, ids: Collection[int]) -> None:
    """Delete backends or hardware that are no longer there."""
    if ids:
        tx.execute(sa.delete(model).where(model.id.in_(sorted(ids))))


def add_drivers(tx: sa.Connection, rows: Sequence[base.Row], common: base.Row) -> dict[str, int]:
    """Store drivers of a host that were not known before; uuid → id."""
    return base.insert_ids(tx, Driver, rows, common)

# SPDX-License-Identifier: Apache-2.0
"""Read and change accelerators that operators create, in SQL.

The request is a work row of the host; the device row follows when the host reports the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import bulk
from cyborg.db.models import Attribute, Backend, Deployable, Device, Driver, Hardware, Work
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model import creation, wire
from cyborg.model.attribute import Labels, Origin
from cyborg.model.device import Device as Facts
from cyborg.model.work import WorkKind


@dataclass(frozen=True)
class Request:
    """A requested accelerator: the uuid that it will have, its driver, facts and labels."""

    uuid: str
    driver: str
    facts: Facts
    labels: Labels

    def spec(self) -> dict[str, Any]:
        """Return the ``spec`` of the work that creates it."""
        return {
            "device": self.uuid,
            "driver": self.driver,
            "facts": wire.dump(self.facts),
            "labels": self.labels,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "Request":
        """Read what ``spec`` returned."""
        facts = wire.load(Facts, spec["facts"])
        return cls(spec["device"], spec["driver"], facts, dict(spec["labels"]))


def requests(tx: Transaction, host_id: int) -> list[Request]:
    """Return what is to be created on a host, in the order of the requests."""
    specs = sa.select(Work.spec).where(
        Work.kind == WorkKind.CREATE_DEVICE.value, Work.host_id == host_id
    )
    return [Request.from_spec(spec) for spec in tx.execute(specs.order_by(Work.id)).scalars()]


def devices(tx: Transaction, host_id: int) -> Sequence[Device]:
    """Return the devices of a host that operators created."""
    return tx.all(
        select(Device).where(Device.host_id == host_id, Device.origin == Origin.OPERATOR.value)
    )


def drivers_by_key(tx: Transaction, host_id: int) -> dict[str, str]:
    """Return key → driver of a host's devices."""
    rows = tx.execute(sa.select(Device.device_key, Device.driver).where(Device.host_id == host_id))
    return dict(rows.all())


class DriverBackend(Row):
    """A driver with one of its backends, None when it has no backends."""

    state = column(Driver.state)
    error = column(Driver.error)
    backend = nullable(Backend.name)
    creates = nullable(Backend.creates)


def backends(tx: Transaction, host_id: int, driver: str) -> Sequence[DriverBackend]:
    """Return one row for each backend of a driver of a host.

    A driver without backends has one row; an unknown driver has none.
    """
    return tx.all(
        select(DriverBackend)
        .outerjoin(Backend, Backend.driver_id == Driver.id)
        .where(Driver.host_id == host_id, Driver.name == driver)
        .order_by(Backend.name)
    )


def reason(tx: Transaction, host_id: int, driver: str, key: str) -> str | None:
    """Return why a driver does not offer a piece of hardware; None when it gives no reason."""
    return tx.execute(
        sa.select(Hardware.reason).where(
            Hardware.host_id == host_id,
            Hardware.driver == driver,
            Hardware.hardware_key == key,
        )
    ).scalar()


def set_traits(tx: Transaction, device_id: int, traits: Sequence[str]) -> None:
    """Replace the traits of all deployables of a device that an operator created."""
    rows = tx.execute(
        sa.select(Deployable.id, Deployable.resource_class).where(Deployable.device_id == device_id)
    ).all()
    tx.execute(
        sa.delete(Attribute).where(
            Attribute.deployable_id.in_([id_ for id_, _ in rows]),
            Attribute.origin == Origin.DISCOVERED.value,
        )
    )
    attributes = [
        {
            "uuid": str(uuid4()),
            "deployable_id": id_,
            "key": attribute.key,
            "value": attribute.value,
        }
        for id_, resource_class in rows
        for attribute in creation.attributes(resource_class, traits)
    ]
    bulk.insert(tx, Attribute, attributes, {"origin": Origin.DISCOVERED.value})
    tx.execute(
        sa.update(Deployable)
        .where(Deployable.device_id == device_id)
        .values(product_traits=list(creation.product_traits(traits)) or None)
    )

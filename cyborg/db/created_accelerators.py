# SPDX-License-Identifier: Apache-2.0
"""Accelerators that operators create: ordered as work of their host, made when it shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import base
from cyborg.db.base import Record
from cyborg.db.models import Attribute, Backend, Deployable, Device, Driver, Hardware, Work
from cyborg.model import creation, wire
from cyborg.model.attribute import Origin
from cyborg.model.device import Device as Facts
from cyborg.model.labels import Labels
from cyborg.model.work import WorkKind


@dataclass(frozen=True)
class Ordered:
    """An accelerator that is to be created: the uuid that it will have, its facts and labels."""

    uuid: str
    driver: str
    facts: Facts
    labels: Labels

    def spec(self) -> dict[str, Any]:
        """What the work of creating it has to know."""
        return {
            "device": self.uuid,
            "driver": self.driver,
            "facts": wire.dump(self.facts),
            "labels": self.labels,
        }

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Ordered":
        """The same, read."""
        facts = wire.load(Facts, spec["facts"])
        return cls(spec["device"], spec["driver"], facts, dict(spec["labels"]))


def ordered(tx: sa.Connection, host_id: int) -> list[Ordered]:
    """What is to be created on a host, in the order in which it was asked for."""
    specs = sa.select(Work.spec).where(Work.kind == WorkKind.CREATE.value, Work.host_id == host_id)
    return [Ordered.of(spec) for spec in tx.execute(specs.order_by(Work.id)).scalars()]


def keys(tx: sa.Connection, host_id: int) -> dict[str, str]:
    """The keys of a host's devices; key → driver."""
    rows = tx.execute(sa.select(Device.device_key, Device.driver).where(Device.host_id == host_id))
    return {row.device_key: row.driver for row in rows}


def backends(tx: sa.Connection, host_id: int, driver: str) -> list[Record]:
    """A driver of a host with its backends: (state, error, backend, creates) for each of them.

    One row without backend for a driver that has none; empty for an unknown driver.
    """
    return list(
        tx.execute(
            sa.select(Driver.state, Driver.error, Backend.name.label("backend"), Backend.creates)
            .outerjoin(Backend, Backend.driver_id == Driver.id)
            .where(Driver.host_id == host_id, Driver.name == driver)
            .order_by(Backend.name)
        )
    )


def reason(tx: sa.Connection, host_id: int, driver: str, key: str) -> str | None:
    """What a driver says against a piece of its hardware."""
    found: str | None = tx.execute(
        sa.select(Hardware.reason).where(
            Hardware.host_id == host_id,
            Hardware.driver == driver,
            Hardware.hardware_key == key,
        )
    ).scalar()
    return found


def set_traits(tx: sa.Connection, device_id: int, traits: Sequence[str]) -> None:
    """Give all deployables of a device that an operator created these traits."""
    rows = tx.execute(
        sa.select(Deployable.id, Deployable.resource_class).where(Deployable.device_id == device_id)
    ).all()
    tx.execute(
        sa.delete(Attribute).where(
            Attribute.deployable_id.in_([row.id for row in rows]),
            Attribute.origin == Origin.DISCOVERED.value,
        )
    )
    fresh = [
        {"uuid": str(uuid4()), "deployable_id": row.id, "key": one.key, "value": one.value}
        for row in rows
        for one in creation.attributes(row.resource_class, traits)
    ]
    base.insert(tx, Attribute, fresh, {"origin": Origin.DISCOVERED.value})

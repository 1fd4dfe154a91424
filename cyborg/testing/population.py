# SPDX-License-Identifier: Apache-2.0
"""Rows that have nothing to do with what is measured: a crowd, written straight into the tables.

It is what a cloud in use has: each accelerator request is bound to a device of its own, and has an
instance, a profile and a history.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import base, models
from cyborg.db.engine import Database
from cyborg.model.device import AttachType, DeviceType
from cyborg.model.pci import PciAddress
from cyborg.model.provider import provider_uuid
from cyborg.testing.machines import DRIVER, RESOURCE_CLASS, facts

_PER_HOST = 8
_PROJECTS = 10
_WITH_UUID = ("device", "path", "deployable", "handle", "profile", "arq", "instance")
_GROUP = {f"resources:{RESOURCE_CLASS}": "1"}

Row = dict[str, Any]


def crowd(db: Database, count: int) -> None:
    """Add ``count`` bound accelerator requests and all that hangs on them, in one transaction."""
    if not count:
        return
    with db.writer() as tx:
        made = list(_members(tx, count))
        device_ids = base.insert_ids(tx, models.Device, [one.device() for one in made])
        path_ids = base.insert_ids(tx, models.ControlpathId, [one.path(device_ids) for one in made])
        deployable_ids = base.insert_ids(
            tx, models.Deployable, [one.deployable(device_ids) for one in made]
        )
        facts = [fact for one in made for fact in one.attributes(deployable_ids)]
        base.insert(tx, models.Attribute, facts)
        handles = [one.handle(deployable_ids, path_ids) for one in made]
        handle_ids = base.insert_ids(tx, models.AttachHandle, handles)
        profile_ids = base.insert_ids(tx, models.DeviceProfile, [one.profile() for one in made])
        arqs = [one.arq(profile_ids, handle_ids, deployable_ids) for one in made]
        base.insert(tx, models.Arq, arqs)
        base.insert(tx, models.Instance, [one.instance() for one in made])
        base.insert(tx, models.Event, [one.event() for one in made])
    _settle(db)


def _settle(db: Database) -> None:
    """Have a server count its rows now, as it does by itself in time; SQLite never does."""
    analyze = {"mysql": "ANALYZE TABLE", "postgresql": "ANALYZE"}
    word = analyze.get(db.engine.dialect.name)
    if word is not None:
        names = ", ".join(table.name for table in models.METADATA.sorted_tables)
        with db.writer() as tx:
            tx.exec_driver_sql(f"{word} {names}")


def _members(tx: sa.Connection, count: int) -> Iterator["_Member"]:
    names = [f"crowd-{uuid4().hex[:12]}" for _ in range(-(-count // _PER_HOST))]
    tx.execute(
        sa.insert(models.Host),
        [
            {"name": name, "generation": 1, "desired_generation": 1, "updated_ms": 0}
            for name in names
        ],
    )
    rows = tx.execute(
        sa.select(models.Host.name, models.Host.id).where(models.Host.name.in_(names))
    )
    ids = {row.name: row.id for row in rows}
    for index in range(count):
        name = names[index // _PER_HOST]
        yield _Member(ids[name], name, index)


@dataclass(frozen=True)
class _Member:
    """One device of the crowd with its one unit, and who holds it."""

    host_id: int
    hostname: str
    index: int
    uuids: dict[str, str] = field(
        default_factory=lambda: {word: str(uuid4()) for word in _WITH_UUID}
    )

    @property
    def name(self) -> str:
        return f"{self.hostname}_{self.index}"

    @property
    def project(self) -> str:
        return f"project-{self.index % _PROJECTS}"

    def device(self) -> Row:
        return {
            "uuid": self.uuids["device"],
            "host_id": self.host_id,
            "hostname": self.hostname,
            "driver": DRIVER,
            "device_key": str(PciAddress(0, 1, self.index % _PER_HOST, 0)),
            "type": DeviceType.FPGA.value,
            "vendor": "0xABCD",
            "model": "crowd",
            "std_board_info": json.dumps({"device_id": "0xabcd", "class": "Crowd"}),
            "vendor_board_info": "crowd_vendor_info",
            "status": "enabled",
        }

    def path(self, devices: dict[str, int]) -> Row:
        return {
            "uuid": self.uuids["path"],
            "device_id": devices[self.uuids["device"]],
            "cpid_type": "PCI",
            "cpid_info": json.dumps(PciAddress(0, 1, self.index % _PER_HOST, 0).info()),
        }

    def deployable(self, devices: dict[str, int]) -> Row:
        return {
            "uuid": self.uuids["deployable"],
            "name": self.name,
            "rp_uuid": provider_uuid(self.name),
            "num_accelerators": 1,
            "device_id": devices[self.uuids["device"]],
            "driver_name": "crowd",
            "resource_class": RESOURCE_CLASS,
        }

    def attributes(self, deployables: dict[str, int]) -> list[Row]:
        owner = deployables[self.uuids["deployable"]]
        return [
            {"uuid": str(uuid4()), "deployable_id": owner, "key": one.key, "value": one.value}
            for one in facts(RESOURCE_CLASS)
        ]

    def handle(self, deployables: dict[str, int], paths: dict[str, int]) -> Row:
        return {
            "uuid": self.uuids["handle"],
            "deployable_id": deployables[self.uuids["deployable"]],
            "cpid_id": paths[self.uuids["path"]],
            "attach_type": AttachType.PCI.value,
            "attach_info": json.dumps(PciAddress(0, 1, self.index % _PER_HOST, 0).info()),
            "state": "held",
            "handle_key": "0",
        }

    def profile(self) -> Row:
        return {
            "uuid": self.uuids["profile"],
            "name": f"profile-of-{self.name}",
            "profile_json": json.dumps({"groups": [_GROUP]}),
        }

    def arq(self, profiles: dict[str, int], handles: dict[str, int], deployables: Any) -> Row:
        return {
            "uuid": self.uuids["arq"],
            "project_id": self.project,
            "state": "Bound",
            "device_profile_id": profiles[self.uuids["profile"]],
            "device_profile_group_id": 0,
            "hostname": self.hostname,
            "device_rp_uuid": provider_uuid(self.name),
            "instance_uuid": self.uuids["instance"],
            "attach_handle_id": handles[self.uuids["handle"]],
            "deployable_id": deployables[self.uuids["deployable"]],
            "group_spec": _GROUP,
        }

    def instance(self) -> Row:
        return {
            "uuid": self.uuids["instance"],
            "project_id": self.project,
            "hostname": self.hostname,
            "bound": True,
            "updated_ms": 0,
        }

    def event(self) -> Row:
        return {
            "at_ms": 0,
            "noun": "arq",
            "subject_uuid": self.uuids["arq"],
            "action": "Bound",
            "project_id": self.project,
            "user_id": "nova",
            "instance_uuid": self.uuids["instance"],
            "hostname": self.hostname,
        }

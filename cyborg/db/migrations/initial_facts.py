# SPDX-License-Identifier: Apache-2.0
"""Compute the values of the new columns of revision c58e1f7a3b92 from the old columns.

The result is the same at any point of an upgrade: except ``HOLDER``, this module reads only
columns that exist before and after the revision. Devices and handles get the stable keys under
which agents report them: the canonical PCI address.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db.migrations import initial_tables as t
from cyborg.model.pci import PciAddress

_BY_CLASS = {
    "CUSTOM_PCI": "pci_driver",
    "CUSTOM_QAT": "intel_qat_driver",
    "CUSTOM_NIC": "intel_nic_driver",
    "CUSTOM_SSD": "inspur_nvme_ssd_driver",
    "PGPU": "nvidia_gpu_driver",
    "VGPU": "nvidia_gpu_driver",
}
# Drivers by the vendor of a deployable, in lower case, if its class is FPGA.
_FPGA_BY_VENDOR = {
    "fake": "fake_driver",
    "intel": "intel_fpga_driver",
    "inspur": "inspur_fpga_driver",
    "xilinx": "xilinx_fpga_driver",
}
#: The column of the requests that says which handle they have, until the revision drops it.
HOLDER = "attach_handle_id"
_CLASS_BY_TYPE = {"FPGA": "FPGA", "GPU": "PGPU"}


@dataclass(frozen=True)
class DeviceFact:
    """A row of devices: its host, its driver and the key under which the driver reports it."""

    id: int
    hostname: str
    driver: str
    key: str


@dataclass(frozen=True)
class DeployableFact:
    """A row of deployables: its provider and resource class."""

    id: int
    name: str
    device_id: int
    rp_uuid: str
    resource_class: str


@dataclass(frozen=True)
class HandleFact:
    """A row of attach_handles: its key within the deployable."""

    id: int
    deployable_id: int
    key: str


@dataclass(frozen=True)
class Facts:
    """The facts of all tables, each ordered by id."""

    devices: tuple[DeviceFact, ...]
    deployables: tuple[DeployableFact, ...]
    handles: tuple[HandleFact, ...]


def load(connection: sa.Connection) -> Facts:
    """Read the device tables of the whole cloud, with five SELECTs for any number of rows."""
    devices = t.DEVICES.c
    device_rows = connection.execute(
        sa.select(devices.id, devices.uuid, devices.hostname, devices.type).order_by(devices.id)
    ).all()
    types = {row.id: row.type for row in device_rows}
    deployables, drivers = _deployables(connection, types)
    c = t.CONTROLPATH_IDS.c
    # The newest row is used, as in the existing service.
    paths: dict[int, str] = {
        row.device_id: row.cpid_info
        for row in connection.execute(sa.select(c.device_id, c.cpid_info).order_by(c.id))
    }
    h = t.ATTACH_HANDLES.c
    handles = connection.execute(
        sa.select(h.id, h.uuid, h.deployable_id, h.attach_type, h.attach_info).order_by(h.id)
    )
    return Facts(
        devices=tuple(
            DeviceFact(
                id=row.id,
                hostname=row.hostname,
                driver=drivers.get(row.id) or driver_of(None, None, row.type),
                key=_address(paths.get(row.id)) or paths.get(row.id) or row.uuid,
            )
            for row in device_rows
        ),
        deployables=deployables,
        handles=tuple(
            HandleFact(
                row.id, row.deployable_id, handle_key(row.attach_type, row.attach_info, row.uuid)
            )
            for row in handles
        ),
    )


def holders(connection: sa.Connection) -> list[tuple[int, int]]:
    """Return (handle id, ARQ id) of the requests that have a handle, ordered by ARQ.

    There are none once the upgrade has dropped the old column, after it has filled the new one.
    """
    old = sa.table(t.ARQS.name, sa.column("id", sa.Integer), sa.column(HOLDER, sa.Integer))
    if HOLDER not in {row["name"] for row in sa.inspect(connection).get_columns(old.name)}:
        return []
    columns = old.c[HOLDER], old.c.id
    rows = connection.execute(
        sa.select(*columns).where(old.c[HOLDER].is_not(None)).order_by(old.c.id)
    )
    return [(handle_id, arq_id) for handle_id, arq_id in rows]


def driver_of(resource_class: str | None, vendor: str | None, device_type: str) -> str:
    """Return the entry point of the driver that reports devices of this class, vendor and type."""
    if resource_class in _BY_CLASS:
        return _BY_CLASS[resource_class]
    if device_type == "AICHIP":
        return "huawei_ascend_driver"
    if resource_class == "FPGA":
        return _FPGA_BY_VENDOR.get((vendor or "").lower(), "pci_driver")
    return "pci_driver"


def handle_key(attach_type: str, info: str, handle_uuid: str) -> str:
    """Return the canonical address of a handle, with the mark or uuid of a mediated device."""
    address = _address(info)
    if address is None:
        return info
    if attach_type != "MDEV":
        return address
    return f"{address}/{_mapping(info).get('vgpu_mark') or handle_uuid}"


def group_spec(profile_json: str, group_id: int) -> dict[str, Any] | None:
    """Return the group of a stored profile that a request refers to; None if it does not exist."""
    groups = _mapping(profile_json).get("groups")
    if not isinstance(groups, list) or not 0 <= group_id < len(groups):
        return None
    group = groups[group_id]
    return group if isinstance(group, dict) else None


def _deployables(
    connection: sa.Connection, types: Mapping[int, str]
) -> tuple[tuple[DeployableFact, ...], dict[int, str]]:
    c, a = t.DEPLOYABLES.c, t.ATTRIBUTES.c
    # Compare in Python: on MySQL the key is TEXT with a case-insensitive collation.
    attributes = connection.execute(sa.select(a.deployable_id, a.key, a.value).order_by(a.id))
    classes = {row.deployable_id: row.value for row in attributes if row.key == "rc"}
    facts: list[DeployableFact] = []
    drivers: dict[int, str] = {}
    for row in connection.execute(
        sa.select(c.id, c.name, c.device_id, c.rp_uuid, c.driver_name).order_by(c.id)
    ):
        device_type = types[row.device_id]
        fallback = _CLASS_BY_TYPE.get(device_type, f"CUSTOM_{device_type}")
        resource_class = classes.get(row.id, fallback)
        provider = row.rp_uuid or str(uuid.uuid3(uuid.NAMESPACE_DNS, row.name))
        facts.append(DeployableFact(row.id, row.name, row.device_id, provider, resource_class))
        drivers.setdefault(row.device_id, driver_of(resource_class, row.driver_name, device_type))
    return tuple(facts), drivers


def _address(text: str | None) -> str | None:
    try:
        return str(PciAddress.from_info(_mapping(text or "")))
    except ValueError:
        return None


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

# SPDX-License-Identifier: Apache-2.0
"""Devices as drivers see them: frozen facts about one host's hardware.

A device (a card or function) holds deployables (units that Placement knows as resource providers),
a deployable holds attach handles (what a guest gets). All are matched by stable keys over scans,
reboots and upgrades: a device by driver and key on its host, a deployable by its name in the
whole cloud, a handle by its key within the deployable.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

#: Widths of the database's columns for text that drivers bring.
_WIDE = 255
_DRIVER_NAME = 100
_KIND = 64
_STATE = 16
_LARGEST = 2**31 - 1


class DeviceType(StrEnum):
    """What a device is, in the words of the v2 API."""

    GPU = "GPU"
    FPGA = "FPGA"
    AICHIP = "AICHIP"
    QAT = "QAT"
    NIC = "NIC"
    SSD = "SSD"
    MDEV = "MDEV"
    PCI = "PCI"
    NVME = "NVME"


class DeviceStatus(StrEnum):
    """The administrative life of a device; being lost is a fact beside it, not a status."""

    INACTIVE = "inactive"
    INSTALLING = "installing"
    ENABLED = "enabled"
    MAINTAINING = "maintaining"
    FAILED = "failed"


class AttachType(StrEnum):
    """How a guest gets hold of a unit; Nova's libvirt driver attaches PCI and MDEV only."""

    PCI = "PCI"
    MDEV = "MDEV"
    TEST_PCI = "TEST_PCI"


class HandleState(StrEnum):
    """Where an attach handle is in its round."""

    FREE = "free"
    HELD = "held"
    RELEASING = "releasing"
    QUARANTINED = "quarantined"


#: The states in which a host has still to clean up after the last guest.
UNRELEASED = frozenset({HandleState.RELEASING, HandleState.QUARANTINED})


@dataclass(frozen=True)
class AttachHandle:
    """One attachable unit. ``info`` holds strings only: Nova pastes them into libvirt's XML.

    With ``physical_network``, Neutron's name of what a network card is cabled to, it is fit for
    ports of Neutron as well.
    """

    key: str
    type: AttachType
    info: dict[str, str]


@dataclass(frozen=True)
class Attribute:
    """A discovered fact of a deployable (``rc``, ``trait0`` …), shown by the attributes API."""

    key: str
    value: str


@dataclass(frozen=True)
class Deployable:
    """A unit that Placement offers: one resource provider with ``len(handles)`` units.

    ``name`` is unique in the cloud and names the provider, whose uuid follows from it; each
    driver keeps its rule for names, because allocations in the field hang on them.
    ``driver_name`` is the vendor word that the API shows. ``prepare`` tells that a bind needs
    the host's work (programming, a mediated device, cleaning) before a guest may have it;
    ``programmable`` that an operator may load an image into it.
    """

    name: str
    resource_class: str
    driver_name: str
    handles: tuple[AttachHandle, ...]
    traits: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    prepare: bool = False
    programmable: bool = False


@dataclass(frozen=True)
class Device:
    """One accelerator card or function of this host.

    ``key`` is the canonical PCI address for now; unique per driver and host. ``control_path`` is
    shown nowhere, but kept in the form the field's databases have (domain, bus, device,
    function). ``std_board_info`` becomes the JSON string of the API. ``backend`` names what drives
    the device where its driver knows several. The driver of an ``operator_created`` device only
    tells that it is there.
    """

    KIND: ClassVar[str] = "Device"

    key: str
    type: DeviceType
    vendor: str
    model: str
    control_path: dict[str, str]
    deployables: tuple[Deployable, ...]
    std_board_info: dict[str, str | None] = field(default_factory=dict)
    vendor_board_info: str | None = None
    numa_node: int | None = None
    backend: str | None = None
    operator_created: bool = False

    def validate(self) -> str | None:
        """Why no database could keep this device, as a sentence; None when one can."""
        for what, text, width in _texts(self):
            flaw = _flaw_of_text(what, text, width)
            if flaw is not None:
                return flaw
        if not -_LARGEST <= (self.numa_node or 0) <= _LARGEST:
            return f"there is no NUMA node {self.numa_node}"
        names = [deployable.name for deployable in self.deployables]
        if len(set(names)) < len(names):
            return "two of its deployables have one name"
        for deployable in self.deployables:
            if len({handle.key for handle in deployable.handles}) < len(deployable.handles):
                return f"two attach handles of {deployable.name} have one key"
        return None


@dataclass(frozen=True)
class Hardware:
    """A physical device of the node, offered or not; ``reason`` says why not (None: it is).

    ``key`` equals the device's key once it is one. ``kind`` is a free capability word (CRYPTO,
    FPGA, GPU), apart from the device types of the database. ``num`` is how many units there are,
    ``remote`` how many of them are not local to the host; ``capability`` tells what they can do,
    as a nested object of JSON. ``reason`` also tells why it must be set up or the host booted.
    """

    KIND: ClassVar[str] = "Hardware"

    key: str
    kind: str
    vendor: str
    model: str
    offered: bool
    reason: str | None = None
    setup_required: bool = False
    reboot_required: bool = False
    num: int = 1
    remote: int = 0
    capability: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, device: Device) -> "Hardware":
        """What a device that is offered is as hardware, as far as the device tells."""
        return cls(
            key=device.key,
            kind=device.type.value,
            vendor=device.vendor,
            model=device.model,
            offered=True,
            num=sum(len(deployable.handles) for deployable in device.deployables),
        )

    def validate(self) -> str | None:
        """Why no database could keep this entry, as a sentence; None when one can."""
        if not (0 <= self.remote <= self.num <= _LARGEST):
            return f"{self.remote} of {self.num} units cannot be remote"
        return _flaw_of_text("its key", self.key, _WIDE) or _flaw_of_text(
            "its kind", self.kind, _KIND
        )


#: The state of a service on a backend that nothing tells the state of.
SERVICE_UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class BackendService:
    """An engine or function found on a backend.

    ``state`` is a status word of drivers, or SERVICE_UNKNOWN.
    """

    name: str
    state: str


@dataclass(frozen=True)
class Backend:
    """Something attached to the host that a driver manages as one whole.

    ``name`` is unique per driver and host, ``state`` a status word of drivers, ``capabilities`` a
    nested object of JSON. ``creates`` tells how guests get the units of accelerators that operators
    create on it; None: they cannot create any.
    """

    KIND: ClassVar[str] = "Backend"

    name: str
    state: str
    services: tuple[BackendService, ...] = ()
    capabilities: dict[str, Any] = field(default_factory=dict)
    creates: AttachType | None = None

    def validate(self) -> str | None:
        """Why no database could keep this backend, as a sentence; None when one can."""
        names = [service.name for service in self.services]
        if len(set(names)) < len(names):
            return "two of its services have one name"
        texts = [
            ("its name", self.name, _WIDE),
            ("its state", self.state, _STATE),
            *(("the name of a service", service.name, _WIDE) for service in self.services),
            *(("the state of a service", service.state, _STATE) for service in self.services),
        ]
        return next(filter(None, (_flaw_of_text(*text) for text in texts)), None)


def _flaw_of_text(what: str, text: str, width: int) -> str | None:
    """Why a column of this width cannot keep a text, as a sentence; None when it can."""
    if not 0 < len(text) <= width:
        return f"{what} has {len(text)} characters and not 1 to {width}"
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        return f"{what} is no text: {text!r}"
    return None


def _texts(device: Device) -> Iterator[tuple[str, str, int]]:
    """Every text of a device that has a column of its own: what it is, the text, the width."""
    yield "its key", device.key, _WIDE
    yield "its vendor", device.vendor, _WIDE
    yield "its model", device.model, _WIDE
    yield "its control path", json.dumps(device.control_path), _WIDE
    if device.backend:
        yield "its backend", device.backend, _WIDE
    if device.vendor_board_info:
        yield "its board information", device.vendor_board_info, len(device.vendor_board_info)
    for deployable in device.deployables:
        yield "the name of a deployable", deployable.name, _WIDE
        yield f"the resource class of {deployable.name}", deployable.resource_class, _WIDE
        yield f"the driver name of {deployable.name}", deployable.driver_name, _DRIVER_NAME
        for attribute in deployable.attributes:
            yield f"an attribute of {deployable.name}", attribute.key, _WIDE
            yield f"{attribute.key} of {deployable.name}", attribute.value, _LARGEST
        for handle in deployable.handles:
            yield f"the key of a handle of {deployable.name}", handle.key, _WIDE
            yield f"handle {handle.key} of {deployable.name}", json.dumps(handle.info), _WIDE

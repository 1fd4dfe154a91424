# SPDX-License-Identifier: Apache-2.0
"""Devices: what drivers report about one host's hardware, and the tables of their states.

A device (a card or function) holds deployables (units that Placement knows as resource providers),
a deployable holds attach handles (what a guest gets). All are matched over scans, reboots and
upgrades: a device by the numbers that move with it, or else by driver and key on its host; a
deployable by its name in the whole cloud; a handle by its key within the deployable.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from cyborg.model.cleaning import HostClean
from cyborg.model.moves import Move
from cyborg_cli.text import control_character

#: Widths of the database's columns for text that drivers bring, and of the name of a pool.
_WIDE = 255
_DRIVER_NAME = 100
_KIND = 64
_STATE = 16
_POOL = 64
_LARGEST = 2**31 - 1
#: As many characters of any kind as fit in a TEXT column of MySQL.
_LONG = 16_000


class DeviceType(StrEnum):
    """The type of a device, in the words of the v2 API."""

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
    """The administrative state of a device.

    A new device is inactive. A device that needs a set-up on its host is installing meanwhile. A
    device that drains offers no units until it is enabled again.
    Whether a device is lost is a separate fact: a device that returns has its earlier status.
    """

    INACTIVE = "inactive"
    INSTALLING = "installing"
    ENABLED = "enabled"
    MAINTAINING = "maintaining"
    DRAINING = "draining"
    FAILED = "failed"


#: The API's word for a device that its host does not show, whatever its status is.
LOST: Final = "lost"
#: The API's word for a device that drains, and of which no ARQ has a unit any more.
DRAINED: Final = "drained"
#: Every word of the API for the state of a device.
DEVICE_STATES: Final = (*(status.value for status in DeviceStatus), DRAINED, LOST)
_ALL = frozenset(DeviceStatus)


class DeviceEvent(StrEnum):
    """The events that change the status of a device."""

    ENABLE = "enable"
    INSTALL = "install"
    REINSTALL = "reinstall"
    FINISH = "finish"
    FAIL = "fail"
    DISABLE = "disable"
    DRAIN = "drain"


MOVES: Mapping[DeviceEvent, Move[DeviceStatus]] = MappingProxyType(
    {
        # The device needs no set-up. Only FINISH enables a device that is being set up.
        DeviceEvent.ENABLE: Move(_ALL - {DeviceStatus.INSTALLING}, DeviceStatus.ENABLED),
        # An operator enables a device that its host has to set up first; FINISH or FAIL follows.
        DeviceEvent.INSTALL: Move(
            _ALL - {DeviceStatus.ENABLED, DeviceStatus.INSTALLING}, DeviceStatus.INSTALLING
        ),
        # A device in service has to be set up again, for example after a boot of its host.
        DeviceEvent.REINSTALL: Move(frozenset({DeviceStatus.ENABLED}), DeviceStatus.INSTALLING),
        DeviceEvent.FINISH: Move(frozenset({DeviceStatus.INSTALLING}), DeviceStatus.ENABLED),
        DeviceEvent.FAIL: Move(frozenset({DeviceStatus.INSTALLING}), DeviceStatus.FAILED),
        DeviceEvent.DISABLE: Move(_ALL, DeviceStatus.MAINTAINING),
        # Only a device that was in service can have servers, and goes back into service.
        DeviceEvent.DRAIN: Move(
            frozenset({DeviceStatus.ENABLED, DeviceStatus.MAINTAINING, DeviceStatus.DRAINING}),
            DeviceStatus.DRAINING,
        ),
    }
)


def initial_status(driver: str, auto_enable: Collection[str]) -> DeviceStatus:
    """Return the status of a new device of a driver; ``*`` in ``auto_enable`` is every driver."""
    enabled = driver in auto_enable or "*" in auto_enable
    return DeviceStatus.ENABLED if enabled else DeviceStatus.INACTIVE


class AttachType(StrEnum):
    """How a unit is attached to a guest; Nova's libvirt driver attaches PCI and MDEV only."""

    PCI = "PCI"
    MDEV = "MDEV"
    TEST_PCI = "TEST_PCI"


class HandleState(StrEnum):
    """The state of an attach handle, whether an ARQ has it or not."""

    READY = "ready"
    RELEASING = "releasing"
    QUARANTINED = "quarantined"


#: The states in which the host still has to release the unit of the last guest.
UNRELEASED = frozenset({HandleState.RELEASING, HandleState.QUARANTINED})


class HandleEvent(StrEnum):
    """The events that change the state of an attach handle."""

    CLEAN_FIRST = "clean first"
    BEGIN_RELEASE = "begin release"
    QUARANTINE = "quarantine"
    SET_ASIDE = "set aside"
    FINISH_RELEASE = "finish release"


HANDLE_MOVES: Mapping[HandleEvent, Move[HandleState]] = MappingProxyType(
    {
        # The data of a guest may be on a unit that no guest has: it is cleaned before its next one.
        HandleEvent.CLEAN_FIRST: Move(frozenset({HandleState.READY}), HandleState.RELEASING),
        # The host cleans up after the guest. The next ARQ can have the unit already and waits.
        HandleEvent.BEGIN_RELEASE: Move(frozenset({HandleState.READY}), HandleState.RELEASING),
        HandleEvent.QUARANTINE: Move(frozenset({HandleState.RELEASING}), HandleState.QUARANTINED),
        # A server without an ARQ may have the unit; only an operator frees it.
        HandleEvent.SET_ASIDE: Move(frozenset(HandleState), HandleState.QUARANTINED),
        HandleEvent.FINISH_RELEASE: Move(UNRELEASED, HandleState.READY),
    }
)


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
    driver keeps its rule for names, because allocations in the field hang on them. A device that
    moves keeps its provider, and the conductor remembers by which name its driver calls it now.
    ``driver_name`` is the vendor word that the API shows. ``prepare`` tells that a bind needs
    the host's work (programming, a mediated device, cleaning) before a guest may have it;
    ``programmable`` that an operator may load an image into it. ``cost`` is what each unit takes
    of the pools of its device while it is not free: name of the pool → amount, at least 1. A
    deployable with a cost needs ``prepare``: the host makes a unit of shared capacity when it is
    prepared, and the capacity is back only when the agent has released the unit. Guests take units
    ``group_size`` at a time, never fewer: any free ones, so units that belong together make a
    deployable of their own, for example all functions of a card. ``clean`` says how the host cleans
    a unit after its guest, whether it was prepared or not; None: it has no safe step.
    ``product_traits`` are those of the ``traits`` that together name the product, wherever a card
    is and whatever is loaded into it. They are empty if the resource class alone names it, or if
    the driver has no such trait.
    """

    name: str
    resource_class: str
    driver_name: str
    handles: tuple[AttachHandle, ...]
    traits: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    prepare: bool = False
    programmable: bool = False
    cost: dict[str, int] = field(default_factory=dict)
    group_size: int = 1
    clean: HostClean | None = None
    product_traits: tuple[str, ...] = ()


class IdentityKind(StrEnum):
    """What identifies a device, strongest first.

    ``vendor``: a number of the manufacturer that the host driver shows, such as the serial number
    of a disk. ``dsn``: the Device Serial Number capability of PCI Express. ``vpd``: the serial
    number (SN) in the Vital Product Data. ``slot``: the label of the slot, with the ids of the
    card. ``address``: the PCI address.
    """

    VENDOR = "vendor"
    DSN = "dsn"
    VPD = "vpd"
    SLOT = "slot"
    ADDRESS = "address"


class Confidence(StrEnum):
    """How far an equal value means the same device.

    ``unique``: the manufacturer gives each device a value of its own; it moves with the device.
    ``board``: it is burned into the board and moves with it, but some manufacturers give a whole
    batch of boards one value. ``place``: it tells where a device is; another card at the same place
    has the same value.
    """

    UNIQUE = "unique"
    BOARD = "board"
    PLACE = "place"


@dataclass(frozen=True)
class Identity:
    """A fact that identifies a device on its host and does not change while it stays there.

    The value belongs to one function: the number of a card ends in ``/N`` for its function N (not
    for function 0), and in ``/vfN`` for the virtual function N of a physical function.
    """

    kind: IdentityKind
    value: str
    confidence: Confidence


def identity_of(stored: Sequence[Mapping[str, str]] | None) -> list[Identity]:
    """Return the identity of a stored device, without what only a later release understands."""
    return [
        Identity(IdentityKind(item["kind"]), item["value"], Confidence(item["confidence"]))
        for item in stored or ()
        if item["kind"] in set(IdentityKind) and item["confidence"] in set(Confidence)
    ]


def merge_identity(
    stored: Sequence[Identity], reported: tuple[Identity, ...]
) -> tuple[Identity, ...]:
    """Return the identity of a device of which another one was stored before.

    A kind that is not reported is not known now: for example, no driver shows the serial number of
    a disk that a guest has. The stored value stays if it moves with the device and the report has
    no other value of a kind that does, which would mean another device.
    """
    values = {identity.kind: identity.value for identity in reported}
    numbers = [item for item in stored if item.confidence is not Confidence.PLACE]
    if any(values.get(identity.kind, identity.value) != identity.value for identity in numbers):
        return reported
    missing = (identity for identity in numbers if identity.kind not in values)
    order = list(IdentityKind)
    return tuple(sorted((*missing, *reported), key=lambda identity: order.index(identity.kind)))


@dataclass(frozen=True)
class Topology:
    """Where a device is in the PCI hierarchy of its host; all members are PCI addresses.

    ``root_port`` is the port of the root complex above the device. ``switch`` is the nearest bridge
    above it with several slots below: the upstream port of a switch. ``siblings`` are the other
    physical functions of the same card, in order; a virtual function has its parent there. None and
    empty: the device has none.
    """

    root_port: str | None = None
    switch: str | None = None
    siblings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """One accelerator card or function of this host.

    ``key`` is unique per driver and host, and the driver finds the device by it: for a PCI function
    its canonical address. A device need not be one: then ``key`` is any text. ``control_path`` is
    shown nowhere; for a PCI function it is kept in the form that the databases in the field have
    (domain, bus, device, function). ``std_board_info`` becomes the JSON string of the API.
    ``backend`` names what drives the device where its driver knows several. The driver of an
    ``operator_created`` device only tells that it is there. ``identity`` is strongest first, with
    at most one value of each kind; it is empty, and ``topology`` None, where they are not known.
    ``pools`` is the capacity that its deployables share: name → size, in a unit that the driver
    chooses, such as the slices of a GPU or its virtual functions. It is empty where every unit can
    be given out whatever the others do.
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
    identity: tuple[Identity, ...] = ()
    topology: Topology | None = None
    pools: dict[str, int] = field(default_factory=dict)

    def validate(self) -> str | None:
        """Return why the database cannot hold this device, as a clause; None if it can."""
        for what, text, width in _texts(self):
            flaw = flaw_of_text(what, text, width)
            if flaw is not None:
                return flaw
        if not -_LARGEST <= (self.numa_node or 0) <= _LARGEST:
            return f"there is no NUMA node {self.numa_node}"
        if len({identity.kind for identity in self.identity}) < len(self.identity):
            return "it has two identities of one kind"
        names = [deployable.name for deployable in self.deployables]
        if len(set(names)) < len(names):
            return "two of its deployables have one name"
        for deployable in self.deployables:
            if len({handle.key for handle in deployable.handles}) < len(deployable.handles):
                return f"two attach handles of {deployable.name} have one key"
            for trait in deployable.product_traits:
                if trait not in deployable.traits:
                    return f"{deployable.name} does not have its product trait {trait!r}"
        return _flaw_of_groups(self) or _flaw_of_pools(self)


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
        """Return an offered device as an entry of the hardware inventory."""
        return cls(
            key=device.key,
            kind=device.type.value,
            vendor=device.vendor,
            model=device.model,
            offered=True,
            num=sum(len(deployable.handles) for deployable in device.deployables),
        )

    def validate(self) -> str | None:
        """Return why the database cannot hold this entry, as a clause; None if it can."""
        if not (0 <= self.remote <= self.num <= _LARGEST):
            return f"{self.remote} of {self.num} units cannot be remote"
        texts = (
            ("its key", self.key, _WIDE),
            ("its kind", self.kind, _KIND),
            ("its capability", json.dumps(self.capability), _LONG),
        )
        return next(filter(None, (flaw_of_text(*text) for text in texts)), None)


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
        """Return why the database cannot hold this backend, as a clause; None if it can."""
        names = [service.name for service in self.services]
        if len(set(names)) < len(names):
            return "two of its services have one name"
        texts = [
            ("its name", self.name, _WIDE),
            ("its state", self.state, _STATE),
            ("the list of its capabilities", json.dumps(self.capabilities), _LONG),
            *(("the name of a service", service.name, _WIDE) for service in self.services),
            *(("the state of a service", service.state, _STATE) for service in self.services),
        ]
        return next(filter(None, (flaw_of_text(*text) for text in texts)), None)


def flaw_of_text(what: str, text: str, width: int) -> str | None:
    """Return why a column of this width cannot hold a text, as a clause; None if it can."""
    if not 0 < len(text) <= width:
        return f"{what} has {len(text)} characters and not 1 to {width}"
    if control_character(text) is not None:
        return f"{what} is no text: {text!r}"
    return None


def _flaw_of_groups(device: Device) -> str | None:
    """Return why guests cannot take units of a device in groups, as a clause; None if they can."""
    for deployable in device.deployables:
        size, count = deployable.group_size, len(deployable.handles)
        if not 1 <= size <= _LARGEST:
            return f"the group_size of {deployable.name} is {size} and not 1 to {_LARGEST}"
        if count % size:
            return f"{deployable.name} has {count} attach handles, no multiple of {size}"
    return None


def _flaw_of_pools(device: Device) -> str | None:
    """Return why units cannot share the capacity of a device, as a clause; None if they can."""
    for pool, size in device.pools.items():
        flaw = flaw_of_text("the name of a pool", pool, _POOL)
        if flaw is not None:
            return flaw
        if not 0 <= size <= _LARGEST:
            return f"the size of its pool {pool} is {size} and not 0 to {_LARGEST}"
    for deployable in device.deployables:
        if deployable.cost and not deployable.prepare:
            return f"{deployable.name} has a cost, but its units need no preparation"
        for pool, amount in deployable.cost.items():
            if pool not in device.pools:
                return f"{deployable.name} takes of {pool}, which is not a pool of the device"
            if not 1 <= amount <= _LARGEST:
                return f"{deployable.name} takes {amount} of {pool} and not 1 to {_LARGEST}"
    return None


def _texts(device: Device) -> Iterator[tuple[str, str, int]]:
    """Yield each text of a device that has a column: its description, the text, the width."""
    yield "its key", device.key, _WIDE
    yield "its vendor", device.vendor, _WIDE
    yield "its model", device.model, _WIDE
    yield "its control path", json.dumps(device.control_path), _WIDE
    yield "its standard board information", json.dumps(device.std_board_info), _LONG
    if device.backend:
        yield "its backend", device.backend, _WIDE
    if device.vendor_board_info:
        yield "its board information", device.vendor_board_info, _LONG
    for identity in device.identity:
        yield f"its identity {identity.kind}", identity.value, _WIDE
    if device.topology is not None:
        ports = (device.topology.root_port, device.topology.switch, *device.topology.siblings)
        yield from (("its topology", port, _WIDE) for port in ports if port is not None)
    for deployable in device.deployables:
        yield "the name of a deployable", deployable.name, _WIDE
        yield f"the resource class of {deployable.name}", deployable.resource_class, _WIDE
        yield f"the driver name of {deployable.name}", deployable.driver_name, _DRIVER_NAME
        for attribute in deployable.attributes:
            yield f"an attribute of {deployable.name}", attribute.key, _WIDE
            yield f"{attribute.key} of {deployable.name}", attribute.value, _LONG
        for handle in deployable.handles:
            yield f"the key of a handle of {deployable.name}", handle.key, _WIDE
            yield f"handle {handle.key} of {deployable.name}", json.dumps(handle.info), _WIDE

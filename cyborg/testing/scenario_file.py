# SPDX-License-Identifier: Apache-2.0
"""The files of scenario hosts: their schema, and how a file becomes a checked description.

The classes are the schema: each class is a mapping of YAML, each field a key. A name with a ``_``
at its end is the key without it. All scalars are read as text and converted by the type of the
field, because YAML takes some PCI addresses for numbers. Errors name the file and the key.

An entry with several addresses stands for several functions. ``address`` is then a list, or the
first address with ``count`` and ``step``. Each key that has one value may have a list instead, with
one value for each address. In every text of an entry, ``{n}`` becomes the number of the function
(from ``number`` on, 0 by default; ``{n:02d}`` and ``{n:x}`` format it), ``{address}`` its address
and ``{ADDRESS}`` the same in capitals.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import yaml

from cyborg.drivers.pci_function import parse_name
from cyborg.model.pci import PciAddress

_PLACEHOLDER = re.compile(r"\{(n|address|ADDRESS)(?::(0?[0-9]*[dxX]))?\}")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
#: The keys with which one entry stands for several; no class has them as fields.
_REPEAT = ("count", "step", "number")


@dataclass(frozen=True)
class Form:
    """The form of a text: a pattern for all of it, and what errors call it."""

    pattern: str
    name: str


Address = Annotated[
    str,
    Form(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", "an address such as 0000:3b:00.0"),
]
Ids = Annotated[str, Form(r"[0-9a-f]{4}:[0-9a-f]{4}", "two ids such as 10de:2330, in lower case")]
DeviceId = Annotated[str, Form(r"[0-9a-f]{4}", "a device id of four hex digits")]
ClassCode = Annotated[str, Form(r"[0-9a-f]{6}", "a class code of six hex digits")]
Revision = Annotated[str, Form(r"[0-9a-f]{2}", "two hex digits")]
Name = Annotated[str, Form(r"[A-Za-z0-9_.-]+", "a name of letters, digits and _.-")]
Link = Annotated[str, Form(r"[0-9.]+ GT/s x[0-9]+", "a link such as 32.0 GT/s x16")]
Size = Annotated[str, Form(r"[0-9]+[KMG]", "a size such as 16M")]
Cpus = Annotated[str, Form(r"[0-9,-]+", "a list of processors such as 0-55,112-167")]
SerialNumber = Annotated[
    str, Form(r"[0-9a-f]{2}(-[0-9a-f]{2}){7}", "eight pairs of hex digits with -")
]
Mac = Annotated[str, Form(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", "a MAC address")]
Digits = Annotated[str, Form(r"[0-9a-f]{32}", "32 hex digits")]
ControllerName = Annotated[str, Form(r"nvme[0-9]+", "a name such as nvme0")]
QatState = Annotated[str, Form(r"up|down", "up or down")]
QatServices = Annotated[
    str, Form(r"dcc|(sym|asym|dc|decomp)(;(sym|asym|dc|decomp))*", "services such as sym;dc")
]


@dataclass(frozen=True)
class Node:
    """A NUMA node; ``cpus`` is a list as in ``cpulist``."""

    cpus: Cpus


@dataclass(frozen=True)
class Sriov:
    """The virtual functions of a function.

    ``total`` is how many it can have, ``enabled`` how many it has now. ``device`` is the device id
    of the virtual functions, and ``driver`` their host driver. ``offset`` and ``stride`` are those
    of the capability.
    """

    total: int
    device: DeviceId
    enabled: int = 0
    offset: int = 1
    stride: int = 1
    driver: Name | None = None


@dataclass(frozen=True)
class Namespace:
    """A namespace of an NVMe controller; ``size`` is in bytes."""

    size: int
    uuid: str | None = None
    partitions: int = 0


@dataclass(frozen=True)
class Nvme:
    """An NVMe controller; its namespaces are the disks ``NAMEn1``, ``NAMEn2`` and so on."""

    name: ControllerName
    model: str
    serial: str
    firmware: str
    namespaces: tuple[Namespace, ...] = ()


@dataclass(frozen=True)
class Qat:
    """A QuickAssist device: the name of its debugfs directory begins with ``qat_DEVICE_``."""

    device: Name
    services: QatServices
    state: QatState = "up"


@dataclass(frozen=True)
class Fpga:
    """An FPGA under the Device Feature List driver: its region N has management engine and port N.

    ``files`` are those of the management engine, ``port_files`` those of the port; paths are
    relative to ``dfl-fme.N`` and ``dfl-port.N``.
    """

    region: int
    manager: str
    compat_id: Digits
    afu_id: Digits
    files: Mapping[str, str] = field(default_factory=dict)
    port_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interface:
    """A network interface of a function; ``rdma`` is the name of its InfiniBand device."""

    name: Name
    mac: Mac | None = None
    state: str = "up"
    rdma: Name | None = None


@dataclass(frozen=True)
class Function:
    """A PCI function.

    ``model`` is its name in the list of PCI ids. ``below`` is the bridge above it, none for a
    function on a root bus. The NUMA ``node`` is that of the bridge unless it is given. Functions
    with the same ``group`` share an IOMMU group; others have their own. ``link`` is the state of
    its link, ``link_max`` what it can have, by default the same. ``serial`` is the Device Serial
    Number, ``slot`` the label of its slot. ``reset`` are the methods in their order, ``bars`` the
    sizes of its memory. ``classes`` are devices of classes such as ``accel/accel0``, ``dev`` paths
    of nodes. ``files`` and ``links`` are relative to its directory.
    """

    address: Address
    ids: Ids
    class_: ClassCode
    subsystem: Ids = "0000:0000"
    revision: Revision = "00"
    model: str | None = None
    driver: Name | None = None
    below: Address | None = None
    node: int | None = None
    group: str | None = None
    link: Link | None = None
    link_max: Link | None = None
    serial: SerialNumber | None = None
    slot: str | None = None
    reset: tuple[str, ...] = ()
    bars: tuple[Size, ...] = ()
    sriov: Sriov | None = None
    interface: Interface | None = None
    nvme: Nvme | None = None
    qat: Qat | None = None
    fpga: Fpga | None = None
    classes: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> PciAddress:
        """Return the address."""
        address = parse_name(self.address)
        assert address is not None
        return address


@dataclass(frozen=True)
class MdevType:
    """A type of mediated device, which takes ``slices`` of its parent."""

    name: str
    slices: int
    description: str = ""


@dataclass(frozen=True)
class Mdev:
    """The mediated devices of the functions of a driver, types by the name without the driver's."""

    capacity: int
    types: Mapping[str, MdevType]
    homogeneous: bool = False


@dataclass(frozen=True)
class VgpuType:
    """A type of vGPU that is assigned to a virtual function."""

    name: str
    slices: int


@dataclass(frozen=True)
class Vgpu:
    """The vGPUs of the virtual functions of a driver, types by their id."""

    capacity: int
    types: Mapping[str, VgpuType]


@dataclass(frozen=True)
class Driver:
    """A host driver beyond binding.

    ``vfs`` says that it also takes virtual functions. ``qat_services`` is how many services a
    QuickAssist device can combine.
    """

    vfs: bool = True
    mdev: Mdev | None = None
    vgpu: Vgpu | None = None
    qat_services: int = 0


@dataclass(frozen=True)
class Disk:
    """A disk of another controller than NVMe; ``at`` is below the directory of the function."""

    name: Name
    function: Address
    at: str
    partitions: int = 0


@dataclass(frozen=True)
class Volume:
    """A block device on top of others, such as a RAID array."""

    name: Name
    members: tuple[str, ...]


@dataclass(frozen=True)
class Bond:
    """An interface on top of others."""

    name: Name
    ports: tuple[str, ...]


@dataclass(frozen=True)
class NvidiaGpu:
    """A GPU as NVIDIA's driver shows it below /proc; ``mig`` are the ids of its GPU instances."""

    address: Address
    minor: int
    model: str
    uuid: str
    mig: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lines:
    """A line of output for each address."""

    address: Address
    line: str


@dataclass(frozen=True)
class Command:
    """The recorded answer of a tool.

    ``*`` in ``argv`` stands for any one argument. The output is ``stdout``, then ``lines`` with
    ``between`` between them, then ``after``. A tool that writes a file writes ``output`` to the
    path that follows the argument ``output_option``.
    """

    argv: tuple[str, ...]
    stdout: str = ""
    stderr: str = ""
    status: int = 0
    lines: tuple[Lines, ...] = ()
    between: str = "\n"
    after: str = ""
    output: str = ""
    output_option: str | None = None


@dataclass(frozen=True)
class LibraryDevice:
    """What the functions of a library answer about a device; texts are JSON where they can be."""

    address: Address
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Library:
    """What the functions of a vendor's library answer, those of no device in ``answers``."""

    answers: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[LibraryDevice, ...] = ()


@dataclass(frozen=True)
class CyborgDriver:
    """A driver of Cyborg that fits the host.

    ``options`` is the part of cyborg.conf that it needs. ``offers`` is how many devices it then
    offers. ``beside`` is false for a driver that offers the same functions as one before it.
    ``selects_by_address`` says that the options name addresses; see ``DriverSetup``.
    """

    name: Name
    offers: int
    options: str = ""
    beside: bool = True
    selects_by_address: bool = False


@dataclass(frozen=True)
class Refusal:
    """A function that no driver may offer; ``reason`` is a part of the sentence that says why."""

    address: Address
    reason: str


@dataclass(frozen=True)
class Scenario:
    """A host.

    ``sources`` tell where its ids and its layout come from. ``parts`` has nothing but what entries
    merge with ``<<``. ``mounts`` maps mount points to block devices, ``vgpus`` virtual functions to
    the type that each has now, ``files`` and ``links`` absolute paths to texts and targets.
    ``refused`` are functions that the ownership check must refuse, whatever is whitelisted, unless
    a guest gets them together with others.
    """

    description: str
    sources: tuple[str, ...]
    kernel: str
    nodes: tuple[Node, ...]
    functions: tuple[Function, ...]
    drivers: tuple[CyborgDriver, ...]
    refused: tuple[Refusal, ...]
    mounts: Mapping[str, str]
    default_route: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    iommu: bool = True
    host_drivers: Mapping[str, Driver] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    volumes: tuple[Volume, ...] = ()
    swaps: tuple[str, ...] = ()
    bonds: tuple[Bond, ...] = ()
    vgpus: Mapping[str, str] = field(default_factory=dict)
    nvidia_gpus: tuple[NvidiaGpu, ...] = ()
    commands: tuple[Command, ...] = ()
    libraries: Mapping[str, Library] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def read(file: Path) -> Scenario:
    """Return the host that a file describes.

    Raises ValueError with one sentence that names the file and the key.
    """
    try:
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        value = yaml.load(file.read_bytes(), loader)  # noqa: S506 - it makes texts only
    except OSError as error:
        raise ValueError(f"{file}: the file cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: it is not YAML: {' '.join(str(error).split())}") from error
    scenario: Scenario = _Reader(file).parse(Scenario, _merged(value), "")
    _check(file, scenario)
    return scenario


class _Reader:
    """Converts the values of one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def parse(self, kind: Any, value: Any, where: str) -> Any:
        """Return a value as one of a type of a field."""
        if kind is Any:
            return value
        origin, parts = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self.parse(parts[0], value, where)
        if origin is Annotated:
            text, form = self.parse(parts[0], value, where), parts[1]
            if re.fullmatch(form.pattern, text) is None:
                self._refuse(where, f"{text!r} is not {form.name}")
            return text
        if origin is tuple:
            if not isinstance(value, list):
                self._refuse(where, "it is not a list")
            return tuple(
                self.parse(parts[0], item, f"{where}[{number}]")
                for number, item in self._expanded(parts[0], value, where)
            )
        if origin is not None:
            if not isinstance(value, dict):
                self._refuse(where, "it is not a mapping")
            return {
                key: self.parse(parts[1], item, f"{where}.{key}") for key, item in value.items()
            }
        if dataclasses.is_dataclass(kind):
            return self._object(kind, value, where)
        if not isinstance(value, str):
            self._refuse(where, "it is not one value")
        if kind is bool:
            if value not in ("true", "false"):
                self._refuse(where, f"{value!r} is neither true nor false")
            return value == "true"
        if kind is int:
            if _NUMBER.fullmatch(value) is None:
                self._refuse(where, f"{value!r} is not a whole number")
            return int(value)
        return value

    def _object(self, kind: Any, value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            self._refuse(where, "it is not a mapping")
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {one.name.removesuffix("_"): one for one in dataclasses.fields(kind)}
        for key in value:
            if key not in fields:
                self._refuse(_join(where, key), f"no such key; there are {', '.join(fields)}")
        arguments = {}
        for key, one in fields.items():
            place = _join(where, key)
            if key in value:
                parsed = self.parse(hints[one.name], value[key], place)
                arguments[one.name] = parsed
            elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
                self._refuse(place, "the key is missing")
        return kind(**arguments)

    def _expanded(self, kind: Any, items: list[Any], where: str) -> Iterator[tuple[int, Any]]:
        """Yield the entries of a list with their number in the file, repeated ones apart."""
        fields = (
            {one.name.removesuffix("_"): one for one in dataclasses.fields(kind)}
            if dataclasses.is_dataclass(kind)
            else {}
        )
        for number, item in enumerate(items):
            place = f"{where}[{number}]"
            if "address" not in fields or not isinstance(item, dict):
                yield number, item
                continue
            addresses = self._addresses(item, place)
            first = self.parse(int, item.get("number", "0"), f"{place}.number")
            for index, address in enumerate(addresses):
                shared = {key: part for key, part in item.items() if key not in _REPEAT}
                entry = self._one_of(
                    shared | {"address": address}, kind, (index, len(addresses)), place
                )
                yield number, _filled(entry, first + index, address)

    def _one_of(self, value: Any, kind: Any, which: tuple[int, int], place: str) -> Any:
        """Return a value for one of several addresses: its index, and how many there are."""
        index, size = which
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = typing.get_args(kind)[0]
        if isinstance(value, dict):
            hints = (
                typing.get_type_hints(kind, include_extras=True)
                if dataclasses.is_dataclass(kind)
                else {}
            )
            inner = (typing.get_args(kind) or (None, None))[1]
            return {
                key: self._one_of(
                    part, hints.get(key, hints.get(f"{key}_", inner)), which, _join(place, key)
                )
                for key, part in value.items()
            }
        if not isinstance(value, list):
            return value
        if typing.get_origin(kind) is tuple:
            inner = typing.get_args(kind)[0]
            return [self._one_of(part, inner, which, place) for part in value]
        if len(value) != size:
            self._refuse(place, f"it has {len(value)} values for {size} addresses")
        return value[index]

    def _addresses(self, item: Mapping[str, Any], where: str) -> list[str]:
        value = item.get("address")
        given: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) and parse_name(one) for one in given):
            self._refuse(_join(where, "address"), f"{value!r} is not {_form(Address)}")
        if "count" not in item:
            return list(given)
        count = self.parse(int, item["count"], _join(where, "count"))
        step = item.get("step")
        if len(given) != 1 or not isinstance(step, str) or parse_name(step) is None:
            self._refuse(
                _join(where, "count"), "it needs one address, and a step such as 0000:08:00.0"
            )
        start, by = _number_of(given[0]), _number_of(step)
        return [str(_address_of(start + by * index)) for index in range(count)]

    def _refuse(self, where: str, reason: str) -> NoReturn:
        raise ValueError(f"{self._file}: {where.lstrip('.') or 'the file'}: {reason}")


def _merged(value: Any) -> Any:
    """Return a value with the mappings that ``<<`` names merged; the mapping's own keys win."""
    if isinstance(value, list):
        return [_merged(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: _merged(item) for key, item in value.items()}
    bases = inner.pop("<<", [])
    for base in bases if isinstance(bases, list) else [bases]:
        inner = {**base, **inner} if isinstance(base, dict) else {**inner, "<<": base}
    return inner


def _form(kind: Any) -> str:
    form: Form = typing.get_args(kind)[1]
    return form.name


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _number_of(text: str) -> int:
    """Return domain, bus, device and function as one number."""
    address = parse_name(text)
    assert address is not None
    return address.domain << 16 | address.bus << 8 | address.device << 3 | address.function


def _address_of(number: int) -> PciAddress:
    return PciAddress(number >> 16, number >> 8 & 0xFF, number >> 3 & 0x1F, number & 7)


def _filled(value: Any, number: int, address: str) -> Any:
    """Return a value with the placeholders in its texts and keys filled."""
    if isinstance(value, dict):
        return {
            _filled(key, number, address): _filled(item, number, address)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_filled(item, number, address) for item in value]
    values: dict[str, Any] = {"address": address, "ADDRESS": address.upper()}

    def fill(match: re.Match[str]) -> str:
        return format(number, match[2] or "d") if match[1] == "n" else str(values[match[1]])

    return _PLACEHOLDER.sub(fill, value)


def _check(file: Path, scenario: Scenario) -> None:
    """Check what the entries of a file say about each other."""

    def refuse(where: str, reason: str) -> NoReturn:
        raise ValueError(f"{file}: {where}: {reason}")

    known: dict[str, Function] = {}
    for function in scenario.functions:
        place = f"functions, {function.address}"
        if function.address in known:
            refuse(place, "the address is there twice")
        if function.below is not None and function.below not in known:
            refuse(f"{place}.below", f"no function before it has the address {function.below}")
        if function.node is not None and not -1 <= function.node < len(scenario.nodes):
            refuse(f"{place}.node", f"there are {len(scenario.nodes)} nodes, counted from 0")
        if function.sriov is not None and function.sriov.enabled > function.sriov.total:
            refuse(f"{place}.sriov.enabled", f"it is more than the total {function.sriov.total}")
        known[function.address] = function
    virtual = {
        str(_address_of(_number_of(one.address) + one.sriov.offset + one.sriov.stride * index))
        for one in scenario.functions
        if one.sriov is not None
        for index in range(one.sriov.enabled)
    }
    interfaces = {one.interface.name for one in scenario.functions if one.interface is not None}
    interfaces |= {bond.name for bond in scenario.bonds}
    disks = _block_devices(scenario)
    references: list[tuple[str, str, Iterable[str], Collection[str]]] = [
        ("refused", "function", (one.address for one in scenario.refused), {*known, *virtual}),
        ("disks", "function", (one.function for one in scenario.disks), known),
        ("nvidia_gpus", "function", (one.address for one in scenario.nvidia_gpus), known),
        ("vgpus", "function", scenario.vgpus, virtual),
        ("mounts", "block device", scenario.mounts.values(), disks),
        ("swaps", "block device", scenario.swaps, disks),
        ("default_route", "interface", (scenario.default_route,), interfaces),
    ]
    for name, library in scenario.libraries.items():
        addresses = (one.address for one in library.devices)
        references.append((f"libraries.{name}", "function", addresses, known))
    references += [
        *((f"volumes, {one.name}", "block device", one.members, disks) for one in scenario.volumes),
        *((f"bonds, {one.name}", "interface", one.ports, interfaces) for one in scenario.bonds),
    ]
    for where, kind, names, present in references:
        for name in names:
            if name not in present:
                refuse(where, f"there is no {kind} {name!r}")


def _block_devices(scenario: Scenario) -> set[str]:
    """Return the names of all disks, partitions and volumes."""
    sizes = {
        f"{one.nvme.name}n{number}": namespace.partitions
        for one in scenario.functions
        if one.nvme is not None
        for number, namespace in enumerate(one.nvme.namespaces, 1)
    }
    sizes |= {disk.name: disk.partitions for disk in scenario.disks}
    names = {*sizes, *(volume.name for volume in scenario.volumes)}
    return names | {
        partition_name(disk, number)
        for disk, count in sizes.items()
        for number in range(1, count + 1)
    }


def partition_name(disk: str, number: int) -> str:
    """Return the name of a partition, as the kernel makes it."""
    return f"{disk}p{number}" if disk[-1].isdigit() else f"{disk}{number}"

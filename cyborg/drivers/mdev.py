# SPDX-License-Identifier: Apache-2.0
"""The mdev_driver: offers the mediated devices of PCI functions of any vendor.

Each function is split into mediated devices of one type, and each of these is a unit. The UUID of a
mediated device is that of its attach handle, whether the agent or Nova creates it. Nova removes
none, so the agent does.

Sources: Documentation/driver-api/vfio-mediated-device.rst and drivers/vfio/mdev of Linux 6.12; the
libvirt driver of Nova 2026.2.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import devices as options
from cyborg.drivers import mediated
from cyborg.drivers.base import (
    CleanStep,
    ImageFile,
    Progress,
    ResetLevel,
    no_progress,
)
from cyborg.drivers.card_driver import CardDriver, address_of, info_of
from cyborg.drivers.device_options import parse_resource_class, parse_trait
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.creation import OWNER
from cyborg.model.device import Attribute, Deployable, Device, DeviceType, Hardware
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit

_GROUP = "mdev_driver"
_PARENTS = "/sys/class/mdev_bus"
#: The clean step, by the name that operators read.
_REMOVAL = "removal of the mediated device"
#: The most units of one function; a count above it is no count of accelerators.
_MOST = 1024
_FOREIGN = "no attach handle has its UUID; remove it with mdevctl stop -u {} to offer its capacity"
_OTHER_TYPE = "it has the type {}, and {} is split into {}"


@dataclass(frozen=True)
class _Offer:
    """What the units of a type are in Placement."""

    resource_class: str
    traits: tuple[str, ...]


@dataclass(frozen=True)
class _Parent(Card):
    """A function that makes mediated devices.

    ``mdev_type`` is the type of its units, None if it cannot be told. ``numbers`` are those of
    the units that are offered. ``types`` are those of ``Scan.mdev_types``. ``foreign`` maps the
    mediated devices that are no units to the reason why.
    """

    mdev_type: str | None = None
    numbers: tuple[int, ...] = ()
    types: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)


class MdevDriver(CardDriver[_Parent]):
    """Functions that make mediated devices; see module. Virtual functions are parents, too."""

    name = "mdev_driver"
    type = DeviceType.MDEV
    group = _GROUP

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        names = _GROUP, "enabled_types"
        self._types, self._others = mediated.read_types(conf, names, "mdev_", options.mdev_options)
        kinds = {*self._types.values(), *self._others}
        self._offers = {kind: _read_offer(conf, kind) for kind in kinds}
        self._creates: bool = conf[_GROUP].create == "prepare"
        #: The handles that were prepared since the agent asked for ``attach_handles``.
        self._prepared: dict[str, Unit] = {}
        #: The last scan, with the names of the parents on its host.
        self._listing: tuple[Scan, frozenset[str]] | None = None

    def device(self, scan: Scan, card: _Parent) -> Device:
        function, kind = card.function, str(card.mdev_type)
        offer = self._offers[kind]
        product = _trait(kind)
        traits = tuple(dict.fromkeys((OWNER, product, *offer.traits)))
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{function.vendor:04x}",
            model=self.model(function, self.names(scan)),
            control_path=info_of(function.address),
            deployables=(
                Deployable(
                    name=self.name_of(function.address),
                    resource_class=offer.resource_class,
                    driver_name=f"{function.vendor:04X}",
                    handles=tuple(mediated.handles(function.address, kind, card.numbers)),
                    traits=traits,
                    attributes=(
                        Attribute("rc", offer.resource_class),
                        *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
                    ),
                    prepare=True,
                    product_traits=(product,),
                ),
            ),
            std_board_info={"product_id": f"{function.product:04x}"},
        )

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return the parents, and the mediated devices that are no units of this service."""
        parents = {card.key: card for card in self.cards(scan)}
        items = []
        for item in super().hardware(scan):
            parent = parents[item.key]
            counts = {kind: {"free": free, "made": made} for kind, (free, made) in _sorted(parent)}
            capability = {**item.capability, "mdev_types": counts}
            num = max(1, len(parent.numbers))
            items.append(replace(item, num=num, capability=capability))
            items += [
                replace(item, key=f"{item.key}/{uuid}", offered=False, reason=reason, capability={})
                for uuid, reason in parent.foreign.items()
            ]
        items += [self._unused(scan, name) for name in self._parent_names(scan) - parents.keys()]
        return sorted(items, key=lambda item: item.key)

    def _unused(self, scan: Scan, name: str) -> Hardware:
        """Return a parent that the configuration does not name, or cannot name."""
        vendor, model = "generic", name
        reason = "it is no PCI function, and Nova attaches mediated devices of those only"
        if (address := parse_name(name)) is not None:
            reason = f"no section of [{_GROUP}] enabled_types names it"
            function = scan.functions.get(address)
            if function is not None:
                vendor, model = f"{function.vendor:04x}", self.model(function, self.names(scan))
        return Hardware(name, self.type.value, vendor, model, offered=False, reason=reason)

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; create the mediated device, unless Nova does, or it exists already."""
        address, kind = address_of(task.device_key), mediated.type_of(task.handle_key)
        scan = Scan(self.host, all_managed=True)
        if address not in scan.functions:
            raise self._failed("prepare", f"{address} is not on the bus")
        types = scan.mdev_types(address)
        requested = self._kind(address, types)
        if kind != requested:
            raise self._failed(
                "prepare", f"{task.handle_key} has another type than its function, {requested}"
            )
        self._prepared[task.handle_uuid] = task.unit
        place = self._place(task, "prepare")
        if place is not None:
            existing = self.host.readlink(f"{place}/mdev_type").rpartition("/")[2]
            if existing != kind:
                reason = f"mediated device {task.handle_uuid} exists with the type {existing}"
                raise self._failed("prepare", reason)
            return
        if not types.get(kind, (0, 0))[0]:
            raise self._failed("prepare", f"{address} {_exhausted(kind, types)}")
        if self._creates:
            mediated.create(self.host, address, kind, task.handle_uuid)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        """See Driver; remove the mediated device, unless a process has it open."""
        place = self._place(task, "release")
        if place is None:
            return
        if (process := mediated.holder(self.host, place)) is not None:
            reason = f"mediated device {task.handle_uuid} is held through VFIO by {process}"
            raise self._failed("release", reason)
        mediated.remove(self.host, task.handle_uuid)
        self._prepared.pop(task.handle_uuid, None)

    def clean_names(self, scan: Scan, card: _Parent, function: PciFunction) -> Sequence[str]:
        return (_REMOVAL,)

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; what the last guest had ends with its mediated device."""
        return (CleanStep(_REMOVAL, lambda _: self.release(task)),)

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; a parent is never reset, because other guests have a part of it."""
        self._cannot(f"reset {device_key}, which makes mediated devices")

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """See Driver; the mediated devices of the configured functions and types, by their UUID.

        The agent releases one that libvirt has created again, for no guest, when the host booted.
        """
        if scan.snapshot.parts_error is not None:
            raise self._failed("prepared", scan.snapshot.parts_error)
        units = []
        for address, function in scan.functions.items():
            made = mediated.made(scan, address)
            kind = self._kind(address, scan.mdev_types(function.address)) if made else None
            units += [
                Unit(self.name_of(address), uuid) for uuid, other in made.items() if other == kind
            ]
        return units

    def selected(self, scan: Scan) -> Iterator[_Parent]:
        """See CardDriver; the parents that a section names."""
        names = self._parent_names(scan)
        for address, function in scan.functions.items():
            if address in self._types or (self._others and str(address) in names):
                try:
                    types = scan.mdev_types(address)
                except exception.HostError as error:
                    yield _Parent(address, function, reason=str(error))
                    continue
                kind = self._kind(address, types)
                if kind is not None:
                    yield _Parent(
                        *(address, function, (function,)), whole=False, mdev_type=kind, types=types
                    )

    def completed(self, scan: Scan, card: _Parent) -> _Parent:
        """See CardDriver; the units of a parent that nothing else uses."""
        address, kind, types = card.address, str(card.mdev_type), card.types
        reason = card.reason
        if reason is None and scan.snapshot.parts_error is not None:
            reason = f"it is not known which parts it has: {scan.snapshot.parts_error}"
        if reason is None and kind not in types:
            reason = f"it has no type {kind}, but {', '.join(sorted(types)) or 'none'}"
        if reason is not None:
            return replace(card, reason=reason, guests=())
        managed = scan.is_managed(self.name_of(address))
        own = self._own(scan, address, kind, managed=managed)
        foreign = {}
        made = mediated.made(scan, address)
        for uuid, other in sorted(made.items()):
            if uuid not in own:
                reasons = [_OTHER_TYPE.format(other, address, kind)] if other != kind else []
                reasons += [] if managed and uuid in self._units() else [_FOREIGN.format(uuid)]
                foreign[uuid] = "; ".join(reasons)
        # The snapshot may be older than the numbers, whose sum does not change with a new device.
        others = sum(made[uuid] == kind for uuid in foreign)
        count = sum(types[kind]) - others
        numbers = _numbers(own.values(), address, kind, count=count)
        card = replace(card, numbers=numbers, foreign=foreign)
        if not numbers:
            return replace(card, reason=f"it {_exhausted(kind, types)}", guests=())
        return card

    def _own(
        self, scan: Scan, address: PciAddress, kind: str, *, managed: bool
    ) -> Mapping[str, str | None]:
        """Return the mediated devices of a type that are units: UUID → key, None if unknown.

        Those of a function that the conductor does not keep were not made for this service. Until
        the agent knows the handles, any of another one may be in a guest of this service.
        """
        if not managed:
            return {}
        units = self._units()
        return {
            uuid: units[uuid].handle_key if uuid in units else None
            for uuid, other in mediated.made(scan, address).items()
            if other == kind and (self.attach_handles is None or uuid in units)
        }

    def _units(self) -> Mapping[str, Unit]:
        """Return the units by the UUIDs of their handles, as far as the agent and the driver know.

        One that was reported and bound since the agent asked has been prepared by this driver.
        """
        return {**(self.attach_handles or {}), **self._prepared}

    def _kind(self, address: PciAddress, types: Mapping[str, tuple[int, int]]) -> str | None:
        """Return the type into which a function is split, None if no section names it."""
        others = (kind for kind in self._others if kind in types)
        return self._types.get(address) or next(others, None)

    def _parent_names(self, scan: Scan) -> frozenset[str]:
        """Return the names of all parents on the host; none if they cannot be listed."""
        if self._listing is None or self._listing[0] is not scan:
            names: frozenset[str] = frozenset()
            with contextlib.suppress(exception.HostError):
                names = frozenset(self.host.list_dir(_PARENTS))
            self._listing = scan, names
        return self._listing[1]

    def reasons(self, card: _Parent) -> Iterator[tuple[str, str]]:
        yield from super().reasons(card)
        for uuid, reason in card.foreign.items():
            yield f"{card.key}/{uuid}", reason

    def _place(self, task: HandleTask, verb: str) -> str | None:
        """Return the directory of the mediated device of a handle, None if there is none.

        Raises exception.DriverFailed if another function has it.
        """
        place = mediated.place_of(self.host, task.handle_uuid)
        if place is not None and place.split("/")[-2:-1] != [task.device_key]:
            reason = f"mediated device {task.handle_uuid} exists elsewhere: {place}"
            raise self._failed(verb, reason)
        return place

    def _failed(self, verb: str, reason: str) -> exception.DriverFailed:
        return exception.DriverFailed(driver=self.name, verb=verb, reason=reason)


def _numbers(
    keys: Iterable[str | None], address: PciAddress, kind: str, *, count: int
) -> tuple[int, ...]:
    """Return the numbers of ``count`` units, those with these keys among them."""
    own = frozenset(keys)
    numbers = range(_MOST if own else min(count, _MOST))
    used = [number for number in numbers if mediated.handle_key(address, kind, number) in own]
    free = [number for number in numbers if number not in used]
    return tuple(sorted([*used, *free[: max(0, count - len(used))]]))


def _exhausted(kind: str, types: Mapping[str, tuple[int, int]]) -> str:
    """Return the clause for a function that can make no further mediated device of a type."""
    made = [f"{count} of type {other}" for other, (_, count) in sorted(types.items()) if count]
    return f"can make no mediated device of type {kind} now; it has {', '.join(made) or 'none'}"


def _sorted(parent: _Parent) -> list[tuple[str, tuple[int, int]]]:
    return sorted(parent.types.items())


def _trait(kind: str) -> str:
    """Return the trait of a type: nvidia-222 gives CUSTOM_MDEV_NVIDIA_222."""
    return f"CUSTOM_MDEV_{re.sub(r'[^A-Z0-9_]', '_', kind.upper())}"


def _read_offer(conf: cfg.ConfigOpts, kind: str) -> _Offer:
    """Return the values of the section of a type; raises exception.ConfigError."""
    group, section = f"mdev_{kind}", conf[f"mdev_{kind}"]
    try:
        option = "resource_class"
        resource_class = parse_resource_class(section.resource_class)
        option = "traits"
        return _Offer(resource_class, tuple(map(parse_trait, section.traits)))
    except ValueError as error:
        raise exception.ConfigError(reason=f"Option [{group}] {option}: {error}.") from error

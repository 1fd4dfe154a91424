# SPDX-License-Identifier: Apache-2.0
"""One backend of the generic_driver: what its section of the configuration asks for."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from cyborg.drivers.generic_match import Selector
from cyborg.drivers.local_command import FilePath, LocalCommand
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_ids import Names
from cyborg.model.creation import OWNER
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
)
from cyborg.model.pci import PciAddress

#: A slot has eight functions.
_FUNCTIONS = 8


@dataclass(frozen=True)
class Commands:
    """What an operator wants run, by verb; None where there is nothing to run."""

    install: LocalCommand | None = None
    prepare: LocalCommand | None = None
    release: LocalCommand | None = None
    reset: LocalCommand | None = None
    program: LocalCommand | None = None
    ready: LocalCommand | None = None
    health: LocalCommand | None = None
    stats: LocalCommand | None = None
    service: LocalCommand | None = None


@dataclass(frozen=True)
class Marks:
    """Files whose presence tells a state; None where nothing tells."""

    ready: FilePath | None = None
    reboot: FilePath | None = None
    prepared: FilePath | None = None
    service: FilePath | None = None


@dataclass(frozen=True)
class GenericBackend:
    """What belongs to a backend, and how its devices are offered; see ``cyborg.conf.generic``."""

    name: str
    selector: Selector
    resource_class: str
    traits: tuple[str, ...] = ()
    device_type: DeviceType = DeviceType.PCI
    kind: str = DeviceType.PCI.value
    attach_type: AttachType = AttachType.PCI
    units: int = 1
    mdev_type: str | None = None
    physical_network: str | None = None
    vendor: str | None = None
    model: str | None = None
    services: tuple[str, ...] = ()
    capabilities: dict[str, Any] = field(default_factory=dict)
    remote_units: int = 0
    commands: Commands = Commands()
    marks: Marks = Marks()

    @property
    def is_granted(self) -> bool:
        """Whether its devices are there because the operator says so; guests get none of them."""
        return bool(self.selector.listed) and self.attach_type is AttachType.TEST_PCI

    @property
    def creates(self) -> AttachType | None:
        """How guests get what operators create here; mediated devices are parts of a card."""
        return None if self.attach_type is AttachType.MDEV else self.attach_type

    @property
    def prepares(self) -> bool:
        """Whether a unit needs the host's work before or after a guest has it."""
        commands = self.commands
        return any((commands.prepare, commands.release, commands.reset))

    @property
    def programs(self) -> bool:
        """Whether images can be loaded into its devices."""
        return self.commands.program is not None

    def names(self, function: PciFunction | None, known: Names) -> tuple[str, str]:
        """Vendor and model of a device, as the operator wants them shown, else as they are."""
        vendor, model = "generic", self.name
        if function is not None:
            vendor = f"{function.vendor:04x}"
            model = known.product(function.vendor, function.product)
        return self.vendor or vendor, self.model or model

    def device(
        self, node: str, address: PciAddress, function: PciFunction | None, known: Names
    ) -> Device:
        """A device with one deployable; ``function`` is None for one that is granted."""
        vendor, model = self.names(function, known)
        return Device(
            key=str(address),
            type=self.device_type,
            vendor=vendor,
            model=model,
            control_path=address.info(),
            deployables=(self._deployable(node, address),),
            backend=self.name,
            numa_node=function.numa_node if function is not None else None,
        )

    def adopted(self, made: Device, function: PciFunction | None, vendor: str) -> Device:
        """A device that an operator created, with what only the configuration and host tell."""
        return replace(
            made,
            vendor=vendor,
            numa_node=function.numa_node if function is not None else None,
            deployables=tuple(
                replace(one, prepare=self.prepares, programmable=self.programs)
                for one in made.deployables
            ),
        )

    def _deployable(self, node: str, address: PciAddress) -> Deployable:
        traits = tuple(dict.fromkeys((OWNER, *self.traits)))
        return Deployable(
            # The pci_driver's rule: a function that both are to offer has one owner.
            name=deployable_name(node, address),
            resource_class=self.resource_class,
            driver_name=self.name,
            handles=tuple(self.handles(address)),
            traits=traits,
            attributes=(
                Attribute("rc", self.resource_class),
                *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
            ),
            prepare=self.prepares,
            programmable=self.programs,
        )

    def handles(self, address: PciAddress) -> Iterator[AttachHandle]:
        """The units of a device."""
        match self.attach_type:
            case AttachType.PCI:
                info = address.info()
                if self.physical_network is not None:
                    info["physical_network"] = self.physical_network
                yield AttachHandle(str(address), self.attach_type, info)
            case AttachType.TEST_PCI:
                for unit in range(1, self.units + 1):
                    slot, function = divmod(unit, _FUNCTIONS)
                    place = PciAddress(address.domain, address.bus, slot, function)
                    yield AttachHandle(str(place), self.attach_type, place.info())
            case AttachType.MDEV:
                kind = str(self.mdev_type)
                for unit in range(self.units):
                    mark = f"{kind}_{unit}"
                    info = {**address.info(), "asked_type": kind, "vgpu_mark": mark}
                    yield AttachHandle(f"{address}/{mark}", self.attach_type, info)

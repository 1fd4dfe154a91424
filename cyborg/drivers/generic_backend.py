# SPDX-License-Identifier: Apache-2.0
"""One backend of the generic_driver, with the values of its configuration section."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from cyborg.drivers.device_options import Reset, UnitScope
from cyborg.drivers.generic_match import Selector
from cyborg.drivers.local_command import FilePath, LocalCommand
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_ids import Names
from cyborg.model.cleaning import CleanLevel
from cyborg.model.creation import OWNER
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
)
from cyborg.model.pci import PciAddress, deployable_name

#: A slot has eight functions.
_FUNCTIONS = 8


@dataclass(frozen=True)
class Commands:
    """The operator's command for each verb, None where there is no command."""

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
class StateFiles:
    """Files whose presence indicates a state, None where there is no such file."""

    ready: FilePath | None = None
    reboot: FilePath | None = None
    prepared: FilePath | None = None
    service: FilePath | None = None


@dataclass(frozen=True)
class GenericBackend:
    """The devices of a backend and how they are offered; see ``cyborg.conf.generic``.

    ``group_size`` is the number of functions that guests get together, 1 with unit FUNCTION.
    ``vfs`` is the number of virtual functions that each card shall have, None to leave the cards as
    they are.
    """

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
    reset: Reset | None = None
    reset_after_release: bool = False
    clean: CleanLevel | None = None
    commands: Commands = Commands()
    state_files: StateFiles = StateFiles()
    unit: UnitScope = UnitScope.FUNCTION
    group_size: int = 1
    vfs: int | None = None

    @property
    def is_declared(self) -> bool:
        """Return whether the configuration alone declares the devices; guests cannot get them."""
        return bool(self.selector.fixed) and self.attach_type is AttachType.TEST_PCI

    @property
    def creates(self) -> AttachType | None:
        """Return the attach type of accelerators that operators create here, None if they cannot.

        Mediated devices cannot be created, because they are parts of a card, and neither can one
        of several functions that guests get together.
        """
        if self.attach_type is AttachType.MDEV or self.unit is not UnitScope.FUNCTION:
            return None
        return self.attach_type

    @property
    def prepares(self) -> bool:
        """Return whether the agent must prepare or release a unit."""
        commands = self.commands
        return self.reset_after_release or any((commands.prepare, commands.release, commands.reset))

    @property
    def programs(self) -> bool:
        """Return whether images can be loaded into the devices."""
        return self.commands.program is not None

    @property
    def capability(self) -> dict[str, Any]:
        """Return what the list of hardware shows about each device."""
        reset = {} if self.reset is None else {"reset": self.reset.value}
        return {**reset, **self.capabilities}

    def vendor_and_model(self, function: PciFunction | None, names: Names) -> tuple[str, str]:
        """Return vendor and model from the configuration, or from the function if not set."""
        vendor, model = "generic", self.name
        if function is not None:
            vendor = f"{function.vendor:04x}"
            model = names.product(function.vendor, function.product)
        return self.vendor or vendor, self.model or model

    def device(
        self,
        node: str,
        address: PciAddress,
        function: PciFunction | None,
        names: Names,
        *,
        handles: tuple[AttachHandle, ...],
    ) -> Device:
        """Return a device with one deployable; ``function`` is None for a declared device."""
        vendor, model = self.vendor_and_model(function, names)
        traits = tuple(dict.fromkeys((OWNER, *self.traits)))
        deployable = Deployable(
            # The pci_driver uses the same name: a function that both could offer has one owner.
            name=deployable_name(node, address),
            resource_class=self.resource_class,
            driver_name=self.name,
            handles=handles,
            traits=traits,
            attributes=(
                Attribute("rc", self.resource_class),
                *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
            ),
            prepare=self.prepares,
            programmable=self.programs,
            group_size=self.group_size,
            product_traits=tuple(trait for trait in traits if trait != OWNER),
        )
        return Device(
            key=str(address),
            type=self.device_type,
            vendor=vendor,
            model=model,
            control_path=address.info(),
            deployables=(deployable,),
            backend=self.name,
        )

    def complete(self, created: Device, function: PciFunction | None, names: Names) -> Device:
        """Return a device that an operator created, with values from configuration and host."""
        return replace(
            created,
            vendor=self.vendor_and_model(function, names)[0],
            deployables=tuple(
                replace(deployable, prepare=self.prepares, programmable=self.programs)
                for deployable in created.deployables
            ),
        )

    def handles(self, address: PciAddress) -> Iterator[AttachHandle]:
        """Yield the attach handles of a device."""
        match self.attach_type:
            case AttachType.PCI:
                info = address.info()
                if self.physical_network is not None:
                    info["physical_network"] = self.physical_network
                yield AttachHandle(str(address), self.attach_type, info)
            case AttachType.TEST_PCI:
                for unit in range(1, self.units + 1):
                    slot, function = divmod(unit, _FUNCTIONS)
                    unit_address = PciAddress(address.domain, address.bus, slot, function)
                    info = unit_address.info()
                    yield AttachHandle(str(unit_address), self.attach_type, info)
            case AttachType.MDEV:
                kind = str(self.mdev_type)
                for unit in range(self.units):
                    mark = f"{kind}_{unit}"
                    info = {**address.info(), "asked_type": kind, "vgpu_mark": mark}
                    yield AttachHandle(f"{address}/{mark}", self.attach_type, info)

# SPDX-License-Identifier: Apache-2.0
"""Drivers for network cards: the intel_nic_driver and the mlx5_driver.

Guests get virtual functions, or the whole port if it has none. A port that is mapped to a physical
network is fit for ports of Neutron.

Source: ``devlink-health(8)``.
"""

import abc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import devices as options
from cyborg.drivers.card_driver import PhysicalCardDriver, info_of
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.drivers.whitelist import network_trait
from cyborg.model.device import Deployable, Device, DeviceType, Hardware
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress

_RESOURCE_CLASS = "CUSTOM_NIC"
_DEVLINK = "/usr/sbin/devlink"
_TIMEOUT = 5.0
_AUXILIARY = "/sys/bus/auxiliary/devices"


@dataclass(frozen=True)
class Ports:
    """Which ports a section names, and what they are for.

    ``addresses`` are the functions that are offered; empty: all. ``networks`` and ``functions`` map
    an interface, or the address of a physical function, to the name in Neutron of the network and
    to the name of the function that is loaded into the card.
    """

    addresses: frozenset[PciAddress] = frozenset()
    networks: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, conf: cfg.ConfigOpts, group: str) -> "Ports":
        """Return what a section says (exception.ConfigError for a value that cannot be used)."""
        conf.register_opts(options.port_options(), group=group)
        addresses = []
        for text in conf[group].device_addresses:
            address = parse_name(text.strip().lower())
            if address is None:
                reason = f"Option [{group}] device_addresses: {text!r} is not a PCI address."
                raise exception.ConfigError(reason=reason)
            addresses.append(address)
        return cls(
            frozenset(addresses),
            _read_mapping(conf, group, "physical_device_mappings"),
            _read_mapping(conf, group, "function_device_mappings"),
        )


def _read_mapping(conf: cfg.ConfigOpts, group: str, option: str) -> dict[str, str]:
    """Return interface → name from entries such as ``physnet1:eth1|eth2``."""
    names: dict[str, str] = {}
    entries = [entry.partition(":") for entry in conf[group][option]]
    for name, colon, interfaces in entries:
        if not (name.strip() and colon and interfaces.strip()):
            flaw = f"{name + colon + interfaces!r} is not NAME:INTERFACE|INTERFACE"
        elif [other for other, _, _ in entries].count(name) > 1:
            flaw = f"{name!r} is there twice"
        else:
            names |= {interface.strip(): name.strip() for interface in interfaces.split("|")}
            continue
        raise exception.ConfigError(reason=f"Option [{group}] {option}: {flaw}.")
    return names


class NicDriver(PhysicalCardDriver):
    """What the drivers for network cards have in common; ``ports`` come from its options."""

    type = DeviceType.NIC
    vendor_word: ClassVar[str]
    #: The traits that every unit has, beside those of its product.
    card_traits: ClassVar[Sequence[str]] = ()

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self.ports = self.read_ports(conf)

    @abc.abstractmethod
    def read_ports(self, conf: cfg.ConfigOpts) -> Sequence[Ports]:
        """Return the sections of the driver; without one every port is offered."""

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        """Return the traits that name the product of a card."""
        return ()

    def guests(self, scan: Scan, function: PciFunction) -> Sequence[PciFunction]:
        """Return the functions of a port that the options name, all if they name none."""
        addresses = frozenset[PciAddress]().union(*(ports.addresses for ports in self.ports))
        parts = super().guests(scan, function)
        if not addresses or function.address in addresses:
            return parts
        return [part for part in parts if part.address in addresses]

    def device(self, scan: Scan, card: Card) -> Device:
        function, names = card.function, self.names(scan)
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"0x{function.vendor:04x}",
            model=self.model(function, names),
            control_path=info_of(function.address),
            deployables=tuple(self._unit(scan, card, guest) for guest in card.guests),
            std_board_info={"product_id": f"0x{function.product:04x}"},
            vendor_board_info="miss_vb_info",
        )

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the reporters of the card's driver, as ``devlink health`` shows them."""
        card = self.card(device_key, "health", scan)
        handle = f"pci/{card.function.address}"
        if card.function.host_driver is None or card.function.on_vfio:
            self._cannot(f"check the health of {device_key}")
        if not self.host.exists(_DEVLINK):
            self._cannot(f"check the health of {device_key} without {_DEVLINK}")
        result = self.host.run([_DEVLINK, "health", "show", handle, "-j"], timeout=_TIMEOUT)
        if result.status != 0:
            # A driver without reporters answers with an error, too.
            self._cannot(f"check the health of {device_key}")
        for name in _reporters_in_error(result.stdout, handle):
            text = f"its health reporter {name} is in the state error"
            yield Signal("devlink", "reporter", name, text)

    def _unit(self, scan: Scan, card: Card, guest: PciFunction) -> Deployable:
        names = self._names_of(scan, card.function)
        network = self._mapped(card, names, [ports.networks for ports in self.ports])
        function = self._mapped(card, names, [ports.functions for ports in self.ports])
        traits = ["CUSTOM_PF" if guest is card.function else "CUSTOM_VF"]
        traits += [network_trait(name) for name in (function, network) if name is not None]
        product = self.product_traits(card.function)
        traits += (*self.card_traits, *product)
        return self.deployable(
            guest,
            resource_class=_RESOURCE_CLASS,
            driver_name=self.vendor_word,
            traits=list(dict.fromkeys(traits)),
            product=product,
            more_info={"physical_network": network} if network is not None else {},
        )

    def _names_of(self, scan: Scan, function: PciFunction) -> list[str]:
        """Return by which names options call a port: its address, and its interfaces."""
        return [str(function.address), *scan.interfaces(function.address)]

    def _mapped(
        self, card: Card, names: Sequence[str], mappings: Sequence[Mapping[str, str]]
    ) -> str | None:
        """Return the first value for one of the names.

        A whole port that a guest has, has no interface: its value is the only one that there is,
        because a guest in a wrong network is worse than a port without one.
        """
        for mapping in mappings:
            for name in names:
                if name in mapping:
                    return mapping[name]
        values = {value for mapping in mappings for value in mapping.values()}
        return values.pop() if card.function.on_vfio and len(values) == 1 else None


class IntelNicDriver(NicDriver):
    """Ports of the series 700 and 800, each with its physical network if it has one."""

    name = "intel_nic_driver"
    group = "nic_devices"
    named_after_machine: ClassVar[bool] = True
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x8086: ("0200",)}
    vendor_word: ClassVar[str] = "intel"

    def read_ports(self, conf: cfg.ConfigOpts) -> Sequence[Ports]:
        return [Ports.read(conf, group) for group in conf.nic_devices.enabled_nic_types]


class Mlx5Driver(NicDriver):
    """Ports of NVIDIA ConnectX cards; the ports of DPUs and sub-functions are listed only.

    BlueField cards are DPUs: the DPU manages its ports, and Nova its share of them.
    """

    name = "mlx5_driver"
    group = "mlx5"
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x15B3: ("02",)}
    vendor_word: ClassVar[str] = "mellanox"
    card_traits: ClassVar[Sequence[str]] = ("OWNER_CYBORG", "HW_NIC_OFFLOAD_RDMA")

    def read_ports(self, conf: cfg.ConfigOpts) -> Sequence[Ports]:
        return [Ports.read(conf, "mlx5")]

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        return (f"CUSTOM_MLX5_{function.product:04X}",)

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return the cards, and the sub-functions, which Nova cannot attach."""
        return sorted((*super().hardware(scan), *self._sub_functions()), key=lambda item: item.key)

    def _sub_functions(self) -> Iterator[Hardware]:
        """Yield the sub-functions (SF) of the cards; source: devlink-port(8)."""
        try:
            names = self.host.list_dir(_AUXILIARY)
        except exception.HostError as error:
            if is_missing(error):
                return
            raise
        for name in names:
            if name.startswith("mlx5_core.sf."):
                yield Hardware(
                    key=name,
                    kind="SF",
                    vendor="Mellanox Technologies",
                    model="sub-function",
                    offered=False,
                    reason="Nova cannot attach a sub-function; use virtual functions",
                )


def _reporters_in_error(text: str, handle: str) -> Iterator[str]:
    """Yield the names of reporters in error from the output of ``devlink health show -j``."""
    try:
        reporters = json.loads(text[text.find("{") :])["health"][handle]
        for reporter in reporters:
            if reporter["state"] == "error":
                yield str(reporter["reporter"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise exception.HostError(
            action="reading the health of a network card",
            reason=f"devlink printed no list of health reporters ({type(error).__name__})",
        ) from error

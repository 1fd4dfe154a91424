# SPDX-License-Identifier: Apache-2.0
"""The pci_driver: offers whole PCI functions of any kind that the operator's whitelist names."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg.drivers import pci_ids, whitelist
from cyborg.drivers.card_driver import CardDriver, info_of
from cyborg.drivers.host import Host
from cyborg.drivers.local_settings import untrusted_source
from cyborg.drivers.pci_function import PciFunction, addresses_in_path
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.device import Backend, BackendService, Device, DeviceType, Hardware
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverState

_RESOURCE_CLASS = "CUSTOM_PCI"
_BACKEND = "pci"
#: Vendors whose names are part of traits and driver names in existing deployments; traits and
#: driver names of all other vendors have the vendor id.
_VENDOR_WORDS = {
    0x102B: "MATROX",
    0x10DE: "NVIDIA",
    0x10EE: "XILINX",
    0x19E5: "HUAWEI",
    0x1BD4: "INSPUR",
    0x8086: "INTEL",
}


@dataclass(frozen=True)
class _Listed(Card):
    """A function of the bus, with the entries of the whitelist that name it.

    ``network`` is the physical network that the whitelist gives.
    """

    entries: tuple[whitelist.Entry, ...] = ()
    network: str | None = None

    @property
    def forced(self) -> bool:
        """Return whether the operator wants to skip the ownership check."""
        return any(entry.force for entry in self.entries)


class PciDriver(CardDriver[_Listed]):
    """Offers the PCI functions that ``[pci] passthrough_whitelist`` names and nothing else uses."""

    name = "pci_driver"
    type = DeviceType.PCI
    group: ClassVar[str] = "pci"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._entries = whitelist.parse(conf.pci.passthrough_whitelist)
        #: Why ``force`` has no effect; None if root alone has set it.
        self._force_refusal: str | None = None
        if any(entry.force for entry in self._entries):
            self._force_refusal = untrusted_source(conf, host, "passthrough_whitelist", "pci")

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver; without a whitelist, nothing is read or offered."""
        return super().discover(scan) if self._entries else []

    def selected(self, scan: Scan) -> Iterator[_Listed]:
        """See CardDriver; every function of the bus, because the list of hardware has them all."""
        interfaces = _interfaces(scan)
        for address, function in scan.functions.items():
            managed = scan.is_managed(self.name_of(address))
            entries = tuple(
                entry
                for entry in self._entries
                if entry.matches(function, interfaces, managed=managed)
            )
            card = _Listed(
                *(address, function, (function,)),
                probed=bool(entries),
                entries=entries,
                network=whitelist.network_of(entries, function, interfaces),
            )
            if card.forced and self._force_refusal is None:
                yield replace(card, guarded=False)
                continue
            reason = self.platform_reason(function)
            if reason is None and not entries:
                reason = "not on the whitelist"
            yield replace(card, refused={} if reason is None else {address: reason})

    def completed(self, scan: Scan, card: _Listed) -> _Listed:
        """See CardDriver; why ``force`` has no effect is a part of the reason."""
        if card.reason is None or not card.forced:
            return card
        return replace(
            card,
            reason=f"{card.reason}; force has no effect, because the whitelist must be in "
            f"configuration files that only root can change{self._force_refusal}",
        )

    def source(self, card: _Listed) -> str | None:
        return "the whitelist" if card.entries else None

    def reasons(self, card: _Listed) -> Iterator[tuple[str, str]]:
        """See CardDriver; one function each."""
        if card.reason is not None:
            yield card.key, card.reason

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all PCI functions of the host; those that are not offered have a reason."""
        unreadable = [
            Hardware(name, *("unknown",) * 3, offered=False, reason=reason)
            for name, reason in scan.unreadable.items()
        ]
        return sorted((*super().hardware(scan), *unreadable), key=lambda item: item.key)

    def kind(self, function: PciFunction) -> str:
        return self.entry(function).description.kind or pci_ids.kind(function.class_code)

    def capability(self, scan: Scan, card: _Listed, function: PciFunction) -> dict[str, Any]:
        """See CardDriver; only functions of the whitelist are cleaned."""
        capability = super().capability(scan, card, function)
        if not card.entries:
            del capability["clean"]
        return {**capability, **({"virtual_functions": function.vfs} if function.vfs else {})}

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """See Driver; the functions that the whitelist names."""
        return {card.address for card in self.cards(scan) if card.entries}

    def backends(self, scan: Scan) -> list[Backend]:
        """Return the PCI bus as one backend; its services are the device types on the whitelist.

        The backend is STOPPED when the bus has no function that the whitelist names.
        """
        types: Counter[str] = Counter()
        if self._entries:
            types.update(
                self.entry(card.function).type.value for card in self.cards(scan) if card.entries
            )
        ready, stopped = DriverState.READY.value, DriverState.STOPPED.value
        return [
            Backend(
                name=_BACKEND,
                state=ready if types else stopped,
                services=tuple(BackendService(name, ready) for name in sorted(types)),
                capabilities={name: {"num": types[name]} for name in sorted(types)},
            )
        ]

    def clean_names(self, scan: Scan, card: _Listed, function: PciFunction) -> Sequence[str]:
        """See CardDriver; none of a function that is forced.

        The check that nobody uses a function says nothing about it.
        """
        if not card.entries or card.forced:
            return ()
        return super().clean_names(scan, card, function)

    def device(self, scan: Scan, card: _Listed) -> Device:
        function, network = card.function, card.network
        vendor = _VENDOR_WORDS.get(function.vendor)
        product = (
            *([f"CUSTOM_PCI_{vendor}"] if vendor else []),
            f"CUSTOM_PCI_PRODUCT_ID_{function.product:04X}",
        )
        traits = (
            "OWNER_CYBORG",
            *product,
            *([whitelist.network_trait(network)] if network else []),
        )
        deployable = self.deployable(
            function,
            resource_class=_RESOURCE_CLASS,
            driver_name=vendor or f"{function.vendor:04X}",
            traits=traits,
            product=product,
            # Nova needs the network for a port of Neutron, and otherwise ignores it.
            more_info={"physical_network": network} if network else {},
        )
        return Device(
            key=card.key,
            type=self.entry(function).type,
            vendor=f"{function.vendor:04x}",
            model=self.model(function, self.names(scan)),
            control_path=info_of(card.address),
            deployables=(deployable,),
            std_board_info={"product_id": f"{function.product:04x}", "controller": None},
            vendor_board_info="miss_vb_info",
        )

    def lists(self, entry: str) -> bool:
        """Return whether one entry of a whitelist, as JSON, names a function of this host.

        Raises exception.ConfigError for an entry that is not valid.
        """
        scan, entries = Scan(self.host), whitelist.parse([entry])
        interfaces = _interfaces(scan)
        return any(
            entry.matches(function, interfaces, managed=False)
            for function in scan.functions.values()
            for entry in entries
        )


def _interfaces(scan: Scan) -> Mapping[str, PciAddress]:
    """Return the function of each network interface."""
    return {
        interface.name: addresses[-1]
        for interface in scan.snapshot.network.interfaces
        if (addresses := addresses_in_path(interface.path))
    }

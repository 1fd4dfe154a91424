# SPDX-License-Identifier: Apache-2.0
"""The pci_driver: whole PCI functions of whatever kind for guests, by the operator's list."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from oslo_config import cfg

from cyborg.drivers import ownership, pci_ids, pci_scan, whitelist
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, addresses_on, parse_function
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Backend,
    BackendService,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverState

LOG = logging.getLogger(__name__)

_RESOURCE_CLASS = "CUSTOM_PCI"
_BACKEND = "pci"
#: Vendors whose names traits and driver names in the field carry; all others go by their id.
_VENDOR_WORDS = {
    0x102B: "MATROX",
    0x10DE: "NVIDIA",
    0x10EE: "XILINX",
    0x19E5: "HUAWEI",
    0x1BD4: "INSPUR",
    0x8086: "INTEL",
}
#: Device types by the start of the class code. The existing service calls all of these GPU, even
#: network cards; its newest release has the words to do better.
_TYPES = (
    ("0108", DeviceType.NVME),
    ("01", DeviceType.SSD),
    ("02", DeviceType.NIC),
    ("03", DeviceType.GPU),
    ("0b40", DeviceType.QAT),
    ("1200", DeviceType.AICHIP),
)


@dataclass(frozen=True)
class Finding:
    """What became of one directory of the bus; ``reason`` is None when it is offered.

    ``function`` is None for one that could not be understood; such a one is never offered.
    ``listed`` tells whether the operator's whitelist names it, ``network`` the physical network
    that it names for it.
    """

    key: str
    function: PciFunction | None
    reason: str | None
    listed: bool = False
    network: str | None = None


class PciDriver(Driver):
    """PCI functions that ``[pci] passthrough_whitelist`` names and nobody else needs."""

    name = "pci_driver"
    device_type = "PCI"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._node: str = conf.host
        self._entries = whitelist.parse(conf.pci.passthrough_whitelist)
        self._lookup = pci_ids.Lookup()
        self._names = pci_ids.Names()
        self._told: set[tuple[str, str]] = set()

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        """See Driver; nothing is offered, and nothing read, without a whitelist."""
        if not self._entries:
            return []
        found = self._survey(context)
        self._tell(found)
        return [
            device(one.function, self._node, self._names, one.network)
            for one in found
            if one.function is not None and one.reason is None
        ]

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        """Every PCI function of the host, and why it is not offered if it is not."""
        return [hardware(one, self._names) for one in self._survey(context)]

    def backends(self) -> list[Backend]:
        """Return the PCI bus as one backend: what the whitelist names on it, by device type.

        It is STOPPED when the bus has no function that the whitelist names.
        """
        types: Counter[str] = Counter()
        if self._entries:
            types.update(
                device_type(finding.function.class_code).value
                for finding in self._survey(EMPTY_CONTEXT)
                if finding.listed and finding.function is not None
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

    def lists(self, entry: str) -> bool:
        """Return whether one entry of a whitelist, as JSON, names a function of this host.

        Raises exception.ConfigError for an entry that cannot be understood.
        """
        findings = survey(
            pci_scan.read(self.host), whitelist.parse([entry]), self._node, EMPTY_CONTEXT
        )
        return any(finding.listed for finding in findings)

    def _tell(self, found: Sequence[Finding]) -> None:
        """Say once why a function that the operator listed is not offered."""
        refused = {(one.key, one.reason) for one in found if one.listed and one.reason}
        for key, reason in sorted(refused - self._told):
            LOG.warning("PCI function %s is on the whitelist and not offered: %s", key, reason)
        self._told = refused

    def _survey(self, context: DriverContext) -> list[Finding]:
        snapshot = pci_scan.read(self.host)
        found = survey(snapshot, self._entries, self._node, context)
        functions = [one.function for one in found if one.function]
        self._names = self._lookup.ask(self.host, [(one.vendor, one.product) for one in functions])
        return found


def survey(
    snapshot: pci_scan.Snapshot,
    entries: Sequence[whitelist.Entry],
    node: str,
    context: DriverContext,
) -> list[Finding]:
    """Judge every function of the snapshot, in the order of their addresses; pure."""
    busy = ownership.host_uses(snapshot)
    interfaces = {
        one.name: places[-1] for one in snapshot.interfaces if (places := addresses_on(one.path))
    }

    def judge(function: PciFunction) -> Finding:
        ours = deployable_name(node, function.address) in context.managed_deployables
        matching = [one for one in entries if one.matches(function, interfaces, ours=ours)]
        reason = None
        if not any(one.force for one in matching):
            reason = ownership.refusal_reason(
                function, busy, snapshot.open_vfio, context, ours=ours
            )
            reason = reason or (None if matching else "not on the whitelist")
        network = whitelist.network_of(matching, function, interfaces)
        return Finding(str(function.address), function, reason, bool(matching), network)

    found = []
    for raw in snapshot.functions:
        try:
            function = parse_function(raw)
        except ValueError as error:
            found.append(Finding(raw.name, None, str(error)))
        else:
            found.append(judge(function))
    return sorted(found, key=lambda one: one.key)


def deployable_name(node: str, address: PciAddress) -> str:
    """The name under which Placement knows a function; allocations in the field hang on it."""
    return f"{node}_{address}"


def network_trait(network: str) -> str:
    """By which a device profile asks for a function on a physical network."""
    return "CUSTOM_" + re.sub(r"[^A-Z0-9_]", "_", network.upper())


def device_type(class_code: int) -> DeviceType:
    """The device type that a 24-bit class code means."""
    digits = f"{class_code:06x}"
    return next((word for start, word in _TYPES if digits.startswith(start)), DeviceType.PCI)


def device(
    function: PciFunction, node: str, names: pci_ids.Names, network: str | None = None
) -> Device:
    """One offered function as a device with one deployable and one handle."""
    address = function.address
    # This order of the keys is that of the existing service's rows.
    info = dict(sorted(address.info().items()))
    return Device(
        key=str(address),
        type=device_type(function.class_code),
        vendor=f"{function.vendor:04x}",
        model=names.product(function.vendor, function.product),
        control_path=info,
        deployables=(_deployable(function, deployable_name(node, address), info, network),),
        std_board_info={"product_id": f"{function.product:04x}", "controller": None},
        vendor_board_info="miss_vb_info",
        numa_node=function.numa_node,
    )


def _deployable(
    function: PciFunction, name: str, info: dict[str, str], network: str | None
) -> Deployable:
    word = _VENDOR_WORDS.get(function.vendor)
    traits = (
        "OWNER_CYBORG",
        *([f"CUSTOM_PCI_{word}"] if word else []),
        f"CUSTOM_PCI_PRODUCT_ID_{function.product:04X}",
        *([network_trait(network)] if network else []),
    )
    # Nova needs the network for a port of Neutron, and ignores it for all else.
    info = info | {"physical_network": network} if network else info
    return Deployable(
        name=name,
        resource_class=_RESOURCE_CLASS,
        driver_name=word or f"{function.vendor:04X}",
        handles=(AttachHandle(str(function.address), AttachType.PCI, info),),
        traits=traits,
        attributes=(
            Attribute("rc", _RESOURCE_CLASS),
            *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
        ),
    )


def hardware(finding: Finding, names: pci_ids.Names) -> Hardware:
    """One function as the inventory of the node shows it."""
    function = finding.function
    if function is None:
        return Hardware(
            key=finding.key,
            kind="unknown",
            vendor="unknown",
            model="unknown",
            offered=False,
            reason=finding.reason,
        )
    return Hardware(
        key=finding.key,
        kind=pci_ids.kind(function.class_code),
        vendor=names.vendor(function.vendor),
        model=names.product(function.vendor, function.product),
        offered=finding.reason is None,
        reason=finding.reason,
        capability={
            "pci_class": f"{function.class_code:06x}",
            **({"virtual_functions": function.vfs} if function.vfs else {}),
        },
    )

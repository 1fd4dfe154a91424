# SPDX-License-Identifier: Apache-2.0
"""The pci_driver: offers whole PCI functions of any kind that the operator's whitelist names."""

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import catalogue, function_cleaning, pci_ids, whitelist
from cyborg.drivers.base import CleanStep, Driver
from cyborg.drivers.catalogue import Catalogue, Entry
from cyborg.drivers.function_cleaning import FunctionCleaner
from cyborg.drivers.host import Host
from cyborg.drivers.local_settings import untrusted_source
from cyborg.drivers.pci_function import PciFunction, addresses_in_path
from cyborg.drivers.scan import RefusalLog, Scan
from cyborg.model.cleaning import CleanLevel, HostClean, host_clean
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Backend,
    BackendService,
    Deployable,
    Device,
    Hardware,
)
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask

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
class Candidate:
    """One directory of the PCI bus; ``reason`` says why it is not offered, None when it is.

    ``function`` is None if the directory cannot be parsed; it is then never offered.
    ``whitelisted`` says that the operator's whitelist names the function, ``network`` is the
    physical network that the whitelist gives. ``steps`` are the names of its clean steps.
    """

    key: str
    function: PciFunction | None
    reason: str | None
    whitelisted: bool = False
    network: str | None = None
    steps: tuple[str, ...] = ()


class PciDriver(Driver):
    """Offers the PCI functions that ``[pci] passthrough_whitelist`` names and nothing else uses."""

    name = "pci_driver"
    device_type = "PCI"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._node: str = conf.host
        self._entries = whitelist.parse(conf.pci.passthrough_whitelist)
        #: Why ``force`` has no effect; None if root alone has set it.
        self._force_refusal: str | None = None
        if any(entry.force for entry in self._entries):
            self._force_refusal = untrusted_source(conf, host, "passthrough_whitelist", "pci")
        self._clean = CleanLevel(conf.pci.clean) if conf.pci.clean else None
        #: The functions whose disks are erased now, see FunctionCleaner.
        self._erasing: set[PciAddress] = set()
        self._catalogue = catalogue.read(conf)
        self._name_cache = pci_ids.NameCache()
        self._names = pci_ids.Names()
        self._refusals = RefusalLog()
        #: The last scan, with the candidates that follow from it.
        self._survey: tuple[Scan, list[Candidate]] | None = None

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver; without a whitelist, nothing is read or offered."""
        if not self._entries:
            return []
        candidates = self._candidates(scan)
        self._refusals.log(
            (candidate.key, "the whitelist", candidate.reason)
            for candidate in candidates
            if candidate.whitelisted and candidate.reason
        )
        devices = []
        for candidate in candidates:
            function = candidate.function
            if function is not None and candidate.reason is None:
                offered = device(
                    function,
                    self._node,
                    self._names,
                    candidate.network,
                    entry=entry_of(self._catalogue, function),
                    clean=host_clean(self._clean, cleanable=bool(candidate.steps)),
                )
                # A function that cannot be read has just been removed.
                with contextlib.suppress(exception.HostError):
                    devices.append(scan.with_facts(offered, function))
        return devices

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all PCI functions of the host; those that are not offered have a reason."""
        return [
            hardware(candidate, self._names, self._catalogue)
            for candidate in self._candidates(scan)
        ]

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """See Driver; the functions that the whitelist names."""
        return {
            candidate.function.address
            for candidate in self._candidates(scan)
            if candidate.whitelisted and candidate.function is not None
        }

    def backends(self, scan: Scan) -> list[Backend]:
        """Return the PCI bus as one backend; its services are the device types on the whitelist.

        The backend is STOPPED when the bus has no function that the whitelist names.
        """
        types: Counter[str] = Counter()
        if self._entries:
            types.update(
                entry_of(self._catalogue, candidate.function).type.value
                for candidate in self._candidates(scan)
                if candidate.whitelisted and candidate.function is not None
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

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; a reset of the function, and the erasure of an NVMe disk."""
        candidates = self._find(Scan(self.host, all_managed=True), self._entries)
        for candidate in candidates:
            if candidate.key == task.device_key and candidate.function is not None:
                cleaner = FunctionCleaner(
                    *(self.host, self.name, candidate.function.address), erasing=self._erasing
                )
                return cleaner.steps(candidate.steps)
        reason = f"{task.device_key} is not on the bus, or does not answer"
        raise exception.DriverFailed(driver=self.name, verb="clean_steps", reason=reason)

    def lists(self, entry: str) -> bool:
        """Return whether one entry of a whitelist, as JSON, names a function of this host.

        Raises exception.ConfigError for an entry that is not valid.
        """
        candidates = self._find(Scan(self.host), whitelist.parse([entry]))
        return any(candidate.whitelisted for candidate in candidates)

    def _candidates(self, scan: Scan) -> list[Candidate]:
        """Return a candidate for every function of the scan; computed once for each scan."""
        survey = self._survey
        if survey is None or survey[0] is not scan:
            survey = self._survey = scan, self._find(scan, self._entries)
            ids = [(function.vendor, function.product) for function in scan.functions.values()]
            self._names = self._name_cache.lookup(self.host, ids)
        return survey[1]

    def _find(self, scan: Scan, entries: Sequence[whitelist.Entry]) -> list[Candidate]:
        """Return a candidate for every function of the scan, ordered by address."""
        interfaces = {
            interface.name: addresses[-1]
            for interface in scan.snapshot.network.interfaces
            if (addresses := addresses_in_path(interface.path))
        }
        candidates = [
            self._candidate(scan, function, entries, interfaces)
            for function in scan.functions.values()
        ]
        candidates += [Candidate(name, None, reason) for name, reason in scan.unreadable.items()]
        return sorted(candidates, key=lambda candidate: candidate.key)

    def _candidate(
        self,
        scan: Scan,
        function: PciFunction,
        entries: Sequence[whitelist.Entry],
        interfaces: Mapping[str, PciAddress],
    ) -> Candidate:
        """Return one function with the reason for which it is not offered.

        ``interfaces`` maps each network interface to its function.
        """
        managed = scan.is_managed(deployable_name(self._node, function.address))
        matching = [
            entry for entry in entries if entry.matches(function, interfaces, managed=managed)
        ]
        reason = None
        forced = any(entry.force for entry in matching)
        if not forced or self._force_refusal is not None:
            reason = (
                scan.refusal(
                    function,
                    managed=managed,
                    probe=bool(matching) and function.address not in self._erasing,
                )
                or self._catalogue.platform_reason(
                    function.vendor,
                    function.product,
                    function.class_code,
                    subsystem=function.subsystem,
                )
                or (None if matching else "not on the whitelist")
            )
            if forced and reason is not None:
                reason += (
                    "; force has no effect, because the whitelist must be in configuration files "
                    f"that only root can change{self._force_refusal}"
                )
        network = whitelist.network_of(matching, function, interfaces)
        steps: tuple[str, ...] = ()
        if matching and not forced:
            # The check that nobody uses a function says nothing about one that is forced.
            steps = function_cleaning.step_names(self.host, scan, function)
        return Candidate(str(function.address), function, reason, bool(matching), network, steps)


def deployable_name(node: str, address: PciAddress) -> str:
    """Return the name of a function's provider in Placement.

    The format must not change, because existing allocations refer to the name.
    """
    return f"{node}_{address}"


def network_trait(network: str) -> str:
    """Return the trait with which a device profile requests a function on a physical network."""
    return "CUSTOM_" + re.sub(r"[^A-Z0-9_]", "_", network.upper())


def entry_of(catalogue: Catalogue, function: PciFunction) -> Entry:
    """Return the entry of a function in the device catalogue."""
    return catalogue.entry(
        function.vendor, function.product, function.class_code, subsystem=function.subsystem
    )


def device(
    function: PciFunction,
    node: str,
    names: pci_ids.Names,
    network: str | None = None,
    *,
    entry: Entry,
    clean: HostClean | None = None,
) -> Device:
    """Return a function as a device with one deployable and one handle."""
    address = function.address
    # The rows of the existing service have the keys in this order.
    info = dict(sorted(address.info().items()))
    vendor = _VENDOR_WORDS.get(function.vendor)
    traits = (
        "OWNER_CYBORG",
        *([f"CUSTOM_PCI_{vendor}"] if vendor else []),
        f"CUSTOM_PCI_PRODUCT_ID_{function.product:04X}",
        *([network_trait(network)] if network else []),
    )
    # Nova needs the network for a port of Neutron, and otherwise ignores it.
    handle_info = info | {"physical_network": network} if network else info
    deployable = Deployable(
        name=deployable_name(node, address),
        resource_class=_RESOURCE_CLASS,
        driver_name=vendor or f"{function.vendor:04X}",
        handles=(AttachHandle(str(address), AttachType.PCI, handle_info),),
        traits=traits,
        attributes=(
            Attribute("rc", _RESOURCE_CLASS),
            *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
        ),
        clean=clean,
    )
    return Device(
        key=str(address),
        type=entry.type,
        vendor=f"{function.vendor:04x}",
        model=names.product(function.vendor, function.product, entry.description.model),
        control_path=info,
        deployables=(deployable,),
        std_board_info={"product_id": f"{function.product:04x}", "controller": None},
        vendor_board_info="miss_vb_info",
    )


def hardware(candidate: Candidate, names: pci_ids.Names, catalogue: Catalogue) -> Hardware:
    """Return a candidate as an entry of the host's hardware inventory."""
    function = candidate.function
    if function is None:
        return Hardware(
            key=candidate.key,
            kind="unknown",
            vendor="unknown",
            model="unknown",
            offered=False,
            reason=candidate.reason,
        )
    description = entry_of(catalogue, function).description
    return Hardware(
        key=candidate.key,
        kind=description.kind or pci_ids.kind(function.class_code),
        vendor=names.vendor(function.vendor),
        model=names.product(function.vendor, function.product, description.model),
        offered=candidate.reason is None,
        reason=candidate.reason,
        capability={
            "pci_class": f"{function.class_code:06x}",
            **({"virtual_functions": function.vfs} if function.vfs else {}),
            **({"clean": list(candidate.steps)} if candidate.whitelisted else {}),
        },
    )

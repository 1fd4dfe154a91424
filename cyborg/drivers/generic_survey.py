# SPDX-License-Identifier: Apache-2.0
"""Find the devices of the generic_driver's backends in a scan of the host.

The ownership check is that of the pci_driver: a function that the host or another service uses is
not offered, whatever the configuration says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cyborg import exception
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_match import ClassMembers
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType, Device
from cyborg.model.pci import PciAddress


@dataclass(frozen=True)
class Candidate:
    """One device of a backend; ``reason`` says why it is not offered, None when it is.

    ``function`` is None for a device that is declared, absent or cannot be parsed. ``created`` is
    the device that an operator created, None for a discovered one. ``units`` is the number of
    mediated devices that the card can have, None where the configuration alone decides.
    """

    address: PciAddress
    backend: GenericBackend
    function: PciFunction | None = None
    reason: str | None = None
    created: Device | None = None
    units: int | None = None

    @property
    def handles(self) -> tuple[AttachHandle, ...]:
        """Return the attach handles of the device."""
        if self.created is not None:
            return tuple(
                handle for deployable in self.created.deployables for handle in deployable.handles
            )
        return tuple(self.backend.handles(self.address))[: self.units]


@dataclass(frozen=True)
class HostState:
    """The state of one host at one moment.

    ``created`` maps keys to the devices that operators created.
    """

    node: str
    scan: Scan
    members: ClassMembers
    catalogue: Catalogue
    created: Mapping[str, Device] = field(default_factory=dict)

    def candidate(
        self, function: PciFunction, backend: GenericBackend, created: Device | None = None
    ) -> Candidate:
        """Return a function of a backend with the number of its units, or the reason for none."""
        managed = self.scan.is_managed(deployable_name(self.node, function.address))
        candidate = Candidate(function.address, backend, function, created=created)
        whole = backend.attach_type is AttachType.PCI
        reason = self.scan.refusal(function, managed=managed, whole=whole)
        selector = backend.selector
        if reason is None and not (selector.ids or selector.addresses or selector.fixed):
            # A class of functions also has those that only the host can use.
            reason = self.catalogue.platform_reason(
                function.vendor,
                function.product,
                function.class_code,
                subsystem=function.subsystem,
            )
        if reason is None and backend.mdev_type is not None:
            try:
                types = self.scan.mdev_types(function.address)
            except exception.HostError as error:
                return replace(candidate, reason=str(error))
            free, made = types.get(backend.mdev_type, (0, 0))
            # Those of a card that the conductor does not keep were not made for this service.
            units = min(backend.units, free + made if managed else free)
            candidate = replace(candidate, units=units)
            if backend.mdev_type not in types:
                reason = f"it has no type {backend.mdev_type}, but {', '.join(types) or 'none'}"
            elif not units:
                reason = f"it has no free mediated device of type {backend.mdev_type}"
        return replace(candidate, reason=reason)


def find_candidates(state: HostState, backends: Sequence[GenericBackend]) -> list[Candidate]:
    """Return all devices of the backends, ordered by key."""
    fixed = [
        Candidate(address, backend) for backend in backends for address in backend.selector.fixed
    ]
    candidates: dict[PciAddress, Candidate] = {}
    for candidate in (
        *_created(state, backends),
        *(candidate for candidate in fixed if candidate.backend.is_declared),
        *_present(state, backends),
        # Earlier candidates have precedence: these were not found.
        *(replace(candidate, reason="it is not on the bus") for candidate in fixed),
    ):
        candidates.setdefault(candidate.address, candidate)
    return sorted(candidates.values(), key=lambda candidate: str(candidate.address))


def _created(state: HostState, backends: Sequence[GenericBackend]) -> Iterator[Candidate]:
    """Yield the devices that operators created on existing backends."""
    by_name = {backend.name: backend for backend in backends}
    for key, device in sorted(state.created.items()):
        backend, address = by_name.get(device.backend or ""), parse_name(key)
        if backend is None or address is None:
            continue
        candidate = Candidate(address, backend, created=device)
        types = {handle.type for handle in candidate.handles}
        if backend.creates is None or types != {backend.creates}:
            offered = backend.creates or "nothing that could be created"
            yield replace(candidate, reason=f"backend {backend.name} offers {offered}")
        elif backend.creates is AttachType.TEST_PCI:
            yield candidate
        elif address in state.scan.functions:
            yield state.candidate(state.scan.functions[address], backend, device)
        else:
            reason = state.scan.unreadable.get(key, "it is not on the bus")
            yield replace(candidate, reason=reason)


def _present(state: HostState, backends: Sequence[GenericBackend]) -> Iterator[Candidate]:
    if all(backend.is_declared for backend in backends):
        return
    # A class entry disappears when a guest gets the device, so backends without one come first.
    ordered = sorted(backends, key=lambda backend: backend.selector.sysfs_class is not None)
    for function in state.scan.functions.values():
        managed = state.scan.is_managed(deployable_name(state.node, function.address))
        for backend in ordered:
            if backend.selector.matches(
                function, state.members, managed=managed, subsystem=function.subsystem
            ):
                yield state.candidate(function, backend)
                break
    for name, reason in state.scan.unreadable.items():
        # A function that cannot be parsed is listed if a backend names its address.
        address = parse_name(name)
        if address is not None:
            for backend in ordered:
                if backend.selector.names(address):
                    yield Candidate(address, backend, reason=reason)
                    break

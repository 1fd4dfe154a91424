# SPDX-License-Identifier: Apache-2.0
"""Find the devices of the generic_driver's backends in a snapshot of the host; pure.

The ownership check is that of the pci_driver: a function that the host or another service uses is
not offered, whatever the configuration says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cyborg.drivers import ownership
from cyborg.drivers.base import DriverContext
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_match import ClassMembers
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.pci_function import PciFunction, parse_function, parse_name
from cyborg.drivers.pci_scan import RawFunction, Snapshot
from cyborg.model.device import AttachHandle, AttachType, Device
from cyborg.model.pci import PciAddress


@dataclass(frozen=True)
class Candidate:
    """One device of a backend; ``reason`` says why it is not offered, None when it is.

    ``function`` is None for a device that is declared, absent or cannot be parsed. ``created`` is
    the device that an operator created, None for a discovered one.
    """

    address: PciAddress
    backend: GenericBackend
    function: PciFunction | None = None
    reason: str | None = None
    created: Device | None = None

    @property
    def handles(self) -> tuple[AttachHandle, ...]:
        """Return the attach handles of the device."""
        if self.created is not None:
            return tuple(
                handle for deployable in self.created.deployables for handle in deployable.handles
            )
        return tuple(self.backend.handles(self.address))


@dataclass(frozen=True)
class HostState:
    """The state of one host at one moment.

    With ``managed``, every function counts as one that the conductor keeps; methods that work on
    one requested device use that. ``created`` maps keys to the devices that operators created.
    """

    node: str
    snapshot: Snapshot
    members: ClassMembers
    context: DriverContext
    managed: bool = False
    created: Mapping[str, Device] = field(default_factory=dict)


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
    by_address = {parse_name(raw.name): raw for raw in state.snapshot.functions}
    for key, device in sorted(state.created.items()):
        backend, address = by_name.get(device.backend or ""), parse_name(key)
        if backend is None or address is None:
            continue
        candidate = Candidate(address, backend, created=device)
        types = {handle.type for handle in candidate.handles}
        if backend.creates is None or types != {backend.creates}:
            offered = backend.creates or "nothing that could be created"
            yield replace(candidate, reason=f"backend {backend.name} offers {offered}")
            continue
        if backend.creates is AttachType.TEST_PCI:
            yield candidate
            continue
        if address not in by_address:
            yield replace(candidate, reason="it is not on the bus")
            continue
        try:
            function = parse_function(by_address[address])
        except ValueError as error:
            yield replace(candidate, reason=str(error))
            continue
        uses, managed = ownership.host_uses(state.snapshot), _is_managed(state, function)
        reason = ownership.refusal_reason(
            function, uses, state.snapshot.open_vfio, state.context, managed=managed
        )
        yield replace(candidate, function=function, reason=reason)


def _present(state: HostState, backends: Sequence[GenericBackend]) -> Iterator[Candidate]:
    uses = ownership.host_uses(state.snapshot)
    # A class entry disappears when a guest gets the device, so backends without one come first.
    ordered = sorted(backends, key=lambda backend: backend.selector.sysfs_class is not None)
    for raw in state.snapshot.functions:
        try:
            function = parse_function(raw)
        except ValueError as error:
            yield from _unparsable(raw, str(error), ordered)
            continue
        managed = _is_managed(state, function)
        for backend in ordered:
            if backend.selector.matches(function, state.members, managed=managed):
                reason = ownership.refusal_reason(
                    function, uses, state.snapshot.open_vfio, state.context, managed=managed
                )
                yield Candidate(function.address, backend, function, reason)
                break


def _is_managed(state: HostState, function: PciFunction) -> bool:
    name = deployable_name(state.node, function.address)
    return state.managed or name in state.context.managed_deployables


def _unparsable(
    raw: RawFunction, reason: str, backends: Sequence[GenericBackend]
) -> Iterator[Candidate]:
    """Yield a function that cannot be parsed, if a backend names its address."""
    address = parse_name(raw.name)
    if address is not None:
        for backend in backends:
            if backend.selector.names(address):
                yield Candidate(address, backend, reason=reason)
                break

# SPDX-License-Identifier: Apache-2.0
"""Find the devices of the generic_driver's backends in a scan of the host.

The ownership check is that of the pci_driver: a function that the host or another service uses is
not offered, whatever the configuration says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cyborg import exception
from cyborg.drivers import ownership, vf_layout
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.device_options import UnitScope
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_match import ClassMembers
from cyborg.drivers.local_command import placeholder_values
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.scan import Scan
from cyborg.drivers.vf_layout import Division
from cyborg.model.device import AttachHandle, AttachType, Device
from cyborg.model.pci import PciAddress


@dataclass(frozen=True)
class Candidate:
    """One device of a backend; ``reason`` says why it is not offered, None when it is.

    ``function`` is None for a device that is declared, absent or cannot be parsed. ``created`` is
    the device that an operator created, None for a discovered one. ``units`` is the number of
    mediated devices that the card can have, None where the configuration alone decides.
    ``members`` are the functions that guests get together, in order, empty where a guest gets one
    function; ``address`` is then the first of them. ``division`` is the layout of a card whose
    backend requests one.
    """

    address: PciAddress
    backend: GenericBackend
    function: PciFunction | None = None
    reason: str | None = None
    created: Device | None = None
    units: int | None = None
    members: tuple[PciAddress, ...] = ()
    division: Division | None = None

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """Return the addresses of the functions of the device."""
        return self.members or (self.address,)

    @property
    def values(self) -> list[dict[str, str]]:
        """Return the placeholder values of each function, for the commands of the device."""
        return [placeholder_values(str(address)) for address in self.functions]

    @property
    def capability(self) -> dict[str, Any]:
        """Return what the list of hardware shows about the device."""
        members = [str(address) for address in self.members]
        return {
            **({"functions": members} if members else {}),
            **({"layout": self.division.facts} if self.division else {}),
            **self.backend.capability,
        }

    @property
    def is_divided(self) -> bool:
        """Return whether the device is a card that has, or is to have, virtual functions."""
        return self.division is not None and bool(self.division.desired or self.division.current)

    def address_of(self, handle_key: str) -> str:
        """Return the address of the function that a unit is, or is a part of."""
        return handle_key if self.members else str(self.address)

    @property
    def handles(self) -> tuple[AttachHandle, ...]:
        """Return the attach handles of the device."""
        if self.created is not None:
            return tuple(
                handle for deployable in self.created.deployables for handle in deployable.handles
            )
        handles = (handle for address in self.functions for handle in self.backend.handles(address))
        return tuple(handles)[: self.units]


@dataclass(frozen=True)
class HostState:
    """The state of one host at one moment.

    ``created`` maps keys to the devices that operators created, ``failures`` the keys of cards that
    could not be divided to the reason. ``erasing`` are the functions whose disks the agent erases
    now.
    """

    node: str
    scan: Scan
    members: ClassMembers
    catalogue: Catalogue
    created: Mapping[str, Device] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    erasing: frozenset[PciAddress] = frozenset()

    def candidate(
        self, function: PciFunction, backend: GenericBackend, created: Device | None = None
    ) -> Candidate:
        """Return a function of a backend with the number of its units, or the reason for none."""
        managed = self.scan.is_managed(deployable_name(self.node, function.address))
        candidate = Candidate(function.address, backend, function, created=created)
        reason = self.refusal(function, backend, managed=managed)
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

    def refusal(
        self,
        function: PciFunction,
        backend: GenericBackend,
        *,
        managed: bool,
        together: frozenset[PciAddress] = frozenset(),
    ) -> str | None:
        """Return why a function of a backend is not offered; the arguments are those of Scan."""
        whole = backend.attach_type is AttachType.PCI
        reason = self.scan.refusal(
            function,
            managed=managed,
            whole=whole,
            probe=function.address not in self.erasing,
            together=together,
        )
        selector = backend.selector
        if reason is None and not (selector.ids or selector.addresses or selector.fixed):
            # A class of functions also has those that only the host can use.
            reason = self.catalogue.platform_reason(
                function.vendor,
                function.product,
                function.class_code,
                subsystem=function.subsystem,
            )
        return reason

    def foreign_kind(self, function: PciFunction, backend: GenericBackend) -> str | None:
        """Return why an operator must not add the function to the backend, None if it may be."""
        if backend.selector.admits(function, self.members, function.subsystem):
            return None
        return (
            f"backend {backend.name} selects no devices of its kind; only the configuration files "
            "of the host can change this"
        )

    def judged(self, candidate: Candidate) -> Candidate:
        """Return a device of type TEST_PCI with the reason why it is not offered.

        No guest gets its units, but the commands of the backend run on them. So the functions that
        the host really has at their addresses must not be in use.
        """
        backend = candidate.backend
        units = [parse_name(handle.key) for handle in candidate.handles]
        for address in dict.fromkeys((candidate.address, *units)):
            function = None if address is None else self.scan.functions.get(address)
            if function is None:
                continue
            managed = self.scan.is_managed(deployable_name(self.node, function.address))
            reason = self.refusal(function, backend, managed=managed)
            if candidate.created is not None:
                reason = reason or self.foreign_kind(function, backend)
            if reason is not None:
                return replace(candidate, reason=f"{function.address}: {reason}")
        return candidate

    def layout_reason(self, division: Division) -> str | None:
        """Return why a card is not offered whole before it has its layout, None when it has it."""
        if not division.pending:
            return None
        if division.refusal is not None:
            return f"it cannot be {division.goal}: {division.refusal}"
        kept = self.scan.managed_deployables & division.deployables(self.node)
        if kept:
            return (
                f"it is {division.goal} as soon as the conductor keeps no device of it; now it "
                f"keeps {', '.join(sorted(kept))}"
            )
        failure = self.failures.get(str(division.card.address))
        if failure is not None:
            return f"it could not be {division.goal}: {failure}"
        return f"it is being {division.goal}"

    def unit(self, members: Sequence[Candidate]) -> Candidate:
        """Return the functions that guests get together as one device, or the reason for none.

        The first function names the device, so the conductor keeps all of them if it keeps a
        deployable of this name. The unit has a reason as soon as one function has one.
        """
        addresses = tuple(member.address for member in members)
        return replace(
            members[0], members=addresses, reason=self._unit_refusal(members, frozenset(addresses))
        )

    def _unit_refusal(
        self, members: Sequence[Candidate], addresses: frozenset[PciAddress]
    ) -> str | None:
        backend = members[0].backend
        size, count = backend.group_size, len(members)
        if count < size:
            return f"{count} of {size} functions are there; see option unit_functions"
        if count > size:
            return f"{count} functions match, and a unit has {size}; see option unit_functions"
        managed = self.scan.is_managed(deployable_name(self.node, members[0].address))
        for member in members:
            # The conductor may keep a function from the time before it was a part of the unit: then
            # a guest may have it alone.
            alone = member is not members[0] and (
                deployable_name(self.node, member.address) in self.scan.managed_deployables
            )
            reason = member.reason
            if reason is None and member.function is not None:
                reason = self.refusal(
                    member.function, backend, managed=managed and not alone, together=addresses
                )
            if reason == ownership.NO_IOMMU:
                # It concerns all functions of the host.
                return reason
            if reason is not None:
                whole = "card" if backend.unit is UnitScope.CARD else "unit"
                return f"function {member.address} of the {whole}: {reason}"
        return None


def find_candidates(state: HostState, backends: Sequence[GenericBackend]) -> list[Candidate]:
    """Return all devices of the backends, ordered by key."""
    fixed = [
        Candidate(address, backend) for backend in backends for address in backend.selector.fixed
    ]
    candidates: dict[PciAddress, Candidate] = {}
    for candidate in (
        *_created(state, backends),
        *(state.judged(candidate) for candidate in fixed if candidate.backend.is_declared),
        *_present(state, backends),
        # Earlier candidates have precedence: these were not found.
        *(replace(candidate, reason="it is not on the bus") for candidate in fixed),
    ):
        candidates.setdefault(candidate.address, candidate)
    divided = _with_layouts(state, candidates)
    by_address = sorted(divided, key=lambda candidate: str(candidate.address))
    return sorted(_in_units(state, by_address), key=lambda candidate: str(candidate.address))


def _with_layouts(
    state: HostState, candidates: Mapping[PciAddress, Candidate]
) -> Iterator[Candidate]:
    """Yield the candidates; cards that do not have the requested layout, and their parts, are out.

    A part that the conductor keeps stays, because a guest may have it.
    """
    divisions: dict[PciAddress, Division] = {}
    for address, candidate in candidates.items():
        function, desired = candidate.function, candidate.backend.vfs
        if (
            desired is not None
            and candidate.created is None
            and function is not None
            and function.parent is None
        ):
            divisions[address] = vf_layout.read(state.scan, function, desired)
    for address, candidate in candidates.items():
        parent = candidate.function.parent if candidate.function is not None else None
        if address in divisions:
            division = divisions[address]
            reason = state.layout_reason(division) or candidate.reason
            yield replace(candidate, division=division, reason=reason)
        elif parent is None or candidate.created is not None:
            yield candidate
        else:
            reason = candidate.reason
            if candidate.backend.vfs is not None and parent not in divisions:
                reason = (
                    "it is a virtual function, and option layout divides cards; no section with "
                    f"this option selects its card {parent}"
                )
            elif (
                parent in divisions
                and divisions[parent].pending
                and not state.scan.is_managed(deployable_name(state.node, address))
            ):
                reason = f"its card {parent} does not have the layout of its section"
            yield replace(candidate, reason=reason)


def _in_units(state: HostState, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates, those that guests get together as one; they are in order."""
    units: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in candidates:
        address, backend = candidate.address, candidate.backend
        if backend.unit is UnitScope.FUNCTION:
            yield candidate
        elif backend.unit is UnitScope.ALL:
            units.setdefault((backend.name,), []).append(candidate)
        elif candidate.function is not None and candidate.function.parent is not None:
            # Virtual functions of one card have several device numbers.
            reason = "it is a virtual function, and no part of a unit CARD; use unit FUNCTION"
            yield replace(candidate, reason=reason)
        else:
            card = backend.name, address.domain, address.bus, address.device
            units.setdefault(card, []).append(candidate)
    for members in units.values():
        yield state.unit(members)


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
            yield state.judged(candidate)
        elif address in state.scan.functions:
            function = state.scan.functions[address]
            present = state.candidate(function, backend, device)
            yield replace(present, reason=present.reason or state.foreign_kind(function, backend))
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
                if backend.unit is UnitScope.FUNCTION:
                    candidate = state.candidate(function, backend)
                    if candidate.reason is None and backend.attach_type is AttachType.TEST_PCI:
                        candidate = state.judged(candidate)
                    yield candidate
                else:
                    # The unit has the reason, see HostState.unit.
                    yield Candidate(function.address, backend, function)
                break
    for name, reason in state.scan.unreadable.items():
        # A function that cannot be parsed is listed if a backend names its address.
        address = parse_name(name)
        if address is not None:
            for backend in ordered:
                if backend.selector.names(address):
                    yield Candidate(address, backend, reason=reason)
                    break

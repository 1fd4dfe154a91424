# SPDX-License-Identifier: Apache-2.0
"""Judge a host's functions for the generic_driver: whose each is, and whether it is offered; pure.

The guard is that of the pci_driver: what the host needs, or others hold, is not offered, whatever
the configuration says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cyborg.drivers import ownership
from cyborg.drivers.base import DriverContext
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_match import Members
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.pci_function import PciFunction, parse_function, parse_name
from cyborg.drivers.pci_scan import RawFunction, Snapshot
from cyborg.model.device import AttachHandle, AttachType, Device
from cyborg.model.pci import PciAddress


@dataclass(frozen=True)
class Finding:
    """One device of a backend; ``reason`` is a clause why it is not offered, None if it is.

    ``function`` is None for what is granted, not there or not to be understood. ``made`` is what an
    operator created, None for what was found.
    """

    address: PciAddress
    backend: GenericBackend
    function: PciFunction | None = None
    reason: str | None = None
    made: Device | None = None

    @property
    def handles(self) -> tuple[AttachHandle, ...]:
        """Its units."""
        if self.made is not None:
            return tuple(unit for one in self.made.deployables for unit in one.handles)
        return tuple(self.backend.handles(self.address))


@dataclass(frozen=True)
class Site:
    """What is known of one host at one moment.

    With ``ours`` every function counts as given away by us, which is how the verbs look at one
    that they are asked about. ``made`` is what operators created, by key.
    """

    node: str
    snapshot: Snapshot
    members: Members
    context: DriverContext
    ours: bool = False
    made: Mapping[str, Device] = field(default_factory=dict)


def survey(site: Site, backends: Sequence[GenericBackend]) -> list[Finding]:
    """Everything that belongs to the backends, in the order of the keys."""
    found: dict[PciAddress, Finding] = {}
    places = (*_made(site, backends), *_granted(backends), *_present(site, backends))
    for one in (*places, *_absent(backends)):
        found.setdefault(one.address, one)
    return sorted(found.values(), key=lambda one: str(one.address))


def _made(site: Site, backends: Sequence[GenericBackend]) -> Iterator[Finding]:
    """What operators created on backends that there are, whatever else they would be."""
    named = {one.name: one for one in backends}
    there = {parse_name(one.name): one for one in site.snapshot.functions}
    for key, device in sorted(site.made.items()):
        backend, address = named.get(device.backend or ""), parse_name(key)
        if backend is None or address is None:
            continue
        finding = Finding(address, backend, made=device)
        kinds = {one.type for one in finding.handles}
        if backend.creates is None or kinds != {backend.creates}:
            kind = backend.creates or "nothing that could be created"
            yield replace(finding, reason=f"backend {backend.name} offers {kind}")
        elif backend.creates is AttachType.TEST_PCI:
            yield finding
        else:
            yield _judged(site, finding, there.get(address))


def _judged(site: Site, finding: Finding, raw: RawFunction | None) -> Finding:
    """Whether a function that an operator wants to be offered can be; the guard is the same."""
    if raw is None:
        return replace(finding, reason="it is not on the bus")
    try:
        function = parse_function(raw)
    except ValueError as error:
        return replace(finding, reason=str(error))
    ours = _is_ours(site, function)
    busy = ownership.host_uses(site.snapshot)
    reason = ownership.refusal_reason(
        function, busy, site.snapshot.open_vfio, site.context, ours=ours
    )
    return replace(finding, function=function, reason=reason)


def _granted(backends: Sequence[GenericBackend]) -> Iterator[Finding]:
    for backend in backends:
        if backend.is_granted:
            yield from (Finding(address, backend) for address in backend.selector.listed)


def _absent(backends: Sequence[GenericBackend]) -> Iterator[Finding]:
    """What would be listed only; what is there was found before."""
    for backend in backends:
        for address in backend.selector.listed:
            yield Finding(address, backend, reason="it is not on the bus")


def _present(site: Site, backends: Sequence[GenericBackend]) -> Iterator[Finding]:
    busy = ownership.host_uses(site.snapshot)
    # A class entry goes when a guest gets the device: who is known by more comes first.
    ordered = sorted(backends, key=lambda one: one.selector.sysfs_class is not None)
    for raw in site.snapshot.functions:
        try:
            function = parse_function(raw)
        except ValueError as error:
            yield from _broken(raw, str(error), ordered)
            continue
        ours = _is_ours(site, function)
        for backend in ordered:
            if backend.selector.matches(function, site.members, ours=ours):
                reason = ownership.refusal_reason(
                    function, busy, site.snapshot.open_vfio, site.context, ours=ours
                )
                yield Finding(function.address, backend, function, reason)
                break


def _is_ours(site: Site, function: PciFunction) -> bool:
    kept = site.context.managed_deployables
    return site.ours or deployable_name(site.node, function.address) in kept


def _broken(raw: RawFunction, reason: str, backends: Sequence[GenericBackend]) -> Iterator[Finding]:
    """A function that cannot be understood, if its address alone makes it one of a backend's."""
    address = parse_name(raw.name)
    if address is not None:
        for backend in backends:
            if backend.selector.names(address):
                yield Finding(address, backend, reason=reason)
                break

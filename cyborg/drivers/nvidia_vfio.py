# SPDX-License-Identifier: Apache-2.0
"""vGPUs of NVIDIA through vendor-specific VFIO: the types of virtual functions.

A virtual function has at most one vGPU, whose type is written to a file of the function; 0 destroys
it. The host keeps no type over a boot, or when its driver is loaded again. The vGPUs of one card
share it, or with MIG the GPU instances of a profile.

Sources: "Virtual GPU Software User Guide" of NVIDIA, release 17, about KVM with vendor-specific
VFIO; nvml.h.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cyborg import exception
from cyborg.drivers import pci_scan
from cyborg.drivers.host import Host
from cyborg.drivers.nvml import Gpu, VgpuType
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan

#: What the file of the type reads without a vGPU.
NO_VGPU: Final = "0"
#: The file of a virtual function with the number of its type.
CURRENT: Final = "nvidia/current_vgpu_type"
#: The types that the card has room for; what its other functions have shortens the list.
_CREATABLE: Final = "nvidia/creatable_vgpu_types"
#: A line of the list: number and name; the heading has no number.
_LINE = re.compile(r"\s*([0-9]+)\s*:\s*(\S.*?)\s*")
#: The names of types in the configuration, those of mediated devices.
_PREFIX: Final = "nvidia-"
_NUMBER = re.compile(rf"{_PREFIX}([1-9][0-9]{{0,8}})")
#: The pool of the vGPUs that need no MIG.
_WHOLE: Final = "gpu"


@dataclass(frozen=True)
class Capacity:
    """What the vGPUs of a card share: the pools of the device, and the cost of a unit by type."""

    pools: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def current_type(scan: Scan, function: PciFunction) -> str | None:
    """Return the number of the vGPU type of a virtual function, "0" for none.

    None: the driver of the host has no vendor-specific VFIO, or the file cannot be read.
    """
    try:
        return scan.attribute(function.address, CURRENT)
    except exception.HostError:
        return None


def creatable_types(scan: Scan, function: PciFunction) -> Mapping[str, str]:
    """Return the vGPU types that a virtual function can have now: number → name."""
    try:
        return _parsed(scan.attribute(function.address, _CREATABLE))
    except exception.HostError:
        return {}


def number_of(kind: str) -> str | None:
    """Return the number of a type in the configuration, None if its name has none."""
    match = _NUMBER.fullmatch(kind)
    return match[1] if match else None


def type_of(gpu: Gpu, kind: str) -> VgpuType | None:
    """Return what NVML says about a type of the configuration, None if the GPU lacks it."""
    return next((vgpu_type for vgpu_type in gpu.vgpu_types if _name(vgpu_type) == kind), None)


def profile_of(name: str) -> str:
    """Return the profile in the name of a type: ``NVIDIA L40S-8Q`` gives ``L40S-8Q``."""
    return name.partition(" ")[2] or name


def refusal(gpu: Gpu, kind: str, kinds: Collection[str]) -> str | None:
    """Return why a GPU can have no vGPU of a type, as a clause; None if it can.

    ``kinds`` are the types that the configuration gives to its functions.
    """
    if not gpu.vgpu_types:
        return (
            "NVML does not tell the types of vGPU of its GPU; install the extra nvidia, and the "
            "vGPU software on the host"
        )
    vgpu_type = type_of(gpu, kind)
    if vgpu_type is None:
        names = ", ".join(f"{_name(other)} ({other.name})" for other in gpu.vgpu_types)
        return f"its GPU has no vGPU type {kind}, but {names}"
    name, profile = f"{kind} ({vgpu_type.name})", vgpu_type.profile
    if (profile is None) is bool(gpu.mig):
        return f"{name} needs MIG mode {'off' if gpu.mig else 'on'}, unlike that of its GPU"
    if profile is not None and profile not in gpu.mig_instances:
        return f"its GPU has no MIG instance {profile}, which {name} needs"
    others = filter(None, (type_of(gpu, other) for other in kinds))
    sizes = {other.memory for other in others if other.profile == profile}
    if len(sizes) > 1 and profile is None and not gpu.vgpu_mixed:
        return (
            "the sections name types of several sizes for its GPU, whose vGPUs must have one size; "
            "name types of one size, or set the mode for several with nvidia-smi vgpu -shm 1"
        )
    return None


def capacity(
    gpu: Gpu,
    kinds: Collection[str],
    *,
    own: Sequence[str],
    foreign: Sequence[str],
    full: Collection[str],
) -> Capacity:
    """Return the capacity of a GPU for types that it can have.

    ``own`` and ``foreign`` are the numbers of the types that functions have now, set by this
    service or by others; what others have is not in the pools. ``full`` are the types of which the
    driver of the host makes no further vGPU. If the amounts do not say why, there is none.

    A pool counts parts of a GPU, or of all its instances of a profile: as many parts for each as
    every type that it knows divides without a remainder, so they do not depend on ``kinds``.
    """
    types = {kind: vgpu_type for kind in kinds if (vgpu_type := type_of(gpu, kind))}
    pools: dict[str, int] = {}
    costs: dict[str, dict[str, int]] = {}
    for profile in dict.fromkeys(vgpu_type.profile for vgpu_type in types.values()):
        group = [vgpu_type for vgpu_type in gpu.vgpu_types if vgpu_type.profile == profile]
        instances = 1 if profile is None else gpu.mig_instances.count(profile)
        parts = math.lcm(*(vgpu_type.most for vgpu_type in group))
        total = parts * instances
        # Types of another profile take nothing; one that NVML does not name may take everything.
        amounts = {str(vgpu_type.number): 0 for vgpu_type in gpu.vgpu_types}
        amounts |= {str(vgpu_type.number): parts // vgpu_type.most for vgpu_type in group}
        left = max(0, total - sum(amounts.get(number, total) for number in foreign))
        room = left - sum(amounts.get(number, total) for number in own)
        pool = _WHOLE if profile is None else f"MIG {profile}"
        pools[pool] = left
        for kind in [kind for kind, vgpu_type in types.items() if vgpu_type in group]:
            number, most = str(types[kind].number), types[kind].most * instances
            costs[kind] = {pool: amounts[number], kind: 1}
            unexplained = kind in full and room >= amounts[number]
            pools[kind] = own.count(number) if unexplained else most
    return Capacity(pools, costs)


def assign(
    host: Host, function: PciFunction, kind: str, *, refused: Callable[[], str | None]
) -> None:
    """Give a virtual function a vGPU of a type; one that has it is not changed.

    ``refused`` is ``refusal`` for the function, which is asked before it is changed. Raises
    ValueError with a clause if the function cannot have the vGPU, and exception.HostError if the
    driver of the host refuses it.
    """
    number, current = number_of(kind), _read(host, function)
    if current == number:
        return
    if current is None:
        raise ValueError(f"the driver of the host shows no {CURRENT} of it")
    if current != NO_VGPU:
        raise ValueError(f"it has a vGPU of type {_PREFIX}{current[:20]}, not of {kind}")
    if (reason := refused()) is not None:
        raise ValueError(reason)
    creatable = _parsed(pci_scan.attribute(host, str(function.address), _CREATABLE))
    if number is None or number not in creatable:
        now = ", ".join(f"{_PREFIX}{other}" for other in creatable) or "none"
        raise ValueError(f"its card has no room for a vGPU of {kind} now; it has room for {now}")
    host.privileged.run(actions.SetVgpuType(function.address, int(number)))
    if (after := _read(host, function)) != number:
        raise ValueError(f"its type reads {str(after)[:20]} after {number} was written")


def withdraw(host: Host, function: PciFunction) -> None:
    """Destroy the vGPU of a virtual function, if it has one.

    Raises ValueError with a clause if a process has the function open, or if the vGPU is still
    there, and exception.HostError if the driver of the host refuses.
    """
    if _read(host, function) in {None, NO_VGPU}:
        return
    holders = host.open_files().holders
    for node in pci_scan.vfio_nodes(host, str(function.address), function.group):
        if node in holders:
            raise ValueError(f"its vGPU is held through VFIO by {holders[node]}")
    host.privileged.run(actions.SetVgpuType(function.address, 0))
    if (after := _read(host, function)) != NO_VGPU:
        raise ValueError(f"its type reads {str(after)[:20]} after {NO_VGPU} was written")


def _read(host: Host, function: PciFunction) -> str | None:
    return pci_scan.attribute(host, str(function.address), CURRENT)


def _parsed(text: str | None) -> dict[str, str]:
    lines = map(_LINE.fullmatch, (text or "").splitlines())
    return {match[1]: match[2] for match in lines if match}


def _name(vgpu_type: VgpuType) -> str:
    return f"{_PREFIX}{vgpu_type.number}"

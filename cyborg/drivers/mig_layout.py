# SPDX-License-Identifier: Apache-2.0
"""The MIG layouts of NVIDIA's GPUs: the mode, and the profiles of the instances.

NVML tells the present layout, and the tool of NVIDIA changes it. NVIDIA's driver itself refuses to
destroy an instance that is in use. A GPU instance counts if its compute instance has all of it.

Sources: "Multi-Instance GPU User Guide" of NVIDIA; nvml.h.
"""

import re
from collections.abc import Callable, Mapping

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import vf_layout
from cyborg.drivers.host import Host
from cyborg.drivers.nvml import Gpu
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress

#: The layout of a GPU without MIG mode.
OFF = "mig=off"
_PREFIX, _SEPARATOR, _EMPTY = "mig=", "/", "none"
#: The name of a profile, such as 1g.10gb or 1g.10gb+me.
_PROFILE = re.compile(r"[0-9]g\.[0-9]{1,4}gb(?:[+-][a-z.]{1,16})*")
_MOST = 8


def read_layouts(conf: cfg.ConfigOpts) -> Mapping[PciAddress, str]:
    """Return the layout that the configuration requests for each GPU.

    Raises exception.ConfigError for an entry that is not valid, and for a second one of a GPU.
    """
    layouts: dict[PciAddress, str] = {}
    for entry in conf.gpu_devices.mig_layouts:
        place, _, text = entry.partition("=")
        address = parse_name(place.strip().lower())
        flaw = None
        if address is None:
            flaw = f"{place!r} is not a PCI address with domain, bus, device and function"
        elif address in layouts:
            flaw = f"it has {address} twice"
        else:
            try:
                layouts[address] = _name(parse(f"{_PREFIX}{text.strip()}"))
            except ValueError as error:
                flaw = f"{entry!r}: {error}"
        if flaw is not None:
            raise exception.ConfigError(reason=f"Option [gpu_devices] mig_layouts: {flaw}.")
    return layouts


def parse(layout: str) -> tuple[str, ...] | None:
    """Return the profiles of a layout, None for one without MIG mode.

    Raises ValueError with a clause.
    """
    if layout == OFF:
        return None
    text = layout.removeprefix(_PREFIX)
    profiles = () if text == _EMPTY else tuple(text.split(_SEPARATOR))
    if len(profiles) > _MOST or not all(map(_PROFILE.fullmatch, profiles)):
        raise ValueError(
            f"it is neither off, nor none, nor 1 to {_MOST} profiles such as 1g.10gb/3g.40gb"
        )
    return profiles


def current(gpu: Gpu) -> str | None:
    """Return the layout of a GPU, None if NVML does not tell it."""
    return None if gpu.mig is None else _name(gpu.mig_instances if gpu.mig else None)


def refusal(scan: Scan, card: PciFunction, gpu: Gpu, layout: str) -> str | None:
    """Return a clause that says why a GPU must not get a layout now, None if it may or has it."""
    now = current(gpu)
    if now is None:
        return "NVML does not tell its MIG mode; install the extra nvidia"
    if now == layout:
        return None
    unknown = set(parse(layout) or ()) - gpu.mig_profiles.keys()
    if unknown and gpu.mig_profiles:
        names = ", ".join(gpu.mig_profiles)
        return f"its GPU has no profile {', '.join(sorted(unknown))}, but {names}"
    return vf_layout.use(scan, card, divided=bool(gpu.mig))


def divide(host: Host, card: PciFunction, gpu: Gpu, layout: str, *, ask: Callable[[], Gpu]) -> None:
    """Give a GPU another layout; ``ask`` returns what NVML says about it now.

    Raises ValueError with a clause if the GPU does not have the layout afterwards, and
    exception.HostError if NVIDIA's tool refuses it, for example because an instance is in use.
    """
    profiles, address = parse(layout), card.address
    if gpu.mig and gpu.mig_instances:
        host.privileged.run(actions.SetMigLayout(address, ()))
    if bool(gpu.mig) is (profiles is None):
        host.privileged.run(actions.SetMigMode(address, profiles is not None))
        gpu = ask()
        if bool(gpu.mig) is (profiles is None):
            raise ValueError(
                f"its MIG mode changes with a reset only: run nvidia-smi -i {address} --gpu-reset"
            )
    if profiles:
        lacking = [profile for profile in profiles if profile not in gpu.mig_profiles]
        if lacking:
            raise ValueError(f"NVML does not know the profiles {', '.join(lacking)} of its GPU")
        numbers = tuple(gpu.mig_profiles[profile] for profile in profiles)
        host.privileged.run(actions.SetMigLayout(address, numbers))
    if (after := current(ask())) != layout:
        raise ValueError(f"it has the layout {after or 'unknown'} afterwards")


def _name(profiles: tuple[str, ...] | None) -> str:
    if profiles is None:
        return OFF
    return f"{_PREFIX}{_SEPARATOR.join(sorted(profiles)) or _EMPTY}"

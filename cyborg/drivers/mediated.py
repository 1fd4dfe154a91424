# SPDX-License-Identifier: Apache-2.0
"""Mediated devices of PCI functions: the configured types, attach handles, creation and removal.

Source: Documentation/driver-api/vfio-mediated-device.rst of Linux 6.12.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.card_driver import info_of
from cyborg.drivers.files import is_missing, read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import addresses_in_path, parse_name
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType
from cyborg.model.pci import PciAddress

#: Every parent that has the type, in an option device_addresses.
ANY: str = "*"
_DEVICES = "/sys/bus/mdev/devices"
#: A name of a directory.
_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def read_types(
    conf: cfg.ConfigOpts,
    option: tuple[str, str],
    prefix: str,
    options: Callable[[], list[cfg.Opt]],
) -> tuple[Mapping[PciAddress, str], Collection[str]]:
    """Return the type of each function that the configuration divides, and the types of all others.

    ``option`` is the group and the name of the option that lists the types; each type has a section
    ``prefix`` + type with ``options``, among them device_addresses. The second result has the types
    whose device_addresses is ``*``, in order. Raises exception.ConfigError for a type without
    addresses, and for an address that is not valid or is there twice.
    """
    listing = f"[{option[0]}] {option[1]}"
    types: dict[PciAddress, str] = {}
    others: list[str] = []
    for kind in conf[option[0]][option[1]]:
        if _TYPE.fullmatch(kind) is None:
            raise exception.ConfigError(reason=f"Option {listing}: {kind!r} is not a type.")
        group = f"{prefix}{kind}"
        conf.register_opts(options(), group=group)
        texts = [text.strip().lower() for text in conf[group].device_addresses]
        if not texts:
            reason = f"Option [{group}] device_addresses must be set, because {listing} has {kind}."
            raise exception.ConfigError(reason=reason)
        if texts == [ANY]:
            others.append(kind)
            continue
        for text in texts:
            address = parse_name(text)
            if address is not None and address not in types:
                types[address] = kind
                continue
            flaw = f"{text!r} is not a PCI address with domain, bus, device and function"
            if address is not None:
                flaw = f"{text} is in [{prefix}{types[address]}] already"
            raise exception.ConfigError(reason=f"Option [{group}] device_addresses: {flaw}.")
    return types, others


def handle_key(address: PciAddress, kind: str, number: int) -> str:
    """Return the key of a unit; the conductor keeps it, so the format must not change."""
    return f"{address}/{kind}_{number}"


def type_of(key: str) -> str:
    """Return the type in the key of a unit."""
    return key.partition("/")[2].rpartition("_")[0]


def handles(address: PciAddress, kind: str, numbers: Iterable[int]) -> Iterator[AttachHandle]:
    """Yield the attach handles of the units with these numbers, as Nova and existing rows do."""
    for number in numbers:
        key = handle_key(address, kind, number)
        mark = key.partition("/")[2]
        info = {**info_of(address), "asked_type": kind, "vgpu_mark": mark}
        yield AttachHandle(key, AttachType.MDEV, info)


def made(scan: Scan, address: PciAddress) -> Mapping[str, str]:
    """Return the mediated devices of a function: UUID → type."""
    return {
        path.rpartition("/")[2]: kind
        for path, kind in scan.snapshot.mediated.items()
        if addresses_in_path(path)[-1:] == [address]
    }


def place_of(host: Host, uuid: str) -> str | None:
    """Return the directory of a mediated device below its parent, None if there is none."""
    try:
        return host.realpath(f"{_DEVICES}/{uuid}")
    except exception.HostError as error:
        if is_missing(error):
            return None
        raise


def create(host: Host, parent: PciAddress, kind: str, uuid: str) -> None:
    """Create a mediated device; raises exception.HostError if the kernel refuses it."""
    host.privileged.run(actions.CreateMdev(parent, kind, uuid))


def remove(host: Host, uuid: str) -> None:
    """Remove a mediated device; the kernel waits until no process has it open."""
    host.privileged.run(actions.RemoveMdev(uuid))


def holder(host: Host, place: str) -> str | None:
    """Return the process that has the mediated device in this directory open, None if none is seen.

    Processes have the node of its IOMMU group open, or its own node below ``/dev/vfio/devices``
    (Documentation/driver-api/vfio.rst).
    """
    nodes = []
    if host.exists(f"{place}/vfio-dev"):
        nodes += [f"devices/{name}" for name in host.list_dir(f"{place}/vfio-dev")]
    group = read_if_exists(host.realpath, f"{place}/iommu_group")
    if group is not None:
        nodes.append(group.rpartition("/")[2])
    holders = host.open_files().holders
    return next((holders[path] for node in nodes if (path := f"/dev/vfio/{node}") in holders), None)

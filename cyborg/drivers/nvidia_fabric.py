# SPDX-License-Identifier: Apache-2.0
"""The partitions of an NVSwitch fabric, which NVIDIA's Fabric Manager activates for guests.

A partition is a set of GPUs of one board. CUDA works in a guest with these GPUs only while their
partition is active. Two active partitions have no GPU in common. Fabric Manager names a GPU by its
module: the place on the board, which is not in the order of PCI addresses, and which NVML does not
tell about a GPU that ``vfio-pci`` has.

The command is NVIDIA's ``fmpm``, or one with its arguments and its output. Whether a change has
succeeded says the list of the partitions, which is read again after it.

Sources: "Fabric Manager User Guide" of NVIDIA, release 2.3, chapters about the SDK and the shared
NVSwitch model; nv_fm_agent.h and nv_fm_types.h of that SDK; README and fmpm.cpp of the repository
NVIDIA/Fabric-Manager-Client.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import pci_scan
from cyborg.drivers.card_readings import parse_json, unintelligible
from cyborg.drivers.command import Completed, summary
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import LocalCommand, Template
from cyborg.drivers.pci_function import parse_name
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress

#: Seconds that the list of the partitions may take, and a change, which may train NVLinks.
_LIST_TIMEOUT: Final = 15.0
_CHANGE_TIMEOUT: Final = 60.0
#: Arguments of fmpm.
_LIST, _ACTIVATE, _DEACTIVATE = "-l", "-a", "-d"
#: FM_MAX_FABRIC_PARTITIONS and FM_MAX_NUM_GPUS of nv_fm_types.h.
_MOST_PARTITIONS, _MOST_GPUS = 64, 16
#: The options that belong together.
_OPTIONS = ("fabric_command", "fabric_partition_size", "fabric_modules")


@dataclass(frozen=True)
class Partition:
    """A partition by its id; ``modules`` are its GPUs, with their addresses if they are told."""

    number: int
    active: bool
    modules: Mapping[int, PciAddress | None]


@dataclass(frozen=True)
class Fabric:
    """The fabric of a host: guests get the GPUs of one partition of ``size`` GPUs.

    ``modules`` maps the addresses of all GPUs to their modules. Methods that raise ValueError do so
    with a clause.
    """

    command: LocalCommand
    size: int
    modules: Mapping[PciAddress, int]

    def partitions(self, host: Host) -> tuple[Partition, ...]:
        """Return the partitions that Fabric Manager supports now.

        Raises exception.HostError if it does not answer, or with anything else.
        """
        result = self._run(host, _LIST, timeout=_LIST_TIMEOUT)
        if result.status != 0:
            raise exception.HostError(
                action=f"running {self.command.program} {_LIST}", reason=summary(result)
            )
        return parse(result.stdout, self.command.program)

    def partition_of(self, partitions: Sequence[Partition], gpu: PciAddress) -> Partition:
        """Return the only partition of the configured size with a GPU.

        Raises ValueError if there is none, or if it is not known which of its GPUs are where.
        """
        module = self.modules.get(gpu)
        if module is None:
            raise ValueError("option fabric_modules does not name it")
        sized = [part for part in partitions if len(part.modules) == self.size]
        partition = next((part for part in sized if module in part.modules), None)
        if partition is None:
            text = f"{self.size} GPU{'s' if self.size > 1 else ''}"
            raise ValueError(f"Fabric Manager has no partition of {text} with its module {module}")
        for other in sized:
            shared = sorted(other.modules.keys() & partition.modules.keys())
            if other.number != partition.number and shared:
                raise ValueError(
                    f"partitions {partition.number} and {other.number} of {self.size} GPUs both "
                    f"have module {shared[0]}"
                )
        self.addresses(partition)
        return partition

    def addresses(self, partition: Partition) -> tuple[PciAddress, ...]:
        """Return the addresses of the GPUs of a partition, in order.

        Raises ValueError if the configuration does not have all, or if Fabric Manager tells others.
        """
        places = {module: address for address, module in self.modules.items()}
        for module, place in partition.modules.items():
            if module not in places:
                raise ValueError(
                    f"partition {partition.number} has module {module}, which option "
                    "fabric_modules does not have"
                )
            if place not in {None, places[module]}:
                raise ValueError(
                    f"Fabric Manager says that module {module} is {place}, and option "
                    f"fabric_modules that it is {places[module]}"
                )
        return tuple(sorted(places[module] for module in partition.modules))

    def obstacle(self, partitions: Sequence[Partition], partition: Partition) -> str | None:
        """Return which other active partition has GPUs of this one, as a clause; None if none."""
        for other in partitions:
            if other.active and other.number != partition.number:
                shared = sorted(other.modules.keys() & partition.modules.keys())
                if shared:
                    return (
                        f"its module {shared[0]} belongs to partition {other.number} of "
                        f"{len(other.modules)} GPUs, which is active; end it with "
                        f"{self.command.program} {_DEACTIVATE} {other.number} if nobody uses it"
                    )
        return None

    def activate(self, host: Host, gpu: PciAddress) -> None:
        """Activate the partition of a GPU; one that is active is not changed.

        Raises ValueError if it cannot be activated, and exception.HostError.
        """
        partitions = self.partitions(host)
        partition = self.partition_of(partitions, gpu)
        if partition.active:
            return
        if (obstacle := self.obstacle(partitions, partition)) is not None:
            raise ValueError(obstacle)
        self._change(host, partition, _ACTIVATE, active=True)

    def deactivate(self, host: Host, gpu: PciAddress) -> None:
        """Deactivate the active partition of a GPU, if there is one.

        Raises ValueError if a process has one of its GPUs open through VFIO, or if it is still
        active, and exception.HostError.
        """
        module = self.modules[gpu]
        for partition in self.partitions(host):
            if partition.active and module in partition.modules:
                self._check_unused(host, partition)
                self._change(host, partition, _DEACTIVATE, active=False)

    def _check_unused(self, host: Host, partition: Partition) -> None:
        functions, files = Scan(host).functions, host.open_files()
        for address in self.addresses(partition):
            function = functions.get(address)
            group = None if function is None else function.group
            for node in pci_scan.vfio_nodes(host, str(address), group):
                if node in files.holders:
                    raise ValueError(
                        f"{address} of partition {partition.number} is held through VFIO by "
                        f"{files.holders[node]}"
                    )
        if files.reason is not None:
            raise ValueError(f"who uses partition {partition.number} is not known: {files.reason}")

    def _change(self, host: Host, partition: Partition, verb: str, *, active: bool) -> None:
        number = partition.number
        result = self._run(host, verb, str(number), timeout=_CHANGE_TIMEOUT)
        after = {other.number: other.active for other in self.partitions(host)}
        if after.get(number) is not active:
            raise ValueError(
                f"partition {number} is {'still' if after.get(number) else 'not'} active after "
                f"{self.command.program} {verb} {number}: {summary(result)}"
            )

    def _run(self, host: Host, *arguments: str, timeout: float) -> Completed:
        words = tuple(Template(word, frozenset()) for word in arguments)
        command = replace(self.command, words=(*self.command.words, *words), timeout=timeout)
        return command.run(host, {})


def read(conf: cfg.ConfigOpts) -> Fabric | None:
    """Return the fabric of the configuration, None if it has none; raises ConfigError."""
    group = conf.gpu_devices
    given = [bool(group[name]) for name in _OPTIONS]
    if not any(given):
        return None
    if not all(given):
        names = ", ".join(_OPTIONS)
        raise exception.ConfigError(
            reason=f"Options [gpu_devices] {names}: set all of them, or none."
        )
    try:
        if "{" in group.fabric_command:
            raise ValueError("it has a placeholder, and the command takes none")
        command = LocalCommand.parse(group.fabric_command, _LIST_TIMEOUT, ())
    except ValueError as error:
        reason = f"Option [gpu_devices] fabric_command: {error}."
        raise exception.ConfigError(reason=reason) from error
    modules = _read_modules(group.fabric_modules)
    if len(modules) % group.fabric_partition_size:
        raise exception.ConfigError(
            reason=f"Option [gpu_devices] fabric_modules: {len(modules)} GPUs are not partitions "
            f"of {group.fabric_partition_size} GPUs."
        )
    return Fabric(command, group.fabric_partition_size, modules)


def check_other_uses(fabric: Fabric | None, others: Mapping[str, Collection[PciAddress]]) -> None:
    """Check that no other option divides a GPU of the fabric; ``others`` are GPUs by option.

    Raises exception.ConfigError.
    """
    for option, addresses in others.items():
        shared = sorted(set(addresses) & set(fabric.modules if fabric is not None else ()))
        if shared:
            raise exception.ConfigError(
                reason=f"Option [gpu_devices] fabric_modules: {shared[0]} is in {option}, too, and "
                "guests get the GPUs of a partition whole."
            )


def parse(output: str, program: str) -> tuple[Partition, ...]:
    """Return the partitions in the output of ``program -l``; raises exception.HostError."""
    answer = parse_json(output, program)
    items = answer.get("partitionInfo") if isinstance(answer, dict) else None
    if not isinstance(items, list) or len(items) > _MOST_PARTITIONS:
        raise unintelligible(program, "no list partitionInfo")
    partitions = tuple(_partition(item, program) for item in items)
    if len({partition.number for partition in partitions}) != len(partitions):
        raise unintelligible(program, "two partitions have one partitionId")
    return partitions


def _partition(item: Any, program: str) -> Partition:
    fields = item if isinstance(item, dict) else {}
    number, active, gpus = (fields.get(name) for name in ("partitionId", "isActive", "gpuInfo"))
    rows = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    modules = {
        module: _address(gpu.get("pciBusId"))
        for gpu in rows
        if type(module := gpu.get("physicalId")) is int
    }
    valid = (
        type(number) is int
        and 0 <= number < _MOST_PARTITIONS
        and active in (0, 1)
        and isinstance(gpus, list)
        and 0 < len(modules) == len(gpus) <= _MOST_GPUS
    )
    if not valid or number is None:
        raise unintelligible(program, f"{str(item)[:80]} is no partition")
    return Partition(number, bool(active), modules)


def _address(text: Any) -> PciAddress | None:
    """Return the address of a GPU, None where Fabric Manager does not know it."""
    return parse_name(text.lower()) if isinstance(text, str) else None


def _read_modules(entries: Sequence[str]) -> dict[PciAddress, int]:
    modules: dict[PciAddress, int] = {}
    for entry in entries:
        place, _, text = entry.partition("=")
        address = parse_name(place.strip().lower())
        flaw = None
        if address is None:
            flaw = f"{place!r} is not a PCI address with domain, bus, device and function"
        elif not text.strip().isdecimal() or len(text.strip()) > len(str(_MOST_GPUS)):
            flaw = f"{entry!r} does not end with = and the number of a module"
        elif address in modules or int(text) in modules.values():
            flaw = f"{entry!r} has an address or a module that is there twice"
        else:
            modules[address] = int(text)
        if flaw is not None:
            raise exception.ConfigError(reason=f"Option [gpu_devices] fabric_modules: {flaw}.")
    return modules

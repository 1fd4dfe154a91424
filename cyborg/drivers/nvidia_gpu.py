# SPDX-License-Identifier: Apache-2.0
"""The nvidia_gpu_driver: offers GPUs of NVIDIA whole, or as vGPUs of the configured types.

A card that is divided is not offered whole. A function with vGPUs is a device whose units are
mediated devices. With vendor-specific VFIO (``nvidia_vfio``) the card is the device, and its units
are its virtual functions. On a host with an NVSwitch fabric (``nvidia_fabric``), the GPUs of a
partition are one device. What NVML says about the GPUs comes from ``nvml``; without it the PCI
functions alone decide.

Sources: PCI Code and ID Assignment Specification (classes); "Virtual GPU Software User Guide" of
NVIDIA.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import (
    mediated,
    mig_layout,
    nvidia_fabric,
    nvidia_health,
    nvidia_vfio,
    nvidia_vgpu,
    nvml,
)
from cyborg.drivers.base import (
    CardLayouts,
    CleanStep,
    ImageFile,
    Progress,
    ResetLevel,
    no_progress,
)
from cyborg.drivers.card_driver import CardDriver, address_of, info_of
from cyborg.drivers.host import Host
from cyborg.drivers.nvidia_fabric import Fabric, Partition
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.device import (
    Attribute,
    Confidence,
    Deployable,
    Device,
    DeviceType,
    Hardware,
    Identity,
    IdentityKind,
)
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit

LOG = logging.getLogger(__name__)

_NVIDIA = 0x10DE
#: Classes of GPUs without the programming interface, in the words of lspci; NVSwitches are bridges.
_CONTROLLERS = {0x0300: "VGA compatible controller", 0x0302: "3D controller"}
#: The host driver that NVML needs.
_HOST_DRIVER = "nvidia"
_VENDOR_WORD = "NVIDIA"
_OWNER = "OWNER_CYBORG"
_HEALTH = "check the health of"
#: The clean step of vGPUs, by the name that operators read.
_REMOVAL = "vGPU removal"
_LISTED = "vGPUs of vendor-specific VFIO are offered with [gpu_devices] vendor_vfio = offer only"
#: Nova shall not have libvirt bind the function to another driver.
_UNMANAGED = {"managed": "false"}


class NvidiaGpuDriver(CardDriver[Card]):
    """GPUs of NVIDIA; see module. Every function, also a virtual one, is a card of its own."""

    name = "nvidia_gpu_driver"
    type = DeviceType.GPU
    group = "gpu_devices"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._vgpu_types = nvidia_vgpu.read_types(conf)
        self._vgpu_classes = nvidia_vgpu.read_classes(conf, set(self._vgpu_types.values()))
        self._filter_vfs: bool = conf.gpu_devices.filter_sriov_vfs
        self._offers_vfio: bool = conf.gpu_devices.vendor_vfio == "offer"
        self._mig_layouts = mig_layout.read_layouts(conf)
        self._fabric = nvidia_fabric.read(conf)
        nvidia_fabric.check_other_uses(
            self._fabric,
            {"a section [vgpu_<type>]": self._vgpu_types, "mig_layouts": self._mig_layouts},
        )
        #: The last scan with what NVML said in it, and the last error, which is logged once.
        self._answer: tuple[Scan, nvml.Answer] | None = None
        #: The last scan with the partitions of the fabric in it, or why they are not known.
        self._partitions: tuple[Scan, Sequence[Partition], str | None] | None = None
        self._logged: str | None = None

    def device(self, scan: Scan, card: Card) -> Device:
        function = card.function
        uuid = self._gpu(scan, function).uuid
        kind = self._vgpu_types.get(function.address)
        pools: Mapping[str, int] = {}
        deployables: tuple[Deployable, ...]
        if card.typed:
            deployables, pools = self._vfio_units(scan, card)
        elif kind is not None:
            deployables = (self._vgpus(scan, function, kind),)
        else:
            deployables = (self._whole(card),)
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{_NVIDIA:04x}",
            model=self.model(function, self.names(scan)),
            control_path=info_of(function.address),
            deployables=deployables,
            pools=dict(pools),
            std_board_info={
                "product_id": f"{function.product:04x}",
                "controller": _CONTROLLERS[function.class_code >> 8],
            },
            vendor_board_info='{"vendor_info": "gpu_vb_info"}',
            identity=(Identity(IdentityKind.VENDOR, uuid, Confidence.UNIQUE),) if uuid else (),
        )

    def _whole(self, card: Card) -> Deployable:
        """Return a GPU as a deployable, or all GPUs of a partition, which a guest gets together."""
        product = f"CUSTOM_NVIDIA_{card.function.product:04X}"
        units = [
            self.deployable(
                guest,
                resource_class="PGPU",
                driver_name=_VENDOR_WORD,
                traits=(_OWNER, product),
                product=(product,),
            )
            for guest in card.guests
        ]
        if card.unit is None:
            return units[0]
        handles = tuple(handle for unit in units for handle in unit.handles)
        return replace(units[0], handles=handles, group_size=len(handles), prepare=True)

    def capability(self, scan: Scan, card: Card, function: PciFunction) -> dict[str, Any]:
        """See CardDriver; also which GPUs a partition has."""
        capability = super().capability(scan, card, function)
        if card.unit is not None:
            capability["functions"] = [str(part.address) for part in card.parts]
        return capability

    def islands(self, scan: Scan) -> Sequence[Collection[str]]:
        """See Driver; the GPUs that NVLink joins, directly or through NVSwitches."""
        joined: list[set[str]] = []
        for card in self.cards(scan):
            ends = (parse_name(end) for end in self._gpu(scan, card.function).links)
            island = {card.key, *(str(end) for end in ends if end is not None)}
            for other in [other for other in joined if other & island]:
                joined.remove(other)
                island |= other
            joined.append(island)
        keys = {card.key for card in self.cards(scan)}
        islands = (sorted(island & keys) for island in joined)
        return sorted(island for island in islands if len(island) > 1)

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return the GPUs and their virtual functions, with what is known of their parts."""
        items = []
        for item in super().hardware(scan):
            function = scan.functions[address_of(item.key)]
            try:
                types = scan.mdev_types(function.address)
            except exception.HostError:
                types = {}
            kind = self._vgpu_types.get(function.address)
            vgpus = item.offered and kind in types
            items.append(
                replace(
                    item,
                    num=self._count(scan, function, types[kind]) if vgpus and kind else item.num,
                    capability={**item.capability, **self._parts(scan, function, types)},
                )
            )
        return items

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; create the mediated device, which Nova finds by the uuid of the handle.

        A virtual function with vendor-specific VFIO gets its type. For a GPU of a fabric, the
        partition is activated. Other whole GPUs need nothing.
        """
        if self._in_fabric(task.handle_key):
            self._switch(task, "prepare")
            return
        if self._is_vfio(task):
            self._assign(task)
            return
        function = self._selected(task.device_key, "prepare", Scan(self.host))
        kind = self._vgpu_types.get(function.address)
        if kind is None:
            return
        place = mediated.place_of(self.host, task.handle_uuid)
        if place is None:
            mediated.create(self.host, function.address, kind, task.handle_uuid)
        elif f"/{function.address}/" not in place:
            reason = f"mediated device {task.handle_uuid} exists on another GPU: {place}"
            raise exception.DriverFailed(driver=self.name, verb="prepare", reason=reason)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        """See Driver; remove the vGPU, also a mediated device of Nova: Nova removes none.

        The partition of a GPU of a fabric is deactivated with the first GPU that is released: a
        guest has all GPUs of its partition, or none.
        """
        if self._in_fabric(task.handle_key):
            self._switch(task, "release")
        elif self._is_vfio(task):
            self._withdraw(task)
        elif mediated.place_of(self.host, task.handle_uuid) is not None:
            mediated.remove(self.host, task.handle_uuid)

    def clean_names(self, scan: Scan, card: Card, function: PciFunction) -> Sequence[str]:
        if function.address in self._vgpu_types:
            return (_REMOVAL,)
        return super().clean_names(scan, card, function)

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; the memory of a vGPU goes with it, and a whole GPU is reset."""
        if parse_name(task.device_key) in self._vgpu_types or self._is_vfio(task):
            return (CleanStep(_REMOVAL, lambda _: self.release(task)),)
        return super().clean_steps(task)

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; a GPU with vGPUs is never reset, because other guests have a part of it."""
        virtual = Scan(self.host).virtual_functions(address_of(device_key))
        if virtual or parse_name(device_key) in self._vgpu_types:
            self._cannot(f"reset {device_key}, which has vGPUs")
        super().reset(device_key, level, progress=progress)

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """See Driver; the GPUs of active partitions.

        The vGPUs of the configured types are listed once vendor-specific VFIO is offered: Nova
        creates mediated devices again after a boot, but gives no virtual function its type.
        """
        if not self._offers_vfio and self._fabric is None:
            return super().prepared(scan)
        units = self._active_units()
        return [*units, *self._made_vgpus(scan)] if self._offers_vfio else units

    def _active_units(self) -> list[Unit]:
        """Return the GPUs of active partitions of the configured size.

        Partitions of other GPUs belong to another program.
        """
        if self._fabric is None:
            return []
        modules = set(self._fabric.modules.values())
        try:
            active = [
                self._fabric.addresses(partition)
                for partition in self._fabric.partitions(self.host)
                if partition.active
                and len(partition.modules) == self._fabric.size
                and partition.modules.keys() <= modules
            ]
        except (ValueError, exception.HostError) as error:
            raise exception.DriverFailed(
                driver=self.name, verb="prepared", reason=str(error)
            ) from error
        return [
            Unit(self.name_of(addresses[0]), str(address))
            for addresses in active
            for address in addresses
        ]

    def _made_vgpus(self, scan: Scan) -> list[Unit]:
        """Return the vGPUs of the configured types."""
        if scan.snapshot.parts_error is not None:
            raise exception.DriverFailed(
                driver=self.name, verb="prepared", reason=scan.snapshot.parts_error
            )
        units: list[Unit] = []
        for address, kind in self._vgpu_types.items():
            function = scan.functions.get(address)
            if function is None:
                continue
            name = self.name_of(address)
            units += [
                Unit(name, uuid)
                for uuid, made in mediated.made(scan, address).items()
                if made == kind
            ]
            if function.parent is not None and not self._filter_vfs:
                current = scan.attribute(address, nvidia_vfio.CURRENT)
                if current is not None and current == nvidia_vfio.number_of(kind):
                    units.append(Unit(name, str(address)))
        return units

    def layouts(self, scan: Scan) -> Sequence[CardLayouts]:
        """See Driver; the GPUs for which the configuration requests a MIG layout.

        A virtual function for a vGPU with MIG has none while there is no instance, so that a GPU
        gets its layout again after a boot, while the conductor keeps its units.
        """
        cards = []
        for address, desired in sorted(self._mig_layouts.items()):
            card = scan.functions.get(address)
            if card is None or not is_gpu(card) or card.parent is not None:
                continue
            gpu = self._gpu(scan, card)
            current = mig_layout.current(gpu)
            parts = [
                vf.address
                for vf in scan.virtual_functions(address)
                if gpu.mig_instances or not self._needs_mig(gpu, vf)
            ]
            cards.append(
                CardLayouts(
                    card=str(address),
                    layouts=tuple(dict.fromkeys((mig_layout.OFF, current or desired, desired))),
                    current=current,
                    desired=desired,
                    deployables=frozenset(map(self.name_of, (address, *parts))),
                    refusal=mig_layout.refusal(scan, card, gpu, desired),
                )
            )
        return cards

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        """See Driver; set the MIG mode and the instances of a GPU."""
        scan = Scan(self.host)
        card = self._selected(card_key, "partition", scan)
        gpu = self._ask_now(scan, card_key, "partition")
        try:
            if (reason := mig_layout.refusal(scan, card, gpu, layout)) is not None:
                raise ValueError(reason)
            if mig_layout.current(gpu) != layout:
                progress(0.0, f"setting the layout {layout}")
                mig_layout.divide(
                    *(self.host, card, gpu, layout),
                    ask=lambda: self._ask_now(scan, card_key, "partition"),
                )
        except ValueError as error:
            reason = f"{card_key}: {error}"
            raise exception.DriverFailed(
                driver=self.name, verb="partition", reason=reason
            ) from error

    def _needs_mig(self, gpu: nvml.Gpu, function: PciFunction) -> bool:
        """Return whether the section of a virtual function has a type that needs MIG."""
        kind = self._vgpu_types.get(function.address)
        vgpu_type = None if kind is None else nvidia_vfio.type_of(gpu, kind)
        return vgpu_type is not None and vgpu_type.profile is not None

    def _awaits_layout(self, scan: Scan, card: PciFunction, part: PciFunction) -> str | None:
        """Return which MIG layout a GPU is to have and has not, as a clause; None if none.

        A part that the conductor keeps may be in a guest, and waits for none.
        """
        desired = self._mig_layouts.get(card.address)
        current = mig_layout.current(self._gpu(scan, card))
        if desired in {None, current} or scan.is_managed(self.name_of(part.address)):
            return None
        return f"it is to have the layout {desired}, and has {current or 'an unknown one'}"

    def settings(self, scan: Scan, device_key: str, handle_key: str) -> Mapping[str, str]:
        """See Driver; also what NVML says about a whole GPU."""
        # A guest of a vGPU cannot change the GPU, and the agent itself divides GPUs.
        whole = handle_key == device_key or self._in_fabric(handle_key)
        if parse_name(device_key) in self._vgpu_types or not whole:
            return {}
        settings = super().settings(scan, device_key, handle_key)
        if not settings:
            return {}
        gpu = self._gpu(scan, self._selected(handle_key, "settings", scan))
        return {**settings, **nvidia_health.settings(gpu)}

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        """See Driver; asks NVML about this GPU alone, so that another one cannot hold it up.

        The signals of a partition are those of its GPUs, one after the other.
        """
        gpus = self._gpus_of(scan, device_key, _HEALTH)
        for gpu in gpus:
            for signal in nvidia_health.signals(self._ask_now(scan, gpu, _HEALTH)):
                text = signal.evidence if len(gpus) == 1 else f"{gpu}: {signal.evidence}"
                yield replace(signal, evidence=text)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        if len(self._gpus_of(scan, device_key, "measure")) > 1:
            self._cannot(f"measure {device_key}, which is several GPUs")
        gpu = self._ask_now(scan, device_key, "measure")
        figures = {
            "utilization_ratio": (gpu.utilization, 0.01),
            "memory_used_bytes": (gpu.memory_used, 1),
            "memory_total_bytes": (gpu.memory_total, 1),
            "temperature_celsius": (gpu.temperature, 1),
            "power_watts": (gpu.power, 0.001),
        }
        return {name: value * unit for name, (value, unit) in figures.items() if value is not None}

    def selected(self, scan: Scan) -> Iterator[Card]:
        """See CardDriver; the GPUs or their partitions, and their virtual functions."""
        cards = self._typed_cards(scan)
        yield from cards
        units = {part.address for card in cards for part in (card.function, *card.parts)}
        joined: list[PciFunction] = []
        for function in scan.functions.values():
            if function.address in units:
                continue
            whole = function.parent is None and function.address not in self._vgpu_types
            if is_gpu(function) and whole and self._fabric is not None:
                joined.append(function)
            elif is_gpu(function) and not (function.parent and self._filter_vfs):
                whole = function.address not in self._vgpu_types
                yield Card(
                    *(function.address, function, (function,)),
                    whole=whole,
                    reason=self._divided(scan, function) if whole else None,
                )

        if self._fabric is not None:
            yield from self._joined(scan, self._fabric, joined)

    def _joined(self, scan: Scan, fabric: Fabric, gpus: Sequence[PciFunction]) -> Iterator[Card]:
        """Yield a card for each partition of whole GPUs, and those that are in none.

        While another partition has GPUs of it, or Fabric Manager does not answer, none is offered.
        """
        partitions, error = self._partitions_of(scan, fabric)
        places = {gpu.address: gpu for gpu in gpus}
        done: set[PciAddress] = set()
        for gpu in gpus:
            if gpu.address in done:
                continue
            addresses: Sequence[PciAddress] = (gpu.address,)
            reason = error
            if error is None:
                try:
                    partition = fabric.partition_of(partitions, gpu.address)
                except ValueError as flaw:
                    reason = str(flaw)
                else:
                    addresses = fabric.addresses(partition)
                    reason = fabric.obstacle(partitions, partition)
                    missing = [str(address) for address in addresses if address not in places]
                    if missing:
                        reason = (
                            f"its partition {partition.number} also has {missing[0]}, which is not "
                            "on the bus as a whole GPU"
                        )
            done.update(addresses)
            members = tuple(places[address] for address in addresses if address in places)
            if reason is not None:
                yield from (
                    Card(member.address, member, (member,), reason=reason) for member in members
                )
                continue
            divided = {member.address: self._divided(scan, member) for member in members}
            yield Card(
                *(members[0].address, members[0], members),
                unit=self.name_of(members[0].address),
                together=len(members) > 1,
                refused={place: why for place, why in divided.items() if why is not None},
            )

    def _partitions_of(self, scan: Scan, fabric: Fabric) -> tuple[Sequence[Partition], str | None]:
        """Return the partitions of the fabric in this scan, and why they are not known."""
        # Another thread may ask for another scan.
        last = self._partitions
        if last is None or last[0] is not scan:
            try:
                last = scan, fabric.partitions(self.host), None
            except exception.HostError as error:
                text = str(error).rstrip(".")
                last = scan, (), f"Fabric Manager does not tell its partitions: {text}"
            self._partitions = last
        return last[1:]

    def _gpus_of(self, scan: Scan, device_key: str, verb: str) -> Sequence[str]:
        """Return the GPUs of a device: all of a partition, or the one that it is."""
        if self._fabric is None or self._fabric.size == 1 or not self._in_fabric(device_key):
            return (device_key,)
        partitions, reason = self._partitions_of(scan, self._fabric)
        try:
            if reason is not None:
                raise ValueError(reason)
            partition = self._fabric.partition_of(partitions, address_of(device_key))
            return [str(address) for address in self._fabric.addresses(partition)]
        except ValueError as error:
            reason = f"{device_key}: {error}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason) from error

    def _is_vfio(self, task: HandleTask) -> bool:
        """Return whether a unit is a virtual function of its device, not a mediated device."""
        part = task.handle_key != task.device_key and parse_name(task.handle_key) is not None
        return part and not self._in_fabric(task.handle_key)

    def _in_fabric(self, handle_key: str) -> bool:
        """Return whether a unit is a GPU of the fabric."""
        return self._fabric is not None and parse_name(handle_key) in self._fabric.modules

    def _switch(self, task: HandleTask, verb: str) -> None:
        """Activate the partition of a unit for ``prepare``, and deactivate it for ``release``."""
        address = address_of(task.handle_key)
        try:
            if self._fabric is not None and verb == "prepare":
                self._fabric.activate(self.host, address)
            elif self._fabric is not None:
                self._fabric.deactivate(self.host, address)
        except (ValueError, exception.HostError) as error:
            reason = f"{address}: {error}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason) from error

    def _divided(self, scan: Scan, function: PciFunction) -> str | None:
        """Return why a function is no whole GPU, as a clause; None if it is one."""
        if function.parent is not None:
            return self._vf_reason(scan, function)
        if function.vfs:
            vgpus = len(_held(scan, scan.virtual_functions(function.address)))
            with_vgpus = f", and {vgpus} of them have vGPUs" if vgpus else ""
            return (
                f"it has {function.vfs} virtual functions{with_vgpus}; remove them with "
                f"sriov-manage -d {function.address} to offer it whole"
            )
        if (pending := self._awaits_layout(scan, function, function)) is not None:
            return pending
        if self._gpu(scan, function).mig:
            return f"its MIG mode is on; turn it off with nvidia-smi -i {function.address} -mig 0"
        return None

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        """See CardDriver; why a function has no vGPUs of the configured type."""
        kind = self._vgpu_types.get(function.address)
        if kind is None:
            return None
        current = nvidia_vfio.current_type(scan, function)
        if self._offers_vfio and function.parent is not None and current is not None:
            if current not in {nvidia_vfio.NO_VGPU, nvidia_vfio.number_of(kind)}:
                return f"it has a vGPU of type {current[:20]}, and is to have {kind}"
            card = scan.functions.get(function.parent)
            if card is None:
                return f"its physical function {function.parent} is not on the bus"
            if (pending := self._awaits_layout(scan, card, function)) is not None:
                return f"its card {card.address} is not ready: {pending}"
            return nvidia_vfio.refusal(self._gpu(scan, card), kind, self._kinds(scan, card))
        if self._offers_vfio and function.parent is not None and function.on_vfio:
            return (
                f"{function.host_driver} has it, so it has no vGPU; Nova lets libvirt bind it, "
                'unless it reads "managed" of the attach handle'
            )
        try:
            types = scan.mdev_types(function.address)
        except exception.HostError as error:
            return str(error)
        if not types and current is not None:
            return f"it has no mediated devices, but vendor-specific VFIO; {_LISTED}"
        if kind not in types:
            return f"it has no vGPU type {kind}, but {', '.join(types) or 'none'}"
        if not self._count(scan, function, types[kind]):
            return f"it has no free vGPU of type {kind}; another type may have its capacity"
        return None

    def _vf_reason(self, scan: Scan, function: PciFunction) -> str:
        """Return why a virtual function is not offered: no guest gets it as a whole GPU."""
        current = nvidia_vfio.current_type(scan, function)
        if current is None:
            return f"it is a virtual function of {function.parent}, and no whole GPU"
        remedy = "no section [vgpu_<type>] names it" if self._offers_vfio else _LISTED
        if current != nvidia_vfio.NO_VGPU:
            return f"it has a vGPU of type {current[:20]}; {remedy}"
        count = len(nvidia_vfio.creatable_types(scan, function))
        return f"it can have {count} types of vGPU; {remedy}"

    def _typed(self, scan: Scan, card: PciFunction) -> list[PciFunction]:
        """Return the virtual functions of a card that get a vGPU type from this service."""
        if not self._offers_vfio or self._filter_vfs:
            return []
        return [
            vf
            for vf in scan.virtual_functions(card.address)
            if vf.address in self._vgpu_types and nvidia_vfio.current_type(scan, vf) is not None
        ]

    def _kinds(self, scan: Scan, card: PciFunction) -> set[str]:
        """Return the types of the virtual functions of a card."""
        return {self._vgpu_types[vf.address] for vf in self._typed(scan, card)}

    def _typed_cards(self, scan: Scan) -> list[Card]:
        """Return the cards of which virtual functions get a type, with these functions."""
        if not self._offers_vfio:
            return []
        return [
            Card(function.address, function, tuple(parts), typed=True)
            for function in scan.functions.values()
            if is_gpu(function) and function.vfs and (parts := self._typed(scan, function))
        ]

    def _vfio_units(
        self, scan: Scan, card: Card
    ) -> tuple[tuple[Deployable, ...], Mapping[str, int]]:
        """Return the offered virtual functions of a card as deployables, and the pools."""
        gpu = self._gpu(scan, card.function)
        virtual = scan.virtual_functions(card.address)
        kinds = {guest.address: self._vgpu_types[guest.address] for guest in card.guests}
        held = _held(scan, virtual)
        free = {kinds[guest.address]: guest for guest in card.guests if guest.address not in held}
        capacity = nvidia_vfio.capacity(
            gpu,
            sorted(set(kinds.values())),
            own=[number for address, number in held.items() if address in kinds],
            foreign=[number for address, number in held.items() if address not in kinds],
            full={
                kind
                for kind, guest in free.items()
                if nvidia_vfio.number_of(kind) not in nvidia_vfio.creatable_types(scan, guest)
            },
        )
        deployables = []
        for guest in card.guests:
            kind = kinds[guest.address]
            vgpu_type = nvidia_vfio.type_of(gpu, kind)
            profile = nvidia_vfio.profile_of(vgpu_type.name) if vgpu_type is not None else kind
            product = nvidia_vgpu.trait(card.function, profile)
            unit = self.deployable(
                guest,
                resource_class=self._vgpu_classes[kind],
                driver_name=_VENDOR_WORD,
                traits=(_OWNER, product),
                product=(product,),
                more_info=_UNMANAGED,
            )
            deployables.append(replace(unit, prepare=True, cost=dict(capacity.costs[kind])))
        return tuple(deployables), capacity.pools

    def _assign(self, task: HandleTask) -> None:
        """Give the virtual function of a unit its vGPU."""
        scan = Scan(self.host)
        function = self._selected(task.handle_key, "prepare", scan)
        card = self._selected(task.device_key, "prepare", scan)
        kind = self._vgpu_types.get(function.address)
        try:
            if kind is None or not self._offers_vfio:
                raise ValueError("the configuration does not offer its vGPU")
            nvidia_vfio.assign(
                *(self.host, function, kind),
                # The first type that is set after a boot must not fix the wrong mode of the GPU.
                refused=lambda: nvidia_vfio.refusal(
                    self._ask_now(scan, task.device_key, "prepare"), kind, self._kinds(scan, card)
                ),
            )
        except (ValueError, exception.DriverCannot) as error:
            reason = f"{function.address}: {error}"
            raise exception.DriverFailed(driver=self.name, verb="prepare", reason=reason) from error

    def _withdraw(self, task: HandleTask) -> None:
        """Destroy the vGPU of a unit; one whose function has left the bus is gone with it."""
        function = Scan(self.host).functions.get(address_of(task.handle_key))
        if function is None or not is_gpu(function):
            return
        try:
            nvidia_vfio.withdraw(self.host, function)
        except ValueError as error:
            reason = f"{function.address}: {error}"
            raise exception.DriverFailed(driver=self.name, verb="release", reason=reason) from error

    def _count(self, scan: Scan, function: PciFunction, instances: tuple[int, int]) -> int:
        """Return how many vGPUs of its type a function has and can have.

        Those of a GPU that the conductor does not keep were not made for this service.
        """
        free, made = instances
        return free + made if scan.is_managed(self.name_of(function.address)) else free

    def _vgpus(self, scan: Scan, function: PciFunction, kind: str) -> Deployable:
        address = function.address
        name = nvidia_vgpu.type_name(self.host, function, kind)
        product = nvidia_vgpu.trait(function, nvidia_vgpu.profile_of(name, kind))
        traits = (_OWNER, product)
        instances = scan.mdev_types(address).get(kind, (0, 0))
        count = self._count(scan, function, instances)
        return Deployable(
            name=self.name_of(address),
            resource_class=self._vgpu_classes[kind],
            driver_name=_VENDOR_WORD,
            handles=tuple(mediated.handles(address, kind, range(count))),
            traits=traits,
            attributes=(
                Attribute("rc", self._vgpu_classes[kind]),
                *(Attribute(f"trait{i}", trait) for i, trait in enumerate(traits)),
            ),
            prepare=True,
            product_traits=(product,),
        )

    def _parts(
        self, scan: Scan, function: PciFunction, types: Mapping[str, tuple[int, int]]
    ) -> dict[str, Any]:
        """Return what the list of hardware shows about the parts of a function."""
        parts: dict[str, Any] = {}
        if types:
            parts["vgpu_types"] = {
                kind: {"free": free, "made": made} for kind, (free, made) in types.items()
            }
        current = nvidia_vfio.current_type(scan, function)
        if current is not None:
            parts["creatable_vgpu_types"] = nvidia_vfio.creatable_types(scan, function)
            parts["current_vgpu_type"] = current[:20]
        gpu = self._gpu(scan, function)
        if gpu.mig is not None and function.parent is None:
            parts["mig"] = {
                "enabled": gpu.mig,
                "pending": gpu.mig_pending,
                "instances": list(gpu.mig_instances),
            }
        return parts

    def _selected(self, key: str, verb: str, scan: Scan) -> PciFunction:
        """Return the function of a device; raises exception.DriverFailed if it has left the bus."""
        function = scan.functions.get(address_of(key))
        if function is None or not is_gpu(function):
            reason = f"{key} is not on the bus"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return function

    def _gpu(self, scan: Scan, function: PciFunction) -> nvml.Gpu:
        """Return what NVML said in this scan about a physical function; no facts if nothing."""
        if self._answer is None or self._answer[0] is not scan:
            addresses = [
                str(other.address)
                for other in scan.functions.values()
                if is_gpu(other) and other.parent is None and other.host_driver == _HOST_DRIVER
            ]
            answer = nvml.ask_all(self.host, addresses) if addresses else nvml.Answer()
            if answer.error is not None and answer.error != self._logged:
                LOG.warning(
                    "The nvidia_gpu_driver goes on with what the PCI bus shows: %s", answer.error
                )
            self._logged = answer.error
            self._answer = scan, answer
        return self._answer[1].gpus.get(str(function.address), nvml.Gpu())

    def _ask_now(self, scan: Scan, device_key: str, verb: str) -> nvml.Gpu:
        """Ask NVML about one GPU, that of a virtual function for its vGPUs.

        Raises exception.DriverCannot where NVML can never tell: it is not installed, or the GPU has
        another host driver, such as the one of a guest.
        """
        function = self._selected(device_key, verb, scan)
        if function.parent is not None:
            function = self._selected(str(function.parent), verb, scan)
        if function.host_driver != _HOST_DRIVER:
            self._cannot(f"{verb} {device_key}")
        key = str(function.address)
        answer = nvml.ask(self.host, [key])
        if answer.absent:
            self._cannot(f"{verb} {device_key}")
        if answer.error is not None or key not in answer.gpus:
            reason = answer.error or f"NVML says nothing about {key}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return answer.gpus[key]


def is_gpu(function: PciFunction) -> bool:
    """Return whether a function is a GPU of NVIDIA, or a part of one."""
    return function.vendor == _NVIDIA and function.class_code >> 8 in _CONTROLLERS


def _held(scan: Scan, virtual: Iterable[PciFunction]) -> dict[PciAddress, str]:
    """Return the virtual functions that have a vGPU: address → number of its type."""
    types = {vf.address: nvidia_vfio.current_type(scan, vf) for vf in virtual}
    return {
        address: number
        for address, number in types.items()
        if number is not None and number != nvidia_vfio.NO_VGPU
    }

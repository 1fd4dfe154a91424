# SPDX-License-Identifier: Apache-2.0
"""The nvidia_gpu_driver: offers GPUs of NVIDIA whole, or as vGPUs of the configured types.

A card that is divided is not offered whole, and neither are its virtual functions. What NVML says
about the GPUs comes from ``nvml``; without it the PCI functions alone decide.

Sources: PCI Code and ID Assignment Specification (classes); "Virtual GPU Software User Guide" of
NVIDIA.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import mediated, nvidia_health, nvidia_vgpu, nvml
from cyborg.drivers.base import (
    CleanStep,
    ImageFile,
    Progress,
    ResetLevel,
    no_progress,
)
from cyborg.drivers.card_driver import CardDriver, address_of, info_of
from cyborg.drivers.host import Host
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
from cyborg.model.work import HandleTask

LOG = logging.getLogger(__name__)

_NVIDIA = 0x10DE
#: Classes of GPUs without the programming interface, in the words of lspci; NVSwitches are bridges.
_CONTROLLERS = {0x0300: "VGA compatible controller", 0x0302: "3D controller"}
#: The host driver that NVML needs.
_HOST_DRIVER = "nvidia"
_VENDOR_WORD = "NVIDIA"
_OWNER = "OWNER_CYBORG"
#: The clean step of vGPUs, by the name that operators read.
_REMOVAL = "vGPU removal"
_NO_VGPU = "0"
_NOVA = "Nova cannot attach vGPUs of vendor-specific VFIO yet"


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
        #: The last scan with what NVML said in it, and the last error, which is logged once.
        self._answer: tuple[Scan, nvml.Answer] | None = None
        self._logged: str | None = None

    def device(self, scan: Scan, card: Card) -> Device:
        function = card.function
        uuid = self._gpu(scan, function).uuid
        kind = self._vgpu_types.get(function.address)
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{_NVIDIA:04x}",
            model=self.model(function, self.names(scan)),
            control_path=info_of(function.address),
            deployables=(
                self.deployable(
                    function,
                    resource_class="PGPU",
                    driver_name=_VENDOR_WORD,
                    traits=(_OWNER, f"CUSTOM_NVIDIA_{function.product:04X}"),
                )
                if kind is None
                else self._vgpus(scan, function, kind),
            ),
            std_board_info={
                "product_id": f"{function.product:04x}",
                "controller": _CONTROLLERS[function.class_code >> 8],
            },
            vendor_board_info='{"vendor_info": "gpu_vb_info"}',
            identity=(Identity(IdentityKind.VENDOR, uuid, Confidence.UNIQUE),) if uuid else (),
        )

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
        functions = {card.key: card.function for card in self.cards(scan)}
        items = []
        for item in super().hardware(scan):
            function = functions[item.key]
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

        Whole GPUs need nothing.
        """
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
        """See Driver; remove the mediated device, also one that Nova created: Nova removes none."""
        if mediated.place_of(self.host, task.handle_uuid) is not None:
            mediated.remove(self.host, task.handle_uuid)

    def clean_names(self, scan: Scan, card: Card, function: PciFunction) -> Sequence[str]:
        if function.address in self._vgpu_types:
            return (_REMOVAL,)
        return super().clean_names(scan, card, function)

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; the memory of a vGPU goes with it, and a whole GPU is reset."""
        if parse_name(task.device_key) in self._vgpu_types:
            return (CleanStep(_REMOVAL, lambda _: self.release(task)),)
        return super().clean_steps(task)

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; a GPU with vGPUs is never reset, because other guests have a part of it."""
        if parse_name(device_key) in self._vgpu_types:
            self._cannot(f"reset {device_key}, which has vGPUs")
        super().reset(device_key, level, progress=progress)

    def settings(self, scan: Scan, device_key: str, handle_key: str) -> Mapping[str, str]:
        """See Driver; also what NVML says about a whole GPU."""
        settings = super().settings(scan, device_key, handle_key)
        if not settings or parse_name(device_key) in self._vgpu_types:
            return {}
        gpu = self._gpu(scan, self._selected(device_key, "settings", scan))
        return {**settings, **nvidia_health.settings(gpu)}

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        """See Driver; asks NVML about this GPU alone, so that another one cannot hold it up."""
        return nvidia_health.signals(self._ask_now(scan, device_key, "check the health of"))

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
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
        """See CardDriver; the GPUs, and their virtual functions."""
        for function in scan.functions.values():
            if is_gpu(function) and not (function.parent and self._filter_vfs):
                whole = function.address not in self._vgpu_types
                yield Card(
                    *(function.address, function, (function,)),
                    whole=whole,
                    reason=self._divided(scan, function) if whole else None,
                )

    def _divided(self, scan: Scan, function: PciFunction) -> str | None:
        """Return why a function is no whole GPU, as a clause; None if it is one."""
        if function.parent is not None:
            return self._vf_reason(function)
        if function.vfs:
            types = [
                nvidia_vgpu.current_type(self.host, vf)
                for vf in scan.virtual_functions(function.address)
            ]
            vgpus = sum(number not in {None, _NO_VGPU} for number in types)
            with_vgpus = f", and {vgpus} of them have vGPUs" if vgpus else ""
            return (
                f"it has {function.vfs} virtual functions{with_vgpus}; remove them with "
                f"sriov-manage -d {function.address} to offer it whole"
            )
        if self._gpu(scan, function).mig:
            return f"its MIG mode is on; turn it off with nvidia-smi -i {function.address} -mig 0"
        return None

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        """See CardDriver; why a function has no vGPUs of the configured type."""
        kind = self._vgpu_types.get(function.address)
        if kind is None:
            return None
        try:
            types = scan.mdev_types(function.address)
        except exception.HostError as error:
            return str(error)
        if not types and nvidia_vgpu.current_type(self.host, function) is not None:
            return f"it has no mediated devices, but vendor-specific VFIO; {_NOVA}"
        if kind not in types:
            return f"it has no vGPU type {kind}, but {', '.join(types) or 'none'}"
        if not self._count(scan, function, types[kind]):
            return f"it has no free vGPU of type {kind}; another type may have its capacity"
        return None

    def _vf_reason(self, function: PciFunction) -> str:
        """Return why a virtual function is not offered: no guest gets it as a whole GPU."""
        current = nvidia_vgpu.current_type(self.host, function)
        if current is None:
            return f"it is a virtual function of {function.parent}, and no whole GPU"
        if current != _NO_VGPU:
            return f"it has a vGPU of type {current[:20]}; {_NOVA}"
        count = len(nvidia_vgpu.creatable_types(self.host, function))
        return f"it can have {count} types of vGPU; {_NOVA}"

    def _count(self, scan: Scan, function: PciFunction, instances: tuple[int, int]) -> int:
        """Return how many vGPUs of its type a function has and can have.

        Those of a GPU that the conductor does not keep were not made for this service.
        """
        free, made = instances
        return free + made if scan.is_managed(self.name_of(function.address)) else free

    def _vgpus(self, scan: Scan, function: PciFunction, kind: str) -> Deployable:
        address = function.address
        name = nvidia_vgpu.type_name(self.host, function, kind)
        traits = (_OWNER, nvidia_vgpu.trait(function, kind, name))
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
        current = nvidia_vgpu.current_type(self.host, function)
        if current is not None:
            parts["creatable_vgpu_types"] = nvidia_vgpu.creatable_types(self.host, function)
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

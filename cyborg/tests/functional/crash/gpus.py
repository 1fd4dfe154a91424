# SPDX-License-Identifier: Apache-2.0
"""Clouds whose units are of NVIDIA's GPUs, with their driver on simulated hosts."""

from collections.abc import Collection
from dataclasses import dataclass, field

from cyborg.drivers.base import Driver
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.model.provider import provider_uuid
from cyborg.testing import scenario_hosts
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.functional.crash.cloud import UNITS, SimulatedCloud
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.simulated_fabric import GPUS, FabricManager, options
from cyborg.tests.unit.drivers.test_nvidia_vfio import VFS, host_with_l40s, set_type, type_at

#: A third of the GPU: all vGPUs fit together.
_NUMBER = "1152"
_FUNCTIONS = VFS[:UNITS]
_VGPUS = f"""\
[gpu_devices]
vendor_vfio = offer
enabled_vgpu_types = nvidia-{_NUMBER}
[vgpu_nvidia-{_NUMBER}]
device_addresses = {", ".join(_FUNCTIONS)}
resource_class = """
#: A partition of as many GPUs as a cloud has units.
_PARTITION = 20
_MODULES = tuple(range(1, UNITS + 1))


@dataclass
class GpuCloud(SimulatedCloud):
    """A cloud with the driver of NVIDIA's GPUs on a machine."""

    machine: FakeHost = field(init=False)
    gpus: NvidiaGpuDriver = field(init=False)

    def equip(self, machine: FakeHost, text: str) -> None:
        """Give the compute this machine, with these options."""
        compute, directory = self.rack.compute, self.environment.state_path
        directory.mkdir(parents=True, exist_ok=True)
        conf = written(directory / f"{compute}.conf", text, host=compute)
        self.machine, self.gpus = machine, NvidiaGpuDriver(machine, conf)

    @property
    def driver(self) -> Driver:
        return self.gpus


@dataclass
class VgpuCloud(GpuCloud):
    """vGPUs through vendor-specific VFIO, which share one GPU.

    Each unit has a provider of its own; that it is prepared says the type of its function.
    """

    def move(self) -> None:
        super().move()
        self.equip(host_with_l40s(), f"{_VGPUS}{self.traits.resource_class}\n")

    @property
    def homes(self) -> list[str]:
        return [provider_uuid(f"{self.rack.compute}_{place}") for place in _FUNCTIONS[: self.units]]

    @property
    def ready(self) -> set[str]:
        return {place for place in _FUNCTIONS if type_at(self.machine, place) == _NUMBER}

    def make_ready(self, keys: Collection[str]) -> None:
        # The driver of the host refuses a type where there is one.
        for place in self.ready - set(keys):
            set_type(self.machine, place, 0)
        for place in set(keys) - self.ready:
            set_type(self.machine, place, int(_NUMBER))


@dataclass
class PartitionCloud(GpuCloud):
    """All GPUs of a partition of an NVSwitch fabric, which are prepared while it is active."""

    manager: FabricManager = field(init=False)

    def move(self) -> None:
        super().move()
        # Whole GPUs have this resource class, whatever the configuration says.
        self.traits.resource_class = "PGPU"
        self.manager = FabricManager()
        self.manager.partitions = {_PARTITION: _MODULES}
        machine = self.manager.install(scenario_hosts.load("hgx-b200"))
        modules = ", ".join(f"{GPUS[module]}={module}" for module in _MODULES)
        self.equip(machine, options(UNITS, fabric_modules=modules))

    @property
    def homes(self) -> list[str]:
        first = min(GPUS[module] for module in _MODULES)
        return [provider_uuid(f"{self.rack.compute}_{first}")] * self.units

    @property
    def ready(self) -> set[str]:
        active = bool(self.manager.active(self.machine))
        return {GPUS[module] for module in _MODULES} if active else set()

    def make_ready(self, keys: Collection[str]) -> None:
        self.manager.set(self.machine, _PARTITION, active=bool(keys))

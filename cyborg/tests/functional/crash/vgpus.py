# SPDX-License-Identifier: Apache-2.0
"""A cloud whose units are vGPUs through vendor-specific VFIO, which share one GPU."""

from collections.abc import Collection
from dataclasses import dataclass, field

from cyborg.drivers.base import Driver
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.model.provider import provider_uuid
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.functional.crash.cloud import UNITS, SimulatedCloud
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvidia_vfio import VFS, host_with_l40s, set_type, type_at

#: A third of the GPU: all units fit together.
_NUMBER = "1152"
_FUNCTIONS = VFS[:UNITS]
_OPTIONS = f"""\
[gpu_devices]
vendor_vfio = offer
enabled_vgpu_types = nvidia-{_NUMBER}
[vgpu_nvidia-{_NUMBER}]
device_addresses = {", ".join(_FUNCTIONS)}
resource_class = """


@dataclass
class VgpuCloud(SimulatedCloud):
    """Each unit has a provider of its own; that it is prepared says the type of its function."""

    machine: FakeHost = field(init=False)
    vgpus: NvidiaGpuDriver = field(init=False)

    def move(self) -> None:
        super().move()
        self.machine = host_with_l40s()
        compute, directory = self.rack.compute, self.environment.state_path
        directory.mkdir(parents=True, exist_ok=True)
        text = f"{_OPTIONS}{self.traits.resource_class}\n"
        conf = written(directory / f"{compute}.conf", text, host=compute)
        self.vgpus = NvidiaGpuDriver(self.machine, conf)

    @property
    def driver(self) -> Driver:
        return self.vgpus

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

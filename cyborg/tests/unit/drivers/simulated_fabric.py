# SPDX-License-Identifier: Apache-2.0
"""Fabric Manager of a host with eight GPUs, and the command ``fmpm`` that asks it.

Arguments, output and exit statuses are those of fmpm.cpp of NVIDIA/Fabric-Manager-Client: it ends
with the result of the SDK (nv_fm_types.h), and prints failures to its standard output. The 15
partitions are those of an HGX H100 in the "Fabric Manager User Guide", as others quote them. No
real Fabric Manager confirms them.
"""

import json
from typing import Any, Final

from cyborg.drivers.command import Completed
from cyborg.testing.fake_host import FakeHost

FMPM: Final = "/usr/local/bin/fmpm"
#: The partitions: id → modules of the GPUs.
PARTITIONS: Final = dict(
    enumerate(
        (
            (1, 2, 3, 4, 5, 6, 7, 8),
            *((1, 2, 3, 4), (5, 6, 7, 8)),
            *((1, 3), (2, 4), (5, 7), (6, 8)),
            *((module,) for module in range(1, 9)),
        )
    )
)
#: The GPUs of the scenario host hgx-b200 by module; the board numbers them in another order.
GPUS: Final = {
    1: "0000:3a:00.0",
    2: "0000:5d:00.0",
    3: "0000:18:00.0",
    4: "0000:2a:00.0",
    5: "0000:ba:00.0",
    6: "0000:db:00.0",
    7: "0000:9a:00.0",
    8: "0000:ab:00.0",
}
#: A file for each partition, with 1 while it is active: what NVSwitches know, not Fabric Manager.
_STATE: Final = "/run/simulated-fabric"
#: Results of the SDK.
_GENERIC_ERROR, _UNINITIALIZED, _IN_USE, _CONNECTION = -2, -4, -7, -9


def options(size: int, **changes: str) -> str:
    """Return the options of a host with the command, for partitions of a size."""
    fields = {
        "fabric_command": FMPM,
        "fabric_partition_size": str(size),
        "fabric_modules": ", ".join(f"{address}={module}" for module, address in GPUS.items()),
        **changes,
    }
    lines = (f"{name} = {value}" for name, value in fields.items() if value)
    return "\n".join(("[gpu_devices]", *lines, ""))


class FabricManager:
    """A program for ``FakeHost.programs``.

    ``stopped``: nothing listens. ``broken`` are partitions that cannot be activated or deactivated.
    ``places`` are what it tells about the addresses of modules: nothing, as ``vfio-pci`` has them.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.broken: set[int] = set()
        self.places: dict[int, str] = {}
        self.partitions: dict[int, tuple[int, ...]] = dict(PARTITIONS)

    def install(self, host: FakeHost) -> FakeHost:
        """Put the command on a host whose partitions are not active."""
        host.programs[FMPM] = self
        host.add_file(FMPM, "")
        self.restart(host)
        return host

    def restart(self, host: FakeHost) -> None:
        """Start it in its normal mode, which ends all partitions."""
        for number in self.partitions:
            host.add_file(f"{_STATE}/{number}", "0")

    def active(self, host: FakeHost) -> list[int]:
        """Return the ids of the active partitions."""
        return [one for one in self.partitions if host.content(f"{_STATE}/{one}") == b"1"]

    def set(self, host: FakeHost, number: int, *, active: bool) -> None:
        """Activate or deactivate a partition, as an operator does."""
        host.add_file(f"{_STATE}/{number}", str(int(active)))

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if self.stopped:
            return _completed(_CONNECTION, "Failed to connect to Fabric Manager instance.")
        if argv[-1] == "-l":
            return Completed(0, self._list(host), "")
        number, active = int(argv[-1]), argv[-2] == "-a"
        verb = "activate" if active else "deactivate"
        result = self._change(host, number, active=active)
        if result:
            return _completed(result, f"Failed to {verb} partition. fmReturn: {result}")
        self.set(host, number, active=active)
        return Completed(0, "", "")

    def _change(self, host: FakeHost, number: int, *, active: bool) -> int:
        present = self.active(host)
        if active is (number in present):
            return _IN_USE if active else _UNINITIALIZED
        mine = set(self.partitions[number])
        taken = active and any(mine & set(self.partitions[other]) for other in present)
        return _GENERIC_ERROR if number in self.broken or taken else 0

    def _list(self, host: FakeHost) -> str:
        present = self.active(host)
        rows = [
            {
                "partitionId": number,
                "isActive": int(number in present),
                "numGpus": len(modules),
                "gpuInfo": [self._gpu(module) for module in modules],
            }
            for number, modules in self.partitions.items()
        ]
        count = len(rows)
        answer = {"version": 1, "numPartitions": count, "maxNumPartitions": 15}
        return json.dumps({**answer, "partitionInfo": rows}, indent=3)

    def _gpu(self, module: int) -> dict[str, Any]:
        return {
            "physicalId": module,
            "uuid": "",
            "pciBusId": self.places.get(module, ""),
            "numNvLinksAvailable": 18,
            "maxNumNvLinks": 18,
            "nvlinkLineRateMBps": 50_000,
        }


def _completed(result: int, text: str) -> Completed:
    # The exit status has the lowest eight bits of the result.
    return Completed(result & 0xFF, f"{text}\n", "")

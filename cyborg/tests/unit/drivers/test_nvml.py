# SPDX-License-Identifier: Apache-2.0
"""NVML in its own process: nvidia-ml-py, unchanged, on a mock of the library in C."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cyborg.drivers import nvml
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.host import LocalHost
from cyborg.drivers.nvml import Gpu, VgpuType
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE

FIRST, SECOND = "0000:3b:00.0", "0000:86:00.0"
HEALTHY = Gpu(
    uuid="GPU-5a1f0c9e-7a6f-4b52-8d0e-0c2f3d4e5f60",
    serial="1562320000001",
    memory_total=85899345920,
    memory_used=1073741824,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failure=False,
    recovery=0,
    utilization=37,
    temperature=41,
    power=63500,
    mig=False,
    mig_pending=False,
    vbios="96.00.61.00.01",
    ecc=True,
    ecc_pending=True,
)
GIB = 2**30
#: The limit of the program, in seconds, where the library hangs for ever.
LIMIT = 2.0


class HostWithLibrary(LocalHost):
    """This machine with the library in a directory, in which the second GPU has a state."""

    def __init__(self, library: Path, state: str) -> None:
        super().__init__()
        self._hangs = state == "hang"
        self._variables = [f"LD_LIBRARY_PATH={library}", f"NVML_MOCK={state}"]

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        command = ["/usr/bin/env", *self._variables, *argv]
        limit = LIMIT if self._hangs and SECOND in argv else PATIENCE
        return super().run(command, timeout=limit, stdin=stdin, cap=cap)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the mock; the tests need a C compiler."""
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_mock.c")
    target = directory / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-std=gnu11"]
    subprocess.run(["cc", *flags, "-o", str(target), str(source)], check=True)
    return directory


def ask(library: Path, state: str) -> nvml.Answer:
    return nvml.ask_all(HostWithLibrary(library, state), [FIRST, SECOND])


@pytest.mark.proves("nvidia_gpu_driver", "stats", by="library")
def test_every_fact_of_a_healthy_gpu_is_read(library: Path) -> None:
    answer = ask(library, "healthy")
    assert answer.error is None
    assert answer.gpus[FIRST] == HEALTHY
    assert answer.gpus[SECOND].serial == "1562320000002"


@pytest.mark.proves("nvidia_gpu_driver", "health", by="library")
def test_memory_errors_are_those_of_their_gpu(library: Path) -> None:
    answer = ask(library, "ecc")
    assert answer.gpus[FIRST] == HEALTHY
    assert (answer.gpus[SECOND].ecc_uncorrected, answer.gpus[SECOND].remap_pending) == (3, True)


@pytest.mark.proves("nvidia_gpu_driver", "health", by="library")
def test_the_recovery_action_is_that_of_its_gpu(library: Path) -> None:
    answer = ask(library, "recovery")
    assert (answer.gpus[FIRST].recovery, answer.gpus[SECOND].recovery) == (0, 1)


def test_a_lost_gpu_has_its_error_and_the_other_its_facts(library: Path) -> None:
    answer = ask(library, "lost")
    assert answer.gpus == {FIRST: HEALTHY, SECOND: Gpu(error="GPU_IS_LOST")}


def test_the_profiles_of_mig_instances_are_read(library: Path) -> None:
    gpu = ask(library, "mig").gpus[SECOND]
    assert (gpu.mig, gpu.mig_instances) == (True, ("1g.10gb", "3g.40gb"))
    assert gpu.utilization is None


@pytest.mark.parametrize(("state", "mixed", "most"), [("vgpu", False, 6), ("mixed", True, 4)])
def test_the_types_of_vgpu_are_counted_in_the_mode_of_the_gpu(
    library: Path, state: str, *, mixed: bool, most: int
) -> None:
    gpus = ask(library, state).gpus
    assert (gpus[FIRST].vgpu_types, gpus[FIRST].vgpu_mixed) == ((), None)
    assert gpus[SECOND].vgpu_mixed is mixed
    assert gpus[SECOND].vgpu_types == (
        VgpuType(1150, "NVIDIA L40S-8Q", 8 * GIB, most),
        VgpuType(1155, "NVIDIA L40S-48Q", 48 * GIB, 1),
        VgpuType(1500, "NVIDIA A100-1-10C", 10 * GIB, 1, "19"),
    )


def test_a_type_of_vgpu_has_the_profile_of_its_mig_instance(library: Path) -> None:
    gpu = ask(library, "mig").gpus[SECOND]
    assert gpu.mig_profiles == {"1g.10gb": 19}
    assert gpu.vgpu_types[2] == VgpuType(1500, "NVIDIA A100-1-10C", 10 * GIB, 1, "1g.10gb")
    assert gpu.vgpu_mixed is False


@pytest.mark.parametrize(
    "facts",
    [
        *(None, "1150", {}),
        {"number": 1150, "name": "", "memory": 1, "most": 1},
        {"number": "1150", "name": "L40S-8Q", "memory": 1, "most": 1},
        {"number": 1150, "name": "L40S-8Q", "memory": 1, "most": 0},
        {"number": 1150, "name": "L40S-8Q", "memory": 1, "most": 1, "profile": 19},
    ],
)
def test_a_type_of_vgpu_without_its_facts_is_not_known(facts: object) -> None:
    assert Gpu.of({"vgpu_types": [facts]}) == Gpu()


@pytest.mark.parametrize(
    ("state", "error"),
    [("hang", "it did not end within 2 seconds"), ("crash", "ended with an error: by signal 11")],
)
def test_a_library_that_hangs_or_crashes_costs_one_gpu(
    library: Path, state: str, error: str
) -> None:
    answer = ask(library, state)
    assert answer.gpus == {FIRST: HEALTHY}
    assert str(answer.error).startswith(SECOND)
    assert error in str(answer.error)
    assert not answer.absent


def test_a_driver_that_is_not_loaded_tells_nothing(library: Path) -> None:
    assert ask(library, "unloaded") == nvml.Answer(error="NVML answers DRIVER_NOT_LOADED")


def test_an_unknown_gpu_is_not_found(library: Path) -> None:
    answer = nvml.ask(HostWithLibrary(library, "healthy"), ["0000:d8:00.0"])
    assert answer.gpus == {"0000:d8:00.0": Gpu(error="NOT_FOUND")}


def test_a_host_without_the_library_says_so(tmp_path: Path) -> None:
    answer = nvml.ask(HostWithLibrary(tmp_path, "healthy"), [FIRST])
    assert answer == nvml.Answer(error="NVML answers LIBRARY_NOT_FOUND", absent=True)


def test_after_two_gpus_without_an_answer_no_other_is_asked() -> None:
    host = FakeHost()
    host.hanging = True
    answer = nvml.ask_all(host, [FIRST, SECOND, "0000:d8:00.0"])
    assert [command[3:] for command in host.commands] == [
        (FIRST, SECOND, "0000:d8:00.0"),
        (FIRST,),
        (SECOND,),
    ]
    assert host.patience == [nvml.TIMEOUT] * 3
    assert str(answer.error).count("it did not end in time") == 2

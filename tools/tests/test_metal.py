# SPDX-License-Identifier: Apache-2.0
"""tools/metal on a scenario host, with the library mock of NVML, and on a machine without GPUs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cyborg.drivers.command import Completed
from cyborg.testing import scenario_hosts, situations
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.processes import script
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.drivers.test_nvidia_gpu import Nvml
from cyborg.tests.unit.drivers.test_nvml import FIRST, HEALTHY, SECOND, HostWithLibrary, library
from cyborg_tools.metal.__main__ import NO_HARDWARE, examine
from cyborg_tools.metal.examination import TIME, Check, Examination, Machine, NoHardwareError
from cyborg_tools.metal.options import parse

__all__ = ["library"]

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tools" / "capture-host"
UUIDS = {
    FIRST: "GPU-5a1f0c9e-7a6f-4b52-8d0e-0c2f3d4e5f60",
    SECOND: "GPU-9c3b7d12-0e4f-4a66-9b1d-6f5e4d3c2b1a",
}
SERIAL = "1562320000001"
LINKS = "GPU 0: NVIDIA A100 (UUID: GPU-1a)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
CHECKS = [
    *("discovery", "library", "log", "health", "figures", "nvidia-smi", "links", "archive"),
]


class Smi:
    """nvidia-smi, which tells memory in MiB and the MIG mode of all GPUs."""

    def __init__(self) -> None:
        self.memory = 81920
        self.mig = "Disabled"
        self.status = 0

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        address = argv[argv.index("-i") + 1]
        text = f"{UUIDS[address]}, {self.memory}, {self.mig}\n"
        return Completed(self.status, LINKS if argv[1] == "nvlink" else text, "")


def two_gpus() -> FakeHost:
    """Return a scenario host with the two GPUs that the mock of the library has."""
    host = scenario_hosts.load("a100-mig")
    for address in ("0000:01:00.0", "0000:21:00.0"):
        link = f"/sys/bus/pci/devices/{address}"
        host.remove(host.realpath(link))
        host.remove(link)
    situations.readdress(host, {"0000:81:00.0": FIRST, "0000:a1:00.0": SECOND})
    return host


class Recorded:
    """The host as a directory, and what the programs say of it.

    ``agent`` and ``capture`` are the programs. ``spoken`` and ``copied`` do the same at once, from
    what the programs did before.
    """

    def __init__(self, directory: Path) -> None:
        tree, archive, file = (directory / name for name in ("host", "host.tar.gz", "discovery"))
        two_gpus().materialise(tree)
        self.agent = (script("cyborg-agent"), "--host", str(tree))
        self.capture = (sys.executable, str(CAPTURE), "--root", str(tree))
        self.spoken = ("sh", "-c", f"cat {file}")
        self.copied = ("sh", "-c", f'cp {archive} "$0"; echo Captured 9 functions in $0.')
        subprocess.run([*self.capture, str(archive)], check=True, timeout=PATIENCE)
        words = ("--driver", "nvidia_gpu_driver", "--discover", "--json")
        with file.open("wb") as output:
            subprocess.run([*self.agent, *words], check=True, stdout=output, timeout=PATIENCE)


class Site:
    """The host with the library and nvidia-smi, and the programs that are run on it."""

    def __init__(self, library: Path, recorded: Recorded, directory: Path) -> None:
        self.smi = Smi()
        self.directory = directory
        self.host = two_gpus()
        self.host.programs["nvidia-smi"] = self.smi
        self._library = library
        self.state("healthy")
        self.agent: tuple[str, ...] = recorded.spoken
        self.capture: tuple[str, ...] = recorded.copied

    def state(self, name: str) -> None:
        """Give the second GPU a state of the mock."""
        library = HostWithLibrary(self._library, name)
        self.host.programs[sys.executable] = lambda _, argv: library.run(argv, timeout=PATIENCE)

    def machine(self) -> Machine:
        archive = self.directory / "host.tar.gz"
        return Machine(self.host, self.agent, self.capture, self.directory, archive)

    def checks(self, reset: str | None = None) -> dict[str, Check]:
        report = Examination(self.machine()).run(reset)
        return {check.name: check for check in report.checks}

    def failures(self, reset: str | None = None) -> dict[str, str]:
        checks = self.checks(reset).items()
        return {name: check.text for name, check in checks if not check.holds}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def site(library: Path, recorded: Recorded, tmp_path: Path) -> Site:
    return Site(library, recorded, tmp_path)


def test_all_checks_hold_on_healthy_gpus(site: Site, recorded: Recorded) -> None:
    site.agent, site.capture = recorded.agent, recorded.capture
    checks = site.checks()
    assert [name for name, check in checks.items() if check.holds] == CHECKS == list(checks)
    assert f"{FIRST} (GA100 [A100 PCIe 80GB]) is offered" in checks["discovery"].text
    assert checks["library"].text.startswith("driver 550.90.07 answers for 2 GPU(s)")
    assert checks["health"].text == f"{FIRST} is ok; {SECOND} is ok"
    assert "power_watts 63.5" in checks["figures"].text
    assert checks["links"].text.startswith(f"{FIRST} has 2 NVLinks, 1 of them active")
    assert "device(s) are the same there" in checks["archive"].text


def test_report_is_for_people_or_a_document_without_identities(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(site.machine(), parse([])) == 0
    text = capsys.readouterr().out
    assert text.endswith("\nAll checks hold.\n")
    assert max(map(len, text.splitlines())) <= 100
    assert examine(site.machine(), parse(["--json"])) == 0
    output = capsys.readouterr().out
    document = json.loads(output)
    assert (document["format"], document["holds"]) == (1, True)
    assert document["machine"]["driver"] == "550.90.07"
    gpu = document["gpus"][FIRST]
    assert (gpu["health"], gpu["links"]["1"], gpu["nvml"]["mig"]) == (["ok"], "<inactive>", False)
    assert not [value for value in (*UUIDS.values(), SERIAL) if value in output + text]


def test_failed_check_is_named_and_is_the_status(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.smi.memory = 40960
    assert examine(site.machine(), parse([])) == 1
    output = capsys.readouterr().out
    assert f"FAILED  nvidia-smi: NVML tells 81920, not 40960 as memory.total of {FIRST}" in output
    assert output.endswith("\n1 check(s) failed: nvidia-smi.\n")


@pytest.mark.parametrize(
    ("state", "failed", "clause"),
    [
        ("lost", "library", f"NVML answers GPU_IS_LOST for {SECOND}"),
        ("crash", "library", "the program that asks NVML ended with status -11"),
        ("hang", "library", "it did not end within 2 seconds"),
        ("unloaded", "library", "NVML answers DRIVER_NOT_LOADED"),
        ("mig", "nvidia-smi", f"NVML tells True, not False as mig.mode.current of {SECOND}"),
    ],
)
def test_fault_of_the_library_fails_its_check(
    site: Site, state: str, failed: str, clause: str
) -> None:
    site.state(state)
    assert clause in site.failures()[failed]


def test_gpu_with_mig_needs_no_utilisation(site: Site) -> None:
    site.state("mig")
    assert site.failures().keys() == {"nvidia-smi"}


@pytest.mark.parametrize(
    ("facts", "clause"),
    [
        ({"temperature": 0}, f"temperature_celsius of {FIRST} is 0"),
        ({"power": None}, f"power_watts of {FIRST} is None"),
        ({"memory_used": 2**40}, f"{FIRST} uses more memory than it has"),
    ],
)
def test_figure_that_no_hardware_has_fails_the_check(
    site: Site, facts: dict[str, int | None], clause: str
) -> None:
    program = Nvml()
    valid = {name: value for name, value in vars(HEALTHY).items() if name != "error"}
    healthy = valid | {"mig_instances": []}
    program.facts = {address: healthy | {"uuid": uuid} for address, uuid in UUIDS.items()}
    program.facts[FIRST] |= facts
    site.host.programs[sys.executable] = program
    assert site.failures() == {"figures": clause}


def test_sick_gpu_is_shown_and_fails_no_check(site: Site) -> None:
    site.state("recovery")
    xid = f"NVRM: Xid (PCI:{SECOND[:-2]}): 94, pid=4711, name=python3, Contained memory error"
    site.host.add_file("/dev/kmsg", f"4,812,5000000,-;{xid}\n")
    checks = site.checks()
    assert all(check.holds for check in checks.values())
    assert checks["log"].text == "the kernel has logged 0000:86:00 Xid 94"
    assert f"{SECOND} is drain, its driver recommends" in checks["health"].text


def test_wrong_answers_of_commands_fail_their_checks(site: Site) -> None:
    site.agent = (sys.executable, "-c", "import sys; sys.exit('no driver')")
    site.capture = (sys.executable, "-c", "import sys; sys.exit('no space')")
    site.smi.status = 9
    failures = site.failures()
    assert failures["discovery"].endswith("--json ended with status 1: no driver")
    assert failures["archive"].startswith("capture-host ended with status 1: no space")
    assert failures["links"].startswith(
        "nvidia-smi ended with status 9: GPU 0: NVIDIA A100 (UUID: (h"
    )
    assert failures.keys() == {"discovery", "nvidia-smi", "links", "archive"}
    site.agent = (sys.executable, "-c", "print(3)")
    assert site.failures()["discovery"].endswith("printed no JSON document")


def test_archive_without_the_devices_fails_its_check(site: Site, recorded: Recorded) -> None:
    site.agent = recorded.agent
    scenario_hosts.load("e810").materialise(site.directory / "other")
    copy = f'cp -r {site.directory / "other"} "$0"; echo Captured 1 function in $0.'
    site.capture = ("sh", "-c", copy)
    failures = site.failures()
    assert failures.keys() == {"archive"}
    assert "is None in the archive, not" in failures["archive"]


def test_gpu_that_the_driver_does_not_list_fails_the_check(site: Site) -> None:
    site.agent = ("sh", "-c", """echo '{"devices": []}'""")
    assert site.failures()["discovery"] == f"the nvidia_gpu_driver does not list {FIRST}"


def test_checks_without_time_fail(site: Site) -> None:
    moments = iter((0.0, *(TIME for _ in CHECKS)))
    report = Examination(site.machine(), lambda: next(moments)).run()
    assert [check.text for check in report.checks] == [
        f"{name} was not checked within 280 seconds" for name in CHECKS
    ]


def test_slow_gpu_does_not_prolong_the_checks(site: Site) -> None:
    answer, seconds = site.host.programs[sys.executable], [0.0]

    def slow(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        seconds[0] += TIME / 2
        return answer(host, argv)

    site.host.programs[sys.executable] = slow
    report = Examination(site.machine(), lambda: seconds[0]).run()
    failures = {check.name: check.text for check in report.checks if not check.holds}
    assert failures.pop("health") == f"{SECOND} was not checked within 280 seconds"
    assert list(failures) == CHECKS[4:]


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("e810", "it has no NVIDIA GPU"),
        ("hgx-h200", "none of its 8 NVIDIA GPUs has the driver nvidia"),
    ],
)
def test_machine_without_such_gpus_has_a_status_of_its_own(
    site: Site, capsys: pytest.CaptureFixture[str], name: str, clause: str
) -> None:
    site.host = scenario_hosts.load(name)
    with pytest.raises(NoHardwareError, match=clause):
        Examination(site.machine()).run()
    assert examine(site.machine(), parse([])) == NO_HARDWARE
    assert clause in capsys.readouterr().err


def test_free_gpu_is_reset_and_answers(site: Site) -> None:
    assert site.checks(FIRST)["reset"] == Check(
        "reset", True, f"{FIRST} was reset, and NVML answers"
    )
    place = site.host.realpath(f"/sys/bus/pci/devices/{FIRST}")
    assert (f"{place}/reset", "1") in site.host.writes
    assert not [path for path, _ in site.host.writes if SECOND in path]


def test_gpu_in_use_is_not_reset(site: Site) -> None:
    site.host.add_link("/proc/77/fd/5", "/dev/nvidia2")
    site.host.add_file("/proc/77/comm", "python3\n")
    use = "its device file /dev/nvidia2 is open in python3 (process 77)"
    reason = f"{FIRST} is not reset: {use}"
    assert site.failures(FIRST) == {"reset": reason}
    assert site.failures("0000:01:00.0")["reset"].endswith("is not a GPU with the driver nvidia")
    assert site.host.writes == []


def test_nothing_is_written_without_reset(site: Site) -> None:
    site.checks()
    assert site.host.writes == []


def test_command_examines_this_machine() -> None:
    command = [str(ROOT / "tools" / "metal"), "--python", sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    gpus = list(Path("/sys/bus/pci/drivers/nvidia").glob("????:*"))
    if gpus:
        assert ended.stdout.startswith("Linux ")
    else:
        assert (ended.returncode, ended.stdout) == (NO_HARDWARE, "")
        assert ended.stderr.startswith("metal: nothing can be checked on this machine: it has no")


def test_archive_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "host.tar.gz").touch()
    with pytest.raises(SystemExit):
        parse(["--archive", str(tmp_path / "host.tar.gz")])
    assert "exists; name a file that does not" in capsys.readouterr().err

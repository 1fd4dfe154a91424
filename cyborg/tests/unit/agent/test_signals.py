# SPDX-License-Identifier: Apache-2.0
"""Each entry of the shipped health policy is about a signal that something tells.

A case shows a code of a signal on a simulated host. Through the agent, the entry of an operator for
this code decides then, so the test fails for an entry that nobody reads.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from oslo_config import cfg

from cyborg import drivers
from cyborg.agent.findings import Findings
from cyborg.agent.health import HealthChecks
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers import health_policy, nvidia_health
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.host import Host
from cyborg.drivers.nvmf_spdk import NvmfSpdkDriver
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Condition
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.drivers import test_amd_gpu as amd
from cyborg.tests.unit.drivers import test_generic as generic
from cyborg.tests.unit.drivers import test_habana as habana
from cyborg.tests.unit.drivers import test_huawei_ascend as ascend
from cyborg.tests.unit.drivers import test_intel_fpga as fpga
from cyborg.tests.unit.drivers import test_intel_gpu as intel_gpu
from cyborg.tests.unit.drivers import test_intel_qat as qat
from cyborg.tests.unit.drivers import test_nic as nic
from cyborg.tests.unit.drivers import test_nvidia_gpu as nvidia
from cyborg.tests.unit.drivers import test_nvme_disk as nvme
from cyborg.tests.unit.drivers import test_nvmf_spdk as spdk
from cyborg.tests.unit.drivers import test_xilinx_fpga as xilinx
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.simulated_spdk import SimulatedSpdk

#: A value of each signal whose entry is for all other values.
OTHERS: Final = {
    "aer_fatal": "DLP",
    "aer_nonfatal": "UnsupReq",
    "aer_correctable": "BadTLP",
    "wedged": "bus-reset",
    "exit_status": "7",
    "ras_uncorrectable": "umc",
    "manager": "write error",
    "firewall": "2",
    "state": "down",
}
ACTION: Final = "The operator of this host says what to do."
CARD: Final = servers.place(servers.GPU, servers.ROOT_PORT)


@dataclass(frozen=True)
class Case:
    """A host that shows a code; ``event`` is what happens after the first check of the agent."""

    driver: Driver
    key: str
    event: Callable[[HealthChecks], object] | None = None


class BareDriver(Driver):
    """A driver that tells nothing: what the agent itself observes counts alone."""

    name = "bare_driver"

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver."""
        return []


def function(files: Mapping[str, tuple[str, str]]) -> Case:
    """Return a case of a PCI function with these files, before and after the first check."""
    host = servers.server()
    host.add_file(f"{CARD}/config", b"\xde\x10\xb5\x20" + bytes(60))
    for name, (before, _) in files.items():
        host.add_file(f"{CARD}/{name}", before)

    def event(checks: HealthChecks) -> None:
        for name, (_, after) in files.items():
            host.add_file(f"{CARD}/{name}", after)
        checks.run_once()

    return Case(BareDriver(host, cfg.ConfigOpts()), servers.GPU, event)


def link(code: str, name: str, values: tuple[str, str], kind: str) -> Case:
    """Return a case of a link that has got worse, or that was never as good as both ends."""
    best, worse = values
    case = function({f"current_link_{name}": (best if code == "below_first" else worse, worse)})
    assert isinstance(case.driver.host, FakeHost)
    case.driver.host.add_file(f"{CARD}/class", f"0x{kind}\n")
    for end in (CARD, CARD.rpartition("/")[0]):
        case.driver.host.add_file(f"{end}/max_link_{name}", best)
    return case


def counter(code: str, name: str) -> Case:
    spelled = {"nonfatalerr": "NonFatalErr"}.get(code, code)
    return function({name: (f"{spelled} 0\n", f"{spelled} 1\n")})


def access(code: str) -> Case:
    case = function({})
    host = case.driver.host
    assert isinstance(host, FakeHost)

    def event(checks: HealthChecks) -> None:
        if code == "gone":
            host.remove(f"/sys/bus/pci/devices/{servers.GPU}")
            host.remove(CARD)
        else:
            host.add_file(f"{CARD}/config", b"\xff" * 64)
        checks.run_once()

    return Case(case.driver, case.key, event)


def uevent(name: str, code: str) -> Case:
    event = Uevent("change", CARD.removeprefix("/sys"), {name: code})
    return Case(function({}).driver, servers.GPU, lambda checks: checks.note_events([event]))


def prepare() -> Case:
    return Case(
        function({}).driver,
        servers.GPU,
        lambda checks: checks.note_prepare("bare_driver", servers.GPU, "no power"),
    )


def gpu(place: Path, **facts: Any) -> Case:
    host = nvidia.with_nvml(nvidia.host_with_cards(), **facts)
    return Case(nvidia.driver_on(host, place), servers.GPU)


def logged(place: Path, code: str) -> Case:
    case = gpu(place, recovery=0)
    log(case.driver.host, 7, code)
    return replace(case, event=HealthChecks.read_log)


def log(host: Host, sequence: int, xid: str) -> None:
    """Let the driver of NVIDIA write a record into the log of the kernel."""
    assert isinstance(host, FakeHost)
    text = (
        f"NVRM: Xid (PCI:{servers.GPU[:-2]}): {xid}, pid='<unknown>', name=<unknown>, Ch 00000008"
    )
    host.add_file("/dev/kmsg", f"4,{sequence},98765,-;{text}\n SUBSYSTEM=pci\n")


def disk(place: Path, log: Mapping[str, int], state: str = "live") -> Case:
    host, tool = nvme.host_with_disks(), NvmeTool()
    tool.smart.update(log)
    host.programs["nvme"] = tool
    directory = host.realpath(f"/sys/bus/pci/devices/{nvme.DISK}/nvme")
    for name in host.list_dir(directory):
        host.add_file(f"{directory}/{name}/state", f"{state}\n")
    return Case(nvme.driver_on(host, place), nvme.DISK)


def controller(place: Path, state: str) -> Case:
    host, application = FakeHost(), SimulatedSpdk()
    application.disks["Nvme0"].state = state
    host.add_socket(spdk.SOCKET, application.answer)
    return Case(NvmfSpdkDriver(host, written(place / "cyborg.conf", "")), spdk.DISK)


def gaudi(place: Path, status: str = "operational", errors: str = "0") -> Case:
    host = habana.gaudis()
    habana.set_status(host, habana.GAUDI3, status)
    habana.answering(host, {habana.GAUDI3: errors})
    return Case(habana.driver_on(host, place), habana.GAUDI3)


def npu(place: Path, word: str) -> Case:
    host = ascend.answering(ascend.npus(), ("OK", word.upper()))
    return Case(ascend.driver_on(host, place), ascend.SECOND)


def quickassist(place: Path, file: str, text: str) -> Case:
    host = qat.host_with_gen4()
    at = host.realpath(f"/sys/bus/pci/devices/{qat.GEN4}")
    host.add_file(qat.DEBUG if file == "heartbeat" else f"{at}/{file}", f"{text}\n")
    return Case(qat.driver_on(host, place), qat.GEN4)


def xe(place: Path, word: str) -> Case:
    host = intel_gpu.gpus()
    intel_gpu.set_health(host, intel_gpu.ARC, word)
    return Case(intel_gpu.driver_on(host, place), intel_gpu.ARC)


def component(place: Path, word: str) -> Case:
    host = intel_gpu.answering(intel_gpu.gpus(), {intel_gpu.FLEX: {"power": word}})
    return Case(intel_gpu.driver_on(host, place), intel_gpu.FLEX)


def instinct(place: Path, file: str, text: str) -> Case:
    host = amd.gpus()
    amd.ras(host, amd.FIRST, file, text)
    return Case(amd.driver_on(host, place), amd.FIRST)


def dfl(place: Path, file: str, text: str) -> Case:
    host = fpga.host_with_cards()
    host.add_file(file, f"{text}\n")
    return Case(fpga.driver_on(host, place), fpga.N6001)


def disabled_port(place: Path) -> Case:
    host = fpga.host_with_cards()
    host.faults[f"{fpga.PORT}/afu_id"] = 16
    return Case(fpga.driver_on(host, place), fpga.N6001)


def alveo(place: Path, state: str) -> Case:
    host = xilinx.host_with_cards()
    xilinx.set_file(host, xilinx.USER, "simulated", state)
    return Case(xilinx.driver_on(host, place), xilinx.MANAGEMENT)


def port(place: Path, reporter: str) -> Case:
    host = nic.host_with_ports()
    host.programs[nic.DEVLINK] = nic.reporters({reporter: "error"})
    return Case(nic.driver_on(host, place), nic.BUSY)


def command(place: Path, status: str) -> Case:
    host = generic.server()
    host.programs["/usr/sbin/card"] = lambda *_: Completed(int(status), "", "")
    return Case(GenericDriver(host, written(place / "cyborg.conf", generic.GPUS)), servers.GPU)


def simulated(place: Path) -> Case:
    conf = written(place / "cyborg.conf", "[fake_driver]\nfault = hot\n")
    return Case(FakeDriver(servers.bare(), conf), "0000:0c:00.0")


WIDTH, SPEED = ("16\n", "8\n"), ("16.0 GT/s PCIe\n", "2.5 GT/s PCIe\n")
SMART: Final[Mapping[str, dict[str, int]]] = {
    "spare_below_threshold": {"avail_spare": 5},
    "percent_used_over_100": {"percent_used": 101},
    "media_errors": {"media_errors": 1},
}
#: By kind and signal: how a code of it is shown.
CASES: Final[Mapping[tuple[str, str], Callable[[str, Path], Case]]] = {
    ("agent", "prepare"): lambda code, place: prepare(),
    ("pci", "aer_fatal"): lambda code, place: counter(code, "aer_dev_fatal"),
    ("pci", "aer_nonfatal"): lambda code, place: counter(code, "aer_dev_nonfatal"),
    ("pci", "aer_correctable"): lambda code, place: counter(code, "aer_dev_correctable"),
    ("pci", "recovery"): lambda code, place: uevent("ERROR_EVENT", code.upper()),
    ("pci", "access"): lambda code, place: access(code),
    ("pci", "link_width"): lambda code, place: link(code, "width", WIDTH, "020000"),
    ("pci", "link_speed"): lambda code, place: link(code, "speed", SPEED, "020000"),
    ("pci", "idle_link_speed"): lambda code, place: link(code, "speed", SPEED, "030200"),
    ("drm", "wedged"): lambda code, place: uevent("WEDGED", code),
    ("nvidia", "xid"): lambda code, place: logged(place, code),
    ("nvidia", "recovery_action"): lambda code, place: gpu(
        place, recovery=nvidia_health.RECOVERY_ACTIONS.index(code.upper())
    ),
    ("nvidia", "remapped_rows"): lambda code, place: gpu(place, **{f"remap_{code}": True}),
    ("nvidia", "ecc"): lambda code, place: gpu(place, ecc_uncorrected=3),
    ("nvidia", "nvml"): lambda code, place: gpu(place, error=code.upper()),
    ("nvme", "state"): lambda code, place: disk(place, {}, code.replace("io", "IO")),
    ("nvme", "critical_warning"): lambda code, place: disk(
        place, {"critical_warning": 1 << int(code)}
    ),
    ("nvme", "smart"): lambda code, place: disk(place, SMART[code]),
    ("habana", "status"): lambda code, place: gaudi(place, code),
    ("habana", "ecc"): lambda code, place: gaudi(place, errors="3"),
    ("ascend", "health"): lambda code, place: npu(place, code),
    ("qat", "heartbeat"): lambda code, place: quickassist(place, "heartbeat", code),
    ("qat", "state"): lambda code, place: quickassist(place, "qat/state", code),
    ("qat", "ras"): lambda code, place: quickassist(place, f"qat_ras/{code}", "1"),
    ("amd", "ras_uncorrectable"): lambda code, place: instinct(
        place, f"{code}_err_count", "ue: 1\nce: 0\n"
    ),
    ("amd", "bad_pages"): lambda code, place: instinct(
        place, "gpu_vram_bad_pages", f"0x1 : 0x1000 : {code.upper()}\n"
    ),
    ("intel_gpu", "gpu_health"): lambda code, place: xe(place, code),
    ("intel_gpu", "component"): lambda code, place: component(place, code),
    ("devlink", "reporter"): lambda code, place: port(place, code),
    ("fpga", "dfl_error"): lambda code, place: dfl(
        place,
        f"{fpga.PORT}/errors/errors" if code == "port_errors" else f"{fpga.FME}/errors/{code}",
        "0x1",
    ),
    ("fpga", "manager"): lambda code, place: dfl(place, f"{fpga.MANAGER}/state", code),
    ("fpga", "port"): lambda code, place: disabled_port(place),
    ("fpga", "power_state"): lambda code, place: dfl(place, f"{fpga.PORT}/power_state", code),
    ("spdk", "controller"): lambda code, place: controller(place, code),
    ("xrt", "ready"): lambda code, place: alveo(place, '{"is_ready": "false"}'),
    ("xrt", "firewall"): lambda code, place: alveo(place, f'{{"level": "{code}"}}'),
    ("xrt", "memory"): lambda code, place: alveo(place, '{"errors": "1"}'),
    ("command", "exit_status"): lambda code, place: command(place, code),
    ("fake", "fault"): lambda code, place: simulated(place),
}
#: Every entry of the shipped policy, code by code.
ENTRIES: Final = sorted(health_policy.shipped().rulings)


def checks_of(
    case: Case, policy: health_policy.HealthPolicy, state: Path
) -> tuple[HealthChecks, Report]:
    """Return the checks of an agent that has polled the device of a case, and its report."""
    name, device = case.driver.name, Device(case.key, DeviceType.PCI, "v", "m", {}, ())
    report = Report((DriverReport(name, DriverState.READY, (device,)),))
    scan = Scan(case.driver.host)
    checks = HealthChecks(
        drivers={name: case.driver},
        devices=lambda: [(name, device)],
        last_scan=lambda: scan,
        last_report=None,
        policy=policy,
        on_change=lambda: None,
        worker=Worker(),
        timeout=PATIENCE,
        findings=Findings(
            machine=case.driver.host,
            policy=policy,
            baselines=HealthBaselines(StateStore(state, "host")),
            lasting=LastingFaults(StateStore(state, "host")),
            failed_prepares=1,
            worker=Worker(),
        ),
    )
    checks.poll_new(report, scan)
    return checks, report


def reasons_of(case: Case, policy: health_policy.HealthPolicy, state: Path) -> tuple[str, ...]:
    """Return why the agent reports a device as it does, after the event of the case."""
    checks, report = checks_of(case, policy, state)
    if case.event is not None:
        case.event(checks)
    return reasons_in(checks, report)


def reasons_in(checks: HealthChecks, report: Report) -> tuple[str, ...]:
    (answer,) = checks.add_health(report).drivers
    assert answer.error is None
    return answer.health[0].reasons


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    ENTRIES,
    ids=[re.sub(r"\W+", "-", " ".join(fault)).strip("-") for fault in ENTRIES],
)
def test_entry_of_the_operator_decides(kind: str, name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text(
        f'- {{kind: {kind}, signal: {name}, codes: "{code}", condition: degraded, '
        f"action: {ACTION}, source: our tests}}\n"
    )
    shown = code
    if code == "*":
        shown = OTHERS.get(name, "a word that nobody knows")
        assert (kind, name, shown.casefold()) not in health_policy.shipped().rulings
    policy = health_policy.read([str(tmp_path / "own")])
    reasons = reasons_of(CASES[kind, name](shown, tmp_path), policy, tmp_path / "state")
    assert ACTION in reasons


def test_every_signal_of_a_case_has_an_entry() -> None:
    assert {fault[:2] for fault in ENTRIES} == CASES.keys()


def test_every_signal_that_is_told_has_an_entry() -> None:
    """A signal without one makes a device degraded, whatever it says."""
    package = Path(drivers.__file__).parents[1]
    told = {
        tuple(ast.literal_eval(argument) for argument in node.args[:2])
        for directory in ("agent", "drivers")
        for file in (package / directory).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Signal"
        and all(isinstance(argument, ast.Constant) for argument in node.args[:2])
    }
    assert ("nvidia", "ecc") in told
    assert told <= CASES.keys()


def test_example_of_the_documentation_has_an_effect(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "doc/source/admin/health.rst").read_text()
    block = page.partition(".. code-block:: yaml\n\n")[2].partition("\n\n")[0]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text(re.sub(r"^   ", "", block, flags=re.MULTILINE))
    policy = health_policy.read([str(tmp_path / "own")])
    own = {fault: entry for fault, entry in policy.rulings.items() if "/own/" in entry.place}
    assert own
    for kind, name, code in own:
        reasons = reasons_of(CASES[kind, name](code, tmp_path), policy, tmp_path / code)
        assert own[kind, name, code].action in reasons


def test_xid_that_needs_a_reset_stays_until_the_agent_has_reset_the_gpu(tmp_path: Path) -> None:
    case, policy = logged(tmp_path, "119"), health_policy.shipped()
    checks, report = checks_of(case, policy, tmp_path)
    checks.read_log()
    assert reasons_in(checks, report)[0] == "Xid 119"
    log(case.driver.host, 8, "31")
    checks.read_log()
    assert reasons_in(checks, report)[0] == "Xid 119"
    # A new process reads the log from its begin, and has noted the error before.
    log(case.driver.host, 7, "119")
    checks.note_reset(case.driver.name, servers.GPU)
    assert reasons_in(checks, report) == ()
    checks, report = checks_of(case, policy, tmp_path)
    checks.read_log()
    assert reasons_in(checks, report) == ()
    log(case.driver.host, 9, "119")
    checks.read_log()
    assert reasons_in(checks, report)[0] == "Xid 119"


def test_fault_that_the_operator_ignores_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text(
        "- {kind: nvidia, signal: xid, codes: 79, condition: ignore, source: our tests}\n"
    )
    fallen = logged(tmp_path, "79")
    shipped = health_policy.shipped()
    assert shipped.ruling("nvidia", "xid", 79).condition is Condition.DEAD
    assert reasons_of(fallen, shipped, tmp_path / "a")[0] == "Xid 79"
    policy = health_policy.read([str(tmp_path / "own")])
    assert reasons_of(fallen, policy, tmp_path / "b") == ()

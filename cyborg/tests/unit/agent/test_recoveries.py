# SPDX-License-Identifier: Apache-2.0
"""Errors in the log of the kernel and the recoveries of their devices, in any order with scans."""

import errno
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

import pytest
from oslo_config import cfg

from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.findings import HOLD, Findings
from cyborg.agent.health import HealthChecks
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore, TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers import health_policy, kernel_log
from cyborg.drivers.base import Driver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.host import Host
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Condition, DeviceHealth, Signal
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import HandleTask
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeClock
from cyborg.testing.kernel.guest import guest
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.drivers.configured import configured, written

GPU = Device(servers.GPU, DeviceType.GPU, "10de", "A100", {}, ())
AUDIO = Device(f"{servers.GPU[:-1]}1", DeviceType.PCI, "10de", "Audio", {}, ())
ANOTHER = Device(servers.GPU_ON_VFIO, DeviceType.GPU, "10de", "A100", {}, ())
NIC = Device(servers.NIC_IDLE, DeviceType.NIC, "8086", "E810", {}, ())
DISK, UUID = "0000:02:00.0", "11111111-2222-4333-8444-555555555555"
RESET_AFTER_RELEASE = """\
[generic_driver]
backends = disks
[generic_driver:disks]
addresses = 0000:02:*.*
resource_class = CUSTOM_SSD
reset = FUNCTION
reset_after_release = true
"""
FUNCTION = servers.place(servers.GPU, servers.ROOT_PORT)


class SilentDriver(Driver):
    """A driver without signals: what the agent itself observes counts alone."""

    name = "silent_driver"

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver."""
        return []


class CountedFaults(LastingFaults):
    """The file of an agent, which counts what it writes."""

    writes = 0

    def store(
        self, boot: str, unread: int, faults: Iterable[tuple[tuple[str, str], Signal]]
    ) -> bool:
        """See LastingFaults."""
        self.writes += 1
        return super().store(boot, unread, faults)


def checks_of(
    driver: Driver,
    devices: Callable[[], Sequence[Device]],
    *,
    on_change: Callable[[], None] = lambda: None,
    findings: Findings,
) -> HealthChecks:
    """Return the checks of an agent with one driver, whose last scan has these devices."""
    return HealthChecks(
        drivers={driver.name: driver},
        devices=lambda: [(driver.name, device) for device in devices()],
        last_scan=lambda: Scan(driver.host),
        last_report=None,
        policy=health_policy.shipped(),
        on_change=on_change,
        worker=Worker(),
        findings=findings,
    )


def findings_of(
    host: Host,
    state: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    lasting: LastingFaults | None = None,
) -> Findings:
    store = StateStore(state, "host")
    return Findings(
        machine=host,
        policy=health_policy.shipped(),
        baselines=HealthBaselines(store),
        lasting=lasting or LastingFaults(store),
        failed_prepares=1,
        worker=Worker(),
        clock=clock,
    )


class Gpus:
    """The checks of an agent on a host with GPUs, of which each scan shows those in ``devices``."""

    def __init__(self, state: Path) -> None:
        self.host = servers.server()
        self.host.add_file(f"{FUNCTION}/config", b"\xde\x10\xb5\x20" + bytes(60))
        self.host.add_file(f"{servers.place(NIC.key)}/config", b"\x86\x80\x92\x15" + bytes(60))
        self.driver = SilentDriver(self.host, cfg.ConfigOpts())
        self.clock = FakeClock()
        self.state = state
        self.records: list[str] = []
        self.changes = 0
        self.start()
        self.scan(GPU)

    def start(self) -> None:
        """Start another agent process; its drivers have reported no device yet."""
        self.devices: tuple[Device, ...] = ()
        self.faults = CountedFaults(StateStore(self.state, "host"))
        self.findings = findings_of(
            self.host, self.state, clock=self.clock.monotonic, lasting=self.faults
        )
        self.checks = checks_of(
            self.driver, lambda: self.devices, on_change=self._change, findings=self.findings
        )

    def _change(self) -> None:
        self.changes += 1

    def report(self) -> Report:
        return Report((DriverReport(self.driver.name, DriverState.READY, self.devices),))

    def scan(self, *devices: Device) -> None:
        """Scan the host, which shows these devices."""
        report = Report((DriverReport(self.driver.name, DriverState.READY, devices),))
        self.checks.poll_new(report, Scan(self.host))
        self.devices = devices

    def log(self, xid: int, device: str = servers.GPU) -> None:
        """Let the driver of NVIDIA write a record into the log of the kernel."""
        sequence, slot = len(self.records), device.rpartition(".")[0]
        self.records.append(f"4,{sequence},98765,-;NVRM: Xid (PCI:{slot}): {xid}, pid=4711, x\n")
        self.host.add_file(kernel_log.PATH, "".join(self.records))

    def event(self, action: str, path: str = FUNCTION) -> None:
        """Send an event of the kernel about a PCI function."""
        event = Uevent(action, path.removeprefix("/sys"), {"SUBSYSTEM": "pci"})
        self.checks.note_events([event])

    def reset(self) -> None:
        """Say that the agent has reset the GPU."""
        self.checks.note_reset(self.driver.name, servers.GPU)

    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Return what is reported of each device; nothing for one that is healthy."""
        (report,) = self.checks.add_health(self.report()).drivers
        health: tuple[DeviceHealth, ...] = report.health
        return {each.key: each.reasons[:1] for each in health}


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path)


def test_gpu_that_was_replaced_is_offered_again(gpus: Gpus) -> None:
    gpus.log(79)
    gpus.checks.read_log()
    gpus.event("bind")
    assert gpus.reasons() == {servers.GPU: ("Xid 79",)}
    gpus.event("remove")
    gpus.scan()
    gpus.event("add")
    gpus.scan(GPU)
    assert gpus.reasons() == {servers.GPU: ()}
    gpus.start()
    gpus.scan(GPU)
    assert gpus.reasons() == {servers.GPU: ()}


@pytest.mark.parametrize("again", [False, True])
def test_error_of_a_gpu_without_a_driver_counts_when_it_is_reported(
    gpus: Gpus, again: bool
) -> None:
    """The driver of the GPU has failed, and that of another device has not."""
    gpus.start()
    gpus.scan(NIC)
    gpus.log(79)
    gpus.checks.read_log()
    assert gpus.reasons() == {NIC.key: ()}
    if again:
        gpus.start()
    gpus.scan(NIC, GPU)
    assert gpus.reasons() == {NIC.key: (), servers.GPU: ("Xid 79",)}


def test_errors_since_the_boot_count_in_the_first_report(gpus: Gpus) -> None:
    gpus.log(79)
    gpus.log(94)
    gpus.start()
    gpus.scan(GPU)
    assert gpus.reasons() == {servers.GPU: ("Xid 79",)}


def test_error_counts_for_each_function_of_the_gpu(gpus: Gpus) -> None:
    gpus.log(79)
    gpus.scan(GPU, AUDIO, NIC)
    assert gpus.reasons() == {servers.GPU: ("Xid 79",), AUDIO.key: ("Xid 79",), NIC.key: ()}


@pytest.mark.parametrize("action", ["bind", "add"])
def test_recovery_ends_the_errors_of_a_gpu_without_a_driver(gpus: Gpus, action: str) -> None:
    gpus.scan(NIC)
    gpus.log(119)
    gpus.checks.read_log()
    gpus.event(action)
    gpus.scan(NIC, GPU)
    assert gpus.reasons() == {NIC.key: (), servers.GPU: ()}


RECOVERIES = pytest.mark.parametrize(
    "recover",
    [lambda gpus: gpus.event("bind"), lambda gpus: gpus.event("add"), Gpus.reset],
    ids=["bind", "replug", "reset"],
)


@RECOVERIES
def test_error_before_the_recovery_is_over_although_it_was_not_read(
    gpus: Gpus, recover: Callable[[Gpus], None]
) -> None:
    gpus.log(119)
    recover(gpus)
    gpus.checks.read_log()
    assert gpus.reasons() == {servers.GPU: ()}
    gpus.start()
    gpus.scan(GPU)
    assert gpus.reasons() == {servers.GPU: ()}


@RECOVERIES
def test_error_after_the_recovery_counts(gpus: Gpus, recover: Callable[[Gpus], None]) -> None:
    gpus.log(119)
    recover(gpus)
    gpus.log(119)
    gpus.checks.read_log()
    assert gpus.reasons() == {servers.GPU: ("Xid 119",)}


@RECOVERIES
def test_recovery_of_one_gpu_ends_no_error_of_another(
    gpus: Gpus, recover: Callable[[Gpus], None]
) -> None:
    gpus.scan(GPU, ANOTHER)
    gpus.log(119, ANOTHER.key)
    recover(gpus)
    assert gpus.reasons() == {servers.GPU: (), ANOTHER.key: ("Xid 119",)}
    assert gpus.changes


@pytest.mark.parametrize("generic", [False, True])
def test_reset_by_a_clean_step_ends_a_fault_that_lasts(tmp_path: Path, generic: bool) -> None:
    """The driver nvme expects resets: it is not bound again, so no event tells of the reset."""
    host = guest()
    driver: Driver = PciDriver(host, configured('{"vendor_id": "*"}'))
    if generic:
        driver = GenericDriver(host, written(tmp_path / "cyborg.conf", RESET_AFTER_RELEASE))
    device = next(each for each in look(driver).discover() if each.key == DISK)
    checks = checks_of(driver, lambda: [device], findings=findings_of(host, tmp_path))
    path = host.realpath(f"/sys/bus/pci/devices/{DISK}").removeprefix("/sys")
    checks.note_events([Uevent("change", path, {"ERROR_EVENT": "FAILED_RECOVERY"})])
    report = Report((DriverReport(driver.name, DriverState.READY, (device,)),))
    assert checks.add_health(report).drivers[0].health[0].condition is Condition.DRAIN
    tasks = DeviceTasks(
        drivers={driver.name: driver},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=lambda: cast(Glance, None),
        images=tmp_path / "images",
        timeout=PATIENCE,
        request_scan=lambda: None,
        worker=Worker(),
        on_reset=checks.note_reset,
    )
    unit, spec = device.deployables[0], {"clean": "reset"}
    task = HandleTask("r", driver.name, DISK, unit.name, DISK, UUID, spec=spec)
    assert tasks.release(task).fault is None
    tasks.stop()
    assert checks.add_health(report).drivers[0].health[0].condition is Condition.OK


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci"])
def test_log_that_cannot_be_read_is_a_warning_where_it_may_have_errors(
    gpus: Gpus, caplog: pytest.LogCaptureFixture, driver: str
) -> None:
    gpus.host.add_link(f"/sys/bus/pci/drivers/{driver}/{servers.GPU}", FUNCTION)
    gpus.log(79)
    gpus.host.faults[kernel_log.PATH] = errno.EACCES
    for _ in range(3):
        gpus.checks.read_log()
        gpus.clock.advance(60)
    warnings = [text for text in caplog.messages if "log of the kernel" in text]
    assert ["Xid, are not noticed" in text for text in warnings] == [True] * (driver == "nvidia")
    del gpus.host.faults[kernel_log.PATH]
    gpus.checks.read_log()
    assert gpus.reasons() == {servers.GPU: ("Xid 79",)}


@pytest.mark.parametrize(("xid", "changes", "writes"), [(31, 0, 0), (94, 1, 0), (119, 1, 1)])
def test_error_that_repeats_is_written_and_told_once(
    gpus: Gpus, xid: int, changes: int, writes: int
) -> None:
    gpus.changes = gpus.faults.writes = 0
    for _ in range(9):
        gpus.log(xid)
        gpus.checks.read_log()
        gpus.clock.advance(1)
    assert (gpus.changes, gpus.faults.writes) == (changes, writes)
    # What was read is not read again by the next process, although no fault has changed.
    gpus.clock.advance(HOLD)
    gpus.checks.read_log()
    gpus.checks.read_log()
    assert gpus.faults.writes == writes + 1
    gpus.start()
    gpus.scan(GPU)
    assert gpus.reasons() == {servers.GPU: ("Xid 119",) if xid == 119 else ()}


@pytest.mark.parametrize("xid", [31, 154, 94])
def test_error_that_repeats_has_its_gpu_checked_once_a_minute(gpus: Gpus, xid: int) -> None:
    """Also one that is no fault: it may tell that the driver has more to say."""
    devices = [(gpus.driver.name, GPU), (gpus.driver.name, NIC)]
    checked = []
    for _ in range(2 * int(HOLD)):
        gpus.log(xid)
        checked.append(gpus.findings.read_log(devices))
        gpus.clock.advance(1)
    expected = [devices[:1], *[[]] * (int(HOLD) - 1)]
    assert checked == expected * 2

# SPDX-License-Identifier: Apache-2.0
"""Errors in the log of the kernel and the recoveries of their devices, in any order with scans."""

from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg.agent.findings import Findings
from cyborg.agent.health import HealthChecks
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers import health_policy, kernel_log
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import DeviceHealth
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeClock

GPU = Device(servers.GPU, DeviceType.GPU, "10de", "A100", {}, ())
AUDIO = Device(f"{servers.GPU[:-1]}1", DeviceType.PCI, "10de", "Audio", {}, ())
ANOTHER = Device(servers.GPU_ON_VFIO, DeviceType.GPU, "10de", "A100", {}, ())
NIC = Device(servers.NIC_IDLE, DeviceType.NIC, "8086", "E810", {}, ())
FUNCTION = servers.place(servers.GPU, servers.ROOT_PORT)


class SilentDriver(Driver):
    """A driver without signals: what the agent itself observes counts alone."""

    name = "silent_driver"

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver."""
        return []


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
        self.checks = HealthChecks(
            drivers={self.driver.name: self.driver},
            devices=lambda: [(self.driver.name, device) for device in self.devices],
            last_scan=lambda: Scan(self.host),
            last_report=None,
            policy=health_policy.shipped(),
            on_change=self._change,
            worker=Worker(),
            findings=Findings(
                machine=self.host,
                policy=health_policy.shipped(),
                baselines=HealthBaselines(StateStore(self.state, "host")),
                lasting=LastingFaults(StateStore(self.state, "host")),
                failed_prepares=1,
                worker=Worker(),
                clock=self.clock.monotonic,
            ),
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

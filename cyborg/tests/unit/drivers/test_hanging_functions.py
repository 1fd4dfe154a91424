# SPDX-License-Identifier: Apache-2.0
"""Files of one function that hang for ever cost the answer about this function only."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent.findings import Findings
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers import health_policy
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Condition
from cyborg.model.pci import PciAddress
from cyborg.rpc.threads import in_thread
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import Gate, eventually, result

STUCK, OTHER = "0000:18:00.0", "0000:19:00.0"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.set()


@pytest.fixture
def host(gate: Gate) -> FakeHost:
    """Two functions; each call about files of the first one waits for the gate."""
    host = servers.bare()
    for address in (STUCK, OTHER):
        path = servers.add_function(host, address, "8086:37c8:0b4000", driver="c6xx")
        host.add_file(f"{path}/config", b"\xff" * 64)
        host.add_file(f"{path}/sriov_numvfs", "0\n")
        host.add_file(f"{path}/sriov_totalvfs", "4\n")
        host.add_file(f"{path}/mdev_supported_types/kind/available_instances", "3\n")
        host.add_dir(f"{path}/mdev_supported_types/kind/devices")

    hang(host, gate, STUCK)
    return host


def hang(host: FakeHost, gate: Gate, part: str) -> None:
    """Let calls about paths with this part wait for the gate, and no other calls."""

    def call(path: str) -> None:
        if part in path:
            gate.hold()

    host.on_call = call


def scan_of(host: FakeHost, worker: Worker | None = None) -> Scan:
    """Return a scan that has read the bus, before the function hangs."""
    on_call, host.on_call = host.on_call, lambda path: None
    scan = Scan(host, worker=worker or Worker(patience=0.05))
    assert len(scan.functions) == 2
    host.on_call = on_call
    return scan


def test_numbers_of_virtual_functions_and_types_are_given_up(host: FakeHost) -> None:
    stuck, other = map(PciAddress.parse, (STUCK, OTHER))
    for read, answer in ((scan_of(host).vfs, (0, 4)), (scan_of(host).mdev_types, {"kind": (3, 0)})):
        asked = in_thread(partial(read, stuck))
        with pytest.raises(exception.HostError, match=r"did not answer within 0\.05 seconds"):
            result(asked)

        def answered(read: Callable[[PciAddress], object] = read, answer: object = answer) -> bool:
            # A busy machine may need longer than the limit of the one that hangs.
            with contextlib.suppress(exception.HostError):
                return read(other) == answer
            return False

        eventually(answered, f"the answer {answer} of the other function")


def test_function_that_hangs_keeps_no_other_one_from_being_checked(
    host: FakeHost, tmp_path: Path
) -> None:
    findings = findings_of(host, tmp_path, Worker(patience=0.05))
    eventually(
        lambda: conditions(findings, OTHER) == [Condition.DEAD],
        "the finding about the other function",
    )
    assert findings.of(("driver", STUCK)) is None


def findings_of(host: FakeHost, directory: Path, worker: Worker) -> Findings:
    return Findings(
        machine=host,
        policy=health_policy.shipped(),
        baselines=HealthBaselines(StateStore(directory, "host")),
        lasting=LastingFaults(StateStore(directory, "host")),
        failed_prepares=1,
        worker=worker,
    )


def conditions(findings: Findings, key: str) -> list[Condition]:
    """Check both functions; return the conditions of one of them."""
    devices = [("driver", Device(key, DeviceType.QAT, "v", "m", {}, ())) for key in (STUCK, OTHER)]
    result(in_thread(lambda: findings.check(devices)))
    return [finding.condition for finding in findings.of(("driver", key)) or ()]


def test_the_health_of_a_function_is_checked_while_a_read_of_the_scan_hangs(
    host: FakeHost, gate: Gate, tmp_path: Path
) -> None:
    """The agent has one worker for both."""
    hang(host, gate, f"{STUCK}/sriov_")
    worker = Worker(patience=0.05)
    findings, scan = findings_of(host, tmp_path, worker), scan_of(host, worker)
    with pytest.raises(exception.HostError, match="did not answer"):
        result(in_thread(lambda: scan.vfs(PciAddress.parse(STUCK))))
    eventually(
        lambda: conditions(findings, STUCK) == [Condition.DEAD],
        "the finding about the function that hangs",
    )


def test_the_scan_reads_a_function_while_the_check_of_its_health_hangs(
    host: FakeHost, gate: Gate, tmp_path: Path
) -> None:
    hang(host, gate, f"{STUCK}/config")
    worker = Worker(patience=0.05)
    findings, scan = findings_of(host, tmp_path, worker), scan_of(host, worker)
    assert conditions(findings, STUCK) == []

    def answered() -> bool:
        # A busy machine may need longer than the limit.
        with contextlib.suppress(exception.HostError):
            return scan.vfs(PciAddress.parse(STUCK)) == (0, 4)
        return False

    eventually(answered, "the number of virtual functions")

# SPDX-License-Identifier: Apache-2.0
"""A call that hangs occupies one thread, and delays no call of another key."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from cyborg import exception
from cyborg.drivers.files import TEXT_LIMIT
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.pci import PciAddress
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import Gate, eventually, joined, result


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return where a call hangs."""
    gate = Gate()
    yield gate
    gate.set()


@pytest.fixture
def before() -> set[threading.Thread]:
    """Return the threads that other tests have left."""
    return set(threading.enumerate())


def test_results_and_errors_are_those_of_the_calls_and_one_thread_does_all(
    before: set[threading.Thread],
) -> None:
    worker = Worker()
    assert [worker.read("device", partial(int, text)) for text in "012"] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        worker.read("device", lambda: 1 / 0)
    failed, after = worker.submit("a", "a", partial(int, "x")), worker.submit("a", "a", int)
    with pytest.raises(ValueError, match="invalid literal"):
        result(failed)
    assert result(after) == 0
    # Seen during a call: a thread that has nothing to do ends after a while.
    assert len(set(worker.read("device", threading.enumerate)) - before) == 1


def test_calls_of_one_key_run_in_order() -> None:
    worker, done = Worker(), list[int]()
    for call in [worker.submit("key", "n", partial(done.append, number)) for number in range(50)]:
        result(call)
    assert done == list(range(50))


def test_key_that_hangs_occupies_one_thread_and_delays_no_other(
    gate: Gate, before: set[threading.Thread]
) -> None:
    worker = Worker()

    def names() -> list[str]:
        return sorted(thread.name for thread in set(threading.enumerate()) - before)

    hanging = [worker.submit("a", "hanging", gate.hold) for _ in range(5)]
    gate.reached()
    assert result(worker.submit("b", "b", names)) == ["b", "hanging"]
    assert worker.running("a") is hanging[0]
    assert worker.running("b") is None
    gate.set()
    for call in hanging:
        result(call)


def test_busy_key_is_an_answer_and_its_call_may_be_awaited(gate: Gate) -> None:
    worker = Worker(wait=gate.limit)

    def hold() -> str:
        gate.hold()
        return "first"

    first, busy = worker.begin("key", "first", hold)
    assert not busy
    assert worker.begin("key", "second", lambda: "second") == (first, True)
    worker.wait([first], 60.0)
    assert not first.done()
    gate.set()
    worker.wait([first], 60.0)
    assert first.result() == "first"
    # The call is over where its result is known.
    second, busy = worker.begin("key", "second", lambda: "second")
    assert (result(second), busy) == ("second", False)


def test_device_that_hangs_is_read_once_until_it_answers(
    gate: Gate, before: set[threading.Thread]
) -> None:
    worker = Worker(patience=600, wait=gate.limit)
    with pytest.raises(exception.HostError, match="did not answer within 600 seconds"):
        worker.read("broken", gate.hold)
    for _ in range(3):
        with pytest.raises(exception.HostError, match="an earlier call still hangs"):
            worker.read("broken", gate.hold)
        assert len(set(worker.read("other", threading.enumerate)) - before) == 2
    gate.set()

    def answers() -> bool:
        with suppress(exception.HostError):
            return worker.read("broken", lambda: True)
        return False

    eventually(answers)


def test_reader_that_waited_behind_one_that_hangs_does_not_read_later(gate: Gate) -> None:
    worker, reads = Worker(patience=0.05, wait=gate.limit), list[str]()
    # Its caller has not given up, so the device counts as one that may answer.
    first = worker.submit("device", "first", gate.hold)
    gate.reached()
    with pytest.raises(exception.HostError, match="did not answer"):
        worker.read("device", lambda: reads.append("read"))
    gate.set()
    result(first)
    result(worker.submit("device", "last", lambda: None))
    assert reads == []


def test_threads_end_when_there_is_nothing_to_do(gate: Gate, before: set[threading.Thread]) -> None:
    """Each verb of a driver makes a scan with a worker of its own."""
    worker = Worker(patience=600, wait=gate.limit)
    with pytest.raises(exception.HostError):
        worker.read("broken", gate.hold)
    threads = set(worker.read("device", threading.enumerate)) - before
    assert len(threads) == 2
    gate.set()
    joined(*threads)
    assert worker.read("device", int) == 0


def test_error_of_a_driver_is_counted_and_has_its_verb() -> None:
    failures: list[tuple[str, str]] = []
    worker = Worker(lambda driver, verb: failures.append((driver, verb)))

    def called(error: BaseException) -> str:
        def fail() -> None:
            raise error

        call = worker.submit("key", "call", lambda: worker.call_driver("fpga", "discover", fail))
        with pytest.raises((exception.DriverFailed, exception.DriverCannot)) as caught:
            result(call)
        return str(caught.value)

    own = exception.DriverFailed(driver="fpga", verb="reset", reason="no power")
    assert called(own) == str(own)
    assert "EIO" in called(exception.HostError(action="reading", reason="EIO"))
    assert "KeyError: 'vendor'" in called(KeyError("vendor"))
    assert "SystemExit: no licence" in called(SystemExit("no licence"))
    assert failures == [("fpga", "discover")] * 4
    # A driver that cannot do something has not failed.
    called(exception.DriverCannot(driver="fpga", verb="discover"))
    assert len(failures) == 4


def test_driver_is_not_called_in_a_thread_that_others_need() -> None:
    with pytest.raises(RuntimeError, match="discover of driver fpga is called outside a worker"):
        Worker().call_driver("fpga", "discover", int)


def test_file_that_hangs_refuses_its_own_device_only(gate: Gate) -> None:
    class Broken(FakeHost):
        def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
            if path.endswith(f"{servers.QAT_PF}/sriov_numvfs"):
                gate.hold()
            return super().read_text(path, limit)

    server = servers.server()
    server.__class__ = Broken
    for address in servers.QAT_VFS:
        server.remove(f"/sys/bus/pci/devices/{address}")
    scan = Scan(server, worker=Worker(patience=600, wait=gate.limit))
    reasons = {
        str(address): scan.refusal(function, managed=False)
        for address, function in scan.functions.items()
    }
    assert "did not answer within 600 seconds" in str(reasons[servers.QAT_PF])
    assert (reasons[servers.FPGA], reasons[servers.GPU]) == (None, None)
    # The answer of a scan stays, and is not asked for again.
    function = scan.functions[PciAddress.parse(servers.QAT_PF)]
    assert scan.refusal(function, managed=False) == reasons[servers.QAT_PF]

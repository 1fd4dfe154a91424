# SPDX-License-Identifier: Apache-2.0
"""The serial executor: calls of one key run in order; a key that hangs blocks no other key."""

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial

import pytest

from cyborg.agent.serial_executor import KeyedSerialExecutor
from cyborg.service import wait_until

#: A device of a driver.
A = ("driver", "a")


@pytest.fixture
def executor() -> Iterator[KeyedSerialExecutor]:
    executor = KeyedSerialExecutor(threads=2)
    yield executor
    executor.stop()


def test_calls_of_one_key_run_in_order(executor: KeyedSerialExecutor) -> None:
    done: list[int] = []
    wait([executor.submit(A, partial(done.append, number)) for number in range(50)])
    assert done == list(range(50))


def test_a_key_that_hangs_occupies_one_thread(executor: KeyedSerialExecutor) -> None:
    gate = threading.Event()
    hanging = [executor.submit(A, lambda: _wait(gate)) for _ in range(5)]
    executor.submit(("driver", "b"), lambda: None).result(5)
    assert not any(future.done() for future in hanging)
    gate.set()
    assert len(wait(hanging, 5).done) == 5


def test_a_driver_that_hangs_in_all_its_threads_delays_no_other(
    executor: KeyedSerialExecutor,
) -> None:
    gate = threading.Event()
    hanging = [executor.submit(("a", str(key)), lambda: _wait(gate)) for key in range(5)]
    executor.submit(("b", "0"), lambda: None).result(5)
    gate.set()
    assert len(wait(hanging, 5).done) == 5


def test_an_error_reaches_the_caller_and_the_next_call_runs(executor: KeyedSerialExecutor) -> None:
    def fail() -> None:
        raise ValueError("it failed")

    failed, after = executor.submit(A, fail), executor.submit(A, lambda: None)
    with pytest.raises(ValueError, match="it failed"):
        failed.result(5)
    after.result(5)


def test_stop_discards_the_calls_that_wait(executor: KeyedSerialExecutor) -> None:
    begun, gate, done = threading.Event(), threading.Event(), list[str]()

    def run() -> None:
        begun.set()
        _wait(gate)

    running = executor.submit(A, run)
    assert begun.wait(5)
    executor.submit(A, lambda: done.append("second"))
    stopper = threading.Thread(target=executor.stop)
    stopper.start()
    assert wait_until(lambda: _is_stopped(executor), timeout=5)
    gate.set()
    stopper.join(5)
    assert running.done()
    assert done == []


def _is_stopped(executor: KeyedSerialExecutor) -> bool:
    try:
        executor.submit(("driver", "new"), lambda: None)
    except RuntimeError:
        return True
    return False


def _wait(gate: threading.Event) -> None:
    assert gate.wait(10)

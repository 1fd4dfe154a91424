# SPDX-License-Identifier: Apache-2.0
"""The serial executor: calls of one key run in order; a key that hangs blocks no other key."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from cyborg.agent.serial_executor import KeyedSerialExecutor
from cyborg.tests.fixtures.waiting import Gate, eventually, joined, result

#: A device of a driver.
A = ("driver", "a")


@pytest.fixture
def executor() -> Iterator[KeyedSerialExecutor]:
    executor = KeyedSerialExecutor(threads=2)
    yield executor
    executor.stop()


def test_calls_of_one_key_run_in_order(executor: KeyedSerialExecutor) -> None:
    done: list[int] = []
    for future in [executor.submit(A, partial(done.append, number)) for number in range(50)]:
        result(future)
    assert done == list(range(50))


def test_a_key_that_hangs_occupies_one_thread(executor: KeyedSerialExecutor) -> None:
    gate = Gate()
    hanging = [executor.submit(A, gate.hold) for _ in range(5)]
    result(executor.submit(("driver", "b"), lambda: None))
    assert not any(future.done() for future in hanging)
    gate.set()
    for future in hanging:
        result(future)


def test_a_driver_that_hangs_in_all_its_threads_delays_no_other(
    executor: KeyedSerialExecutor,
) -> None:
    gate = Gate()
    hanging = [executor.submit(("a", str(key)), gate.hold) for key in range(5)]
    result(executor.submit(("b", "0"), lambda: None))
    gate.set()
    for future in hanging:
        result(future)


def test_an_error_reaches_the_caller_and_the_next_call_runs(executor: KeyedSerialExecutor) -> None:
    def fail() -> None:
        raise ValueError("it failed")

    failed, after = executor.submit(A, fail), executor.submit(A, lambda: None)
    with pytest.raises(ValueError, match="it failed"):
        result(failed)
    result(after)


def test_stop_discards_the_calls_that_wait(executor: KeyedSerialExecutor) -> None:
    gate, done = Gate(), list[str]()
    running = executor.submit(A, gate.hold)
    gate.reached()
    executor.submit(A, lambda: done.append("second"))
    stopper = threading.Thread(target=executor.stop)
    stopper.start()
    eventually(lambda: _is_stopped(executor))
    gate.set()
    joined(stopper)
    assert running.done()
    assert done == []


def _is_stopped(executor: KeyedSerialExecutor) -> bool:
    try:
        executor.submit(("driver", "new"), lambda: None)
    except RuntimeError:
        return True
    return False

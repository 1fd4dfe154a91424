# SPDX-License-Identifier: Apache-2.0
"""Lanes: in order within one, and one that hangs holds up no other."""

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial

import pytest

from cyborg.agent.serial_executor import KeyedSerialExecutor
from cyborg.service import wait_until


@pytest.fixture
def lanes() -> Iterator[KeyedSerialExecutor]:
    made = KeyedSerialExecutor(threads=2)
    yield made
    made.stop()


def test_in_order_and_one_at_a_time(lanes: KeyedSerialExecutor) -> None:
    done: list[int] = []
    wait([lanes.submit("a", partial(done.append, number)) for number in range(50)])
    assert done == list(range(50))


def test_a_lane_that_hangs_takes_one_thread(lanes: KeyedSerialExecutor) -> None:
    gate = threading.Event()
    hanging = [lanes.submit("hanging", lambda: _pass(gate)) for _ in range(5)]
    lanes.submit("other", lambda: None).result(5)
    assert not any(one.done() for one in hanging)
    gate.set()
    assert len(wait(hanging, 5).done) == 5


def test_what_fails_is_told_and_the_next_goes_on(lanes: KeyedSerialExecutor) -> None:
    def fail() -> None:
        raise ValueError("it failed")

    failed, after = lanes.submit("a", fail), lanes.submit("a", lambda: None)
    with pytest.raises(ValueError, match="it failed"):
        failed.result(5)
    after.result(5)


def test_what_waits_at_the_end_is_never_begun(lanes: KeyedSerialExecutor) -> None:
    begun, gate, done = threading.Event(), threading.Event(), list[str]()

    def run() -> None:
        begun.set()
        _pass(gate)

    running = lanes.submit("a", run)
    assert begun.wait(5)
    lanes.submit("a", lambda: done.append("second"))
    stopper = threading.Thread(target=lanes.stop)
    stopper.start()
    assert wait_until(lambda: _is_stopped(lanes), timeout=5)
    gate.set()
    stopper.join(5)
    assert running.done()
    assert done == []


def _is_stopped(lanes: KeyedSerialExecutor) -> bool:
    try:
        lanes.submit(object(), lambda: None)
    except RuntimeError:
        return True
    return False


def _pass(gate: threading.Event) -> None:
    assert gate.wait(10)

# SPDX-License-Identifier: Apache-2.0
"""Operations on hardware: once per operation id, one at a time per device."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.operations import Operations
from cyborg.clients.glance import Glance
from cyborg.drivers.base import ALONE, Driver, Surroundings
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Outcome, ProgramTask
from cyborg.service import wait_until
from cyborg.testing.fake_host import FakeHost


class Recorder(Driver):
    """A driver that notes what it is asked, and does what ``then`` says."""

    name = "recorder"
    can_program = True

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.calls: list[str] = []
        self.active = 0
        self.most_active = 0
        self.then: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def discover(self, surroundings: Surroundings = ALONE) -> list[Device]:
        return []

    def prepare(self, task: HandleTask) -> None:
        self._do(f"prepare {task.handle_key}")

    def release(self, task: HandleTask) -> None:
        self._do(f"release {task.handle_key}")

    def program(self, task: ProgramTask, image_path: str) -> None:
        self._do(f"program {Path(image_path).read_text()}")

    def _do(self, what: str) -> None:
        with self._lock:
            self.calls.append(what)
            self.active += 1
            self.most_active = max(self.active, self.most_active)
        try:
            self.then()
        finally:
            with self._lock:
                self.active -= 1


class FakeGlance:
    """Images by uuid; what is not there is not found, "away" cannot be asked."""

    def download(self, image_uuid: str, into: Path) -> None:
        if image_uuid == "away":
            raise exception.Unavailable(peer="Glance", reason="away")
        if image_uuid == "none":
            raise exception.NotFound(noun="Image", key=image_uuid)
        into.write_text(f"data of {image_uuid}")


@pytest.fixture
def driver() -> Recorder:
    return Recorder()


@pytest.fixture
def operations(driver: Recorder, tmp_path: Path) -> Iterator[Operations]:
    made = Operations(
        drivers={"recorder": driver},
        glance=lambda: cast(Glance, FakeGlance()),
        images=tmp_path,
        patience=0.1,
    )
    yield made
    made.stop()


def task(operation: str, key: str = "k", **changes: Any) -> HandleTask:
    values = {"driver": "recorder", "device_key": "d", "deployable": "u", "handle_uuid": "h"}
    return HandleTask(operation=operation, handle_key=key, **{**values, **changes})


def image(operation: str, uuid: str) -> ProgramTask:
    return ProgramTask(operation, "recorder", "d", "u", uuid)


def test_once_per_operation(operations: Operations, driver: Recorder) -> None:
    assert [operations.prepare(task("o1")) for _ in range(3)] == [Outcome("o1")] * 3
    assert operations.prepare(task("o2")) == Outcome("o2")
    assert operations.release(task("o3")) == Outcome("o3")
    assert driver.calls == ["prepare k", "prepare k", "release k"]


def test_what_takes_long_goes_on_and_is_asked_after(
    operations: Operations, driver: Recorder
) -> None:
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    for _ in range(3):
        assert operations.prepare(task("o1")) == Outcome("o1", done=False)
    gate.set()
    assert wait_until(lambda: operations.prepare(task("o1")).done, timeout=5)
    assert driver.calls == ["prepare k"]


def test_what_failed_may_be_tried_again(operations: Operations, driver: Recorder) -> None:
    def fail() -> None:
        raise RuntimeError("vendor's trouble")

    driver.then = fail
    outcome = operations.prepare(task("o1"))
    assert outcome.done
    assert "vendor's trouble" in str(outcome.fault)
    driver.then = lambda: None
    assert operations.prepare(task("o1")) == Outcome("o1")


def test_one_at_a_time_per_device(operations: Operations, driver: Recorder) -> None:
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    asked = [operations.prepare(task(f"o{key}", str(key))) for key in range(3)]
    assert {one.done for one in asked} == {False}
    assert driver.calls == ["prepare 0"]
    operations.prepare(task("other", "x", device_key="another"))
    assert driver.calls == ["prepare 0", "prepare x"]
    gate.set()
    assert wait_until(
        lambda: all(operations.prepare(task(f"o{key}", str(key))).done for key in range(3)),
        timeout=5,
    )
    assert driver.most_active == 2
    assert len(driver.calls) == 4


def test_what_comes_too_late_is_refused(operations: Operations, driver: Recorder) -> None:
    """A prepare that was under way while the bind was given up and released; and the reverse."""
    assert operations.prepare(task("o1", order=1)) == Outcome("o1")
    assert operations.release(task("o3", order=3)) == Outcome("o3")
    assert "later order" in str(operations.prepare(task("o2", order=2)).fault)
    assert operations.prepare(task("o4", order=4)) == Outcome("o4")
    assert "later order" in str(operations.release(task("o3 again", order=3)).fault)
    assert operations.prepare(task("p1", "other", handle_uuid="other", order=1)) == Outcome("p1")
    assert driver.calls == ["prepare k", "release k", "prepare k", "prepare other"]


def test_a_driver_that_is_not_there(operations: Operations) -> None:
    with pytest.raises(exception.Unavailable, match="not loaded"):
        operations.prepare(task("o1", driver="unknown"))


def test_program(operations: Operations, driver: Recorder, tmp_path: Path) -> None:
    for _ in range(2):
        assert operations.program(image("o1", "image")) == Outcome("o1")
    assert driver.calls == ["program data of image"]
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_is_not_there(operations: Operations, driver: Recorder) -> None:
    outcome = operations.program(image("o1", "none"))
    assert "Image none could not be found" in str(outcome.fault)
    assert driver.calls == []


def test_glance_is_asked_again_later(operations: Operations, driver: Recorder) -> None:
    for _ in range(2):
        with pytest.raises(exception.Unavailable):
            operations.program(image("o1", "away"))
    assert driver.calls == []


def test_stopping_finishes_what_is_in_hand(operations: Operations, driver: Recorder) -> None:
    gate, ended = threading.Event(), threading.Event()

    def slow() -> None:
        gate.wait(10)
        ended.set()

    driver.then = slow
    operations.prepare(task("o1"))
    stopper = threading.Thread(target=operations.stop)
    stopper.start()
    gate.set()
    stopper.join(5)
    assert ended.is_set()

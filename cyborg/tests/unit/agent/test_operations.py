# SPDX-License-Identifier: Apache-2.0
"""Operations on hardware: once per operation id, one at a time per device."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.operations import Operations
from cyborg.agent.state_store import OperationJournal, StateFiles
from cyborg.clients.glance import Glance
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Outcome, ProgramTask, Unit, WorkKind
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

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
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
def images(tmp_path: Path) -> Path:
    """Where images are put on their way."""
    return tmp_path / "images"


@pytest.fixture
def patience() -> float:
    """How long a question waits, in seconds: for whatever is not held up on purpose."""
    return 30.0


#: For tests that hold the driver up: their questions end before the work does.
impatient = pytest.mark.parametrize("patience", [0.1])


#: How many operations are kept by id.
REMEMBERED = 20


@pytest.fixture
def operations(
    driver: Recorder, tmp_path: Path, images: Path, patience: float
) -> Iterator[Operations]:
    made = Operations(
        drivers={"recorder": driver},
        journal=OperationJournal(StateFiles(tmp_path), "host"),
        glance=lambda: cast(Glance, FakeGlance()),
        images=images,
        patience=patience,
        look_again=lambda: None,
        remembered=REMEMBERED,
    )
    yield made
    made.stop()


def task(operation: str, key: str = "k", **changes: Any) -> HandleTask:
    values = {"driver": "recorder", "device_key": "d", "deployable": "u", "handle_uuid": "h"}
    return HandleTask(operation=operation, handle_key=key, **{**values, **changes})


def image(operation: str, uuid: str, order: int = 0) -> ProgramTask:
    return ProgramTask(operation, "recorder", "d", "u", uuid, order=order)


def let_go_on(operations: Operations) -> None:
    """Wait until everything that was begun on the device is over."""
    last = task("last", "last")
    assert wait_until(lambda: operations.prepare(last).done, timeout=5)


def test_once_per_operation(operations: Operations, driver: Recorder) -> None:
    assert [operations.prepare(task("o1")) for _ in range(3)] == [Outcome("o1")] * 3
    assert operations.prepare(task("o2")) == Outcome("o2")
    assert operations.release(task("o3")) == Outcome("o3")
    assert driver.calls == ["prepare k", "prepare k", "release k"]


@impatient
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


@impatient
def test_one_at_a_time_per_device(operations: Operations, driver: Recorder) -> None:
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    asked = [operations.prepare(task(f"o{key}", str(key))) for key in range(3)]
    assert {one.done for one in asked} == {False}
    assert wait_until(lambda: driver.calls == ["prepare 0"], timeout=5)
    operations.prepare(task("other", "x", device_key="another"))
    assert wait_until(lambda: driver.calls == ["prepare 0", "prepare x"], timeout=5)
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


def test_a_repair_is_done_in_the_background(operations: Operations, driver: Recorder) -> None:
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    since = operations.moment
    for _ in range(3):
        operations.repair(WorkKind.PREPARE, task("r1"), since=since)
    operations.repair(WorkKind.RELEASE, task("r2", "other"), since=since)
    assert wait_until(lambda: driver.calls == ["prepare k"], timeout=5)
    gate.set()
    # Once, however often it is asked for while it goes on.
    assert wait_until(lambda: driver.calls == ["prepare k", "release other"], timeout=5)


def test_a_repair_gives_way_to_what_was_ordered_since(
    operations: Operations, driver: Recorder
) -> None:
    """What a look found before a bind or an unbind must not undo it."""
    since = operations.moment
    operations.prepare(task("o1", order=1))
    operations.repair(WorkKind.RELEASE, task("r1"), since=since)
    operations.release(task("o2", order=2))
    operations.repair(WorkKind.PREPARE, task("r2"), since=since)
    let_go_on(operations)
    assert driver.calls == ["prepare k", "release k", "prepare last"]


@impatient
def test_a_repair_gives_way_to_what_was_going_on(operations: Operations, driver: Recorder) -> None:
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    operations.release(task("o1", order=1))
    operations.repair(WorkKind.PREPARE, task("r1"), since=operations.moment)
    gate.set()
    let_go_on(operations)
    assert driver.calls == ["release k", "prepare last"]


def test_an_order_comes_after_a_repair(operations: Operations, driver: Recorder) -> None:
    operations.repair(WorkKind.PREPARE, task("r1"), since=operations.moment)
    assert operations.release(task("o1", order=1)) == Outcome("o1")
    assert driver.calls == ["prepare k", "release k"]
    # An order as low as any: a repair is no order, and nothing is too late for it.
    operations.repair(WorkKind.PREPARE, task("r2"), since=operations.moment)
    assert wait_until(lambda: driver.calls[2:] == ["prepare k"], timeout=5)


def test_a_repair_that_fails_is_said(
    operations: Operations, driver: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("vendor's trouble")

    driver.then = fail
    operations.repair(WorkKind.PREPARE, task("r1"), since=operations.moment)
    assert wait_until(lambda: "k of u is not as wanted" in caplog.text, timeout=5)


@impatient
def test_repairs_do_not_pile_up_behind_a_device_that_hangs(
    operations: Operations, driver: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look at the host asks for the repair again, for as long as the device hangs."""
    caplog.set_level(logging.INFO)
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    for _ in range(5):
        operations.repair(WorkKind.PREPARE, task("r1"), since=operations.moment)
    gate.set()
    let_go_on(operations)
    assert driver.calls == ["prepare k", "prepare last"]
    assert "is left as it is" not in caplog.text


def test_a_repair_gives_way_to_an_earlier_repair(operations: Operations, driver: Recorder) -> None:
    """A look that began before the first repair ended has not seen its result."""
    since = operations.moment
    operations.repair(WorkKind.PREPARE, task("r1"), since=since)
    let_go_on(operations)
    operations.repair(WorkKind.RELEASE, task("r2"), since=since)
    assert operations.prepare(task("later", "later")).done
    assert driver.calls == ["prepare k", "prepare last", "prepare later"]


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        (WorkKind.PREPARE, "Prepared k of u again: a guest has it"),
        (WorkKind.RELEASE, "Released k of u for nobody"),
    ],
)
def test_a_repair_that_succeeds_is_logged(
    operations: Operations, caplog: pytest.LogCaptureFixture, verb: WorkKind, line: str
) -> None:
    caplog.set_level(logging.INFO)
    operations.repair(verb, task("r1"), since=operations.moment)
    let_go_on(operations)
    assert line in caplog.messages


def test_only_the_last_operations_are_remembered(operations: Operations, driver: Recorder) -> None:
    for number in range(REMEMBERED + 1):
        operations.prepare(task(f"o{number}", str(number), order=number))
    done = len(driver.calls)
    operations.prepare(task(f"o{REMEMBERED}", str(REMEMBERED), order=REMEMBERED))
    operations.prepare(task("o1", "1", order=1))
    assert len(driver.calls) == done
    operations.prepare(task("o0", "0"))
    assert driver.calls[done:] == ["prepare 0"]


def test_an_order_issued_at_the_same_moment_is_not_that_of_a_restored_database(
    operations: Operations,
) -> None:
    assert operations.prepare(task("o9", order=9, issued_ms=900)) == Outcome("o9")
    assert "later order" in str(operations.release(task("o8", order=8, issued_ms=900)).fault)


def test_devices_that_hang_keep_no_other_waiting(operations: Operations, driver: Recorder) -> None:
    gate = threading.Event()
    driver.then = lambda: cast(None, gate.wait(10))
    for number in range(40):
        operations.repair(WorkKind.PREPARE, task(f"r{number}", str(number)), since=0)
    assert wait_until(lambda: driver.calls == ["prepare 0"], timeout=5)
    driver.then = lambda: None
    assert operations.prepare(task("o1", device_key="another")) == Outcome("o1")
    gate.set()


@pytest.mark.parametrize("ended", [True, False])
def test_the_journal_knows_what_was_under_way(
    operations: Operations, driver: Recorder, tmp_path: Path, ended: bool
) -> None:
    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    driver.then = (lambda: None) if ended else die
    with contextlib.suppress(Died):
        operations.prepare(task("o1"))
    found = OperationJournal(StateFiles(tmp_path), "host").suspects
    assert found == (frozenset() if ended else {Unit("u", "k")})


def test_an_image_that_finds_no_room_is_fetched_later(
    operations: Operations, driver: Recorder, images: Path
) -> None:
    images.write_text("in the way")
    with pytest.raises(exception.Unavailable, match="images"):
        operations.program(image("o1", "image"))
    images.unlink()
    assert operations.program(image("o1", "image")) == Outcome("o1")
    assert driver.calls == ["program data of image"]


def test_a_restored_database_is_heard(operations: Operations) -> None:
    """Its orders begin again where the backup was made; only time goes on."""
    assert operations.prepare(task("o9", order=9, issued_ms=900)) == Outcome("o9")
    stale = operations.release(task("o8", order=8, issued_ms=800))
    assert "later order" in str(stale.fault)
    assert operations.release(task("o5", order=5, issued_ms=1000)) == Outcome("o5")
    assert "later order" in str(operations.prepare(task("o4", order=4, issued_ms=950)).fault)
    assert operations.prepare(task("o6", order=6, issued_ms=1100)) == Outcome("o6")


def test_without_a_moment_only_the_order_counts(operations: Operations) -> None:
    assert operations.prepare(task("o9", order=9)) == Outcome("o9")
    assert "later order" in str(operations.release(task("o8", order=8, issued_ms=8)).fault)


def test_program(operations: Operations, driver: Recorder, images: Path) -> None:
    for _ in range(2):
        assert operations.program(image("o1", "image")) == Outcome("o1")
    assert driver.calls == ["program data of image"]
    assert list(images.iterdir()) == []


def test_an_image_that_is_not_there(operations: Operations, driver: Recorder) -> None:
    outcome = operations.program(image("o1", "none"))
    assert "Image none could not be found" in str(outcome.fault)
    assert driver.calls == []


def test_glance_is_asked_again_later(operations: Operations, driver: Recorder) -> None:
    for _ in range(2):
        with pytest.raises(exception.Unavailable):
            operations.program(image("o1", "away"))
    assert driver.calls == []


@impatient
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


def test_an_image_that_was_ordered_earlier_does_not_come_after_a_later_one(
    operations: Operations, driver: Recorder
) -> None:
    later, earlier = image("o2", "later", order=2), image("o1", "earlier", order=1)
    assert wait_until(lambda: operations.program(later).done, timeout=5)
    done = list(driver.calls)
    refusals: list[str | None] = []

    def refused() -> bool:
        refusals.append(operations.program(earlier).fault)
        return refusals[-1] is not None

    assert wait_until(refused, timeout=5)
    assert "later order" in str(refusals[-1])
    assert driver.calls == done
    # What is done to the deployable's units has an order of its own.
    assert wait_until(lambda: operations.prepare(task("p1", order=1)).done, timeout=5)
    assert len(driver.calls) == len(done) + 1

# SPDX-License-Identifier: Apache-2.0
"""Tasks on hardware: each request key runs once, and each device runs one at a time."""

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.state_store import StateStore, TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import CleanStep, Driver, ImageFile, Progress, ResetLevel, no_progress
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import Device, Hardware
from cyborg.model.health import DeviceHealth
from cyborg.model.work import (
    HandleTask,
    ImageOrder,
    InstallTask,
    Outcome,
    PartitionTask,
    ProgramTask,
    Unit,
    WorkKind,
)
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually, joined, result


class Recorder(Driver):
    """A driver that records its calls, and calls ``action`` in each of them."""

    name = "recorder"
    can_program = True

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.calls: list[str] = []
        self.active = 0
        self.most_active = 0
        self.action: Callable[[], None] = lambda: None
        #: What it lists.
        self.devices: list[Hardware] = []
        self.steps: list[CleanStep] = []
        #: The number of calls before each request of a scan.
        self.scans: list[int] = []
        #: Whether the last scan took a unit for ours that a guest may have.
        self.took_for_ours = False
        self._lock = threading.Lock()

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def hardware(self, scan: Scan) -> list[Hardware]:
        self.took_for_ours = scan.is_managed("u")
        return self.devices

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        self._run(f"install {device_key}")

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        super().prepare(task, image, progress=progress)
        self._run(f"prepare {task.handle_key}")

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self._run(f"release {task.handle_key}")

    def clean_steps(self, task: HandleTask) -> list[CleanStep]:
        return self.steps

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        self._run(f"reset {device_key} {level}")

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        self._run(f"program {Path(image_path).read_text()}")

    def request_scan(self) -> None:
        """Note that the hardware is to be read again."""
        self.scans.append(len(self.calls))

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        progress(0.5, "creating parts")
        self._run(f"partition {card_key} {layout}")

    def hang(self) -> Gate:
        """Let each call hang at this gate."""
        gate = Gate()
        self.action = gate.hold
        return gate

    def fail(self) -> None:
        """Let each call fail."""

        def fail() -> None:
            raise RuntimeError("vendor's error")

        self.action = fail

    def _run(self, call: str) -> None:
        with self._lock:
            self.calls.append(call)
            self.active += 1
            self.most_active = max(self.active, self.most_active)
        try:
            self.action()
        finally:
            with self._lock:
                self.active -= 1


class FakeGlance:
    """Any image, except "none", which does not exist, and "away", while Glance is away."""

    def download(self, image_uuid: str, into: Path) -> None:
        if image_uuid == "away":
            raise exception.Unavailable(peer="Glance", reason="away")
        if image_uuid == "none":
            raise exception.NotFound(noun="Image", key=image_uuid)
        into.write_text(f"data of {image_uuid}")

    def with_function(self, function_id: str) -> str:
        return f"image of {function_id}"


@pytest.fixture
def driver() -> Recorder:
    return Recorder()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The directory for images on their way into a device."""
    return tmp_path / "state" / "images"


@pytest.fixture
def timeout() -> float:
    """The timeout of a call, in seconds; long enough for a driver that does not hang."""
    return PATIENCE


#: For tests with a driver that hangs: a call ends before its task does.
short_timeout = pytest.mark.parametrize("timeout", [0.1])


#: How many tasks are remembered by request key.
MAX_TASKS = 20


@pytest.fixture
def tasks(driver: Recorder, tmp_path: Path, images: Path, timeout: float) -> Iterator[DeviceTasks]:
    tasks = DeviceTasks(
        drivers={"recorder": driver},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=lambda: cast(Glance, FakeGlance()),
        images=images,
        timeout=timeout,
        request_scan=driver.request_scan,
        worker=Worker(),
        health=lambda name, key: DeviceHealth(f"{name} {key}"),
        on_reset=lambda name, key: driver.calls.append(f"{name} has reset {key}"),
        max_tasks=MAX_TASKS,
    )
    yield tasks
    tasks.stop()


def task(request_key: str, key: str = "k", **changes: Any) -> HandleTask:
    values = {"driver": "recorder", "device_key": "d", "deployable": "u", "handle_uuid": "h"}
    return HandleTask(request_key=request_key, handle_key=key, **{**values, **changes})


def image(request_key: str, uuid: str, order: int = 0) -> ProgramTask:
    return ProgramTask(request_key, "recorder", "d", "u", uuid, order=order)


def entry(**changes: Any) -> Hardware:
    return Hardware("d", "FPGA", "v", "m", offered=True, **changes)


def wait_for_device(tasks: DeviceTasks) -> None:
    """Wait until all tasks of the device have ended."""
    last = task("last", "last")
    eventually(lambda: tasks.prepare(last).done)


def test_each_operation_runs_once(tasks: DeviceTasks, driver: Recorder) -> None:
    assert [tasks.prepare(task("o1")) for _ in range(3)] == [Outcome("o1")] * 3
    assert tasks.prepare(task("o2")) == Outcome("o2")
    assert tasks.release(task("o3")) == Outcome("o3")
    assert driver.calls == ["prepare k", "prepare k", "release k"]


@short_timeout
def test_a_slow_operation_continues_and_its_result_is_polled(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    gate = driver.hang()
    for _ in range(3):
        assert tasks.prepare(task("o1")) == Outcome("o1", done=False)
    gate.set()
    eventually(lambda: tasks.prepare(task("o1")).done)
    assert driver.calls == ["prepare k"]


def test_a_failed_operation_may_be_tried_again_and_is_not_interrupted(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path
) -> None:
    driver.fail()
    outcome = tasks.prepare(task("o1"))
    assert outcome.done
    assert "vendor's error" in str(outcome.fault)
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted
    driver.action = lambda: None
    assert tasks.prepare(task("o1")) == Outcome("o1")
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted

    class Stopped(BaseException):
        pass

    def stop() -> None:
        raise Stopped

    driver.action = stop
    with contextlib.suppress(Stopped):
        tasks.prepare(task("o2"))
    units = TaskJournal(StateStore(tmp_path, "host")).interrupted_units
    assert units == {Unit("u", "k")}


@short_timeout
def test_each_device_runs_one_operation_at_a_time(tasks: DeviceTasks, driver: Recorder) -> None:
    gate = driver.hang()
    outcomes = [tasks.prepare(task(f"o{key}", str(key))) for key in range(3)]
    assert {outcome.done for outcome in outcomes} == {False}
    eventually(lambda: driver.calls == ["prepare 0"])
    tasks.prepare(task("other", "x", device_key="another"))
    eventually(lambda: driver.calls == ["prepare 0", "prepare x"])
    gate.set()
    eventually(lambda: all(tasks.prepare(task(f"o{key}", str(key))).done for key in range(3)))
    assert driver.most_active == 2
    assert len(driver.calls) == 4


def test_a_task_that_arrives_after_a_later_one_is_refused(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    """A prepare after the release of its ARQ, and a release after the next prepare."""
    assert tasks.prepare(task("o1", order=1)) == Outcome("o1")
    assert tasks.release(task("o3", order=3)) == Outcome("o3")
    assert "later order" in str(tasks.prepare(task("o2", order=2)).fault)
    assert tasks.prepare(task("o4", order=4)) == Outcome("o4")
    assert "later order" in str(tasks.release(task("o3 again", order=3)).fault)
    assert tasks.prepare(task("p1", "other", handle_uuid="other", order=1)) == Outcome("p1")
    assert driver.calls == ["prepare k", "release k", "prepare k", "prepare other"]


def test_a_repair_runs_in_the_background(tasks: DeviceTasks, driver: Recorder) -> None:
    gate = driver.hang()
    since = tasks.change_count
    for _ in range(3):
        tasks.repair(WorkKind.PREPARE, task("r1"), since=since)
    tasks.repair(WorkKind.RELEASE, task("r2", "other"), since=since)
    eventually(lambda: driver.calls == ["prepare k"])
    gate.set()
    # Once, although it was requested three times while it was running.
    eventually(lambda: driver.calls == ["prepare k", "release other"])


def test_a_repair_is_skipped_after_a_later_task(tasks: DeviceTasks, driver: Recorder) -> None:
    """The result of a comparison before a bind or an unbind must not revert it."""
    since = tasks.change_count
    tasks.prepare(task("o1", order=1))
    tasks.repair(WorkKind.RELEASE, task("r1"), since=since)
    tasks.release(task("o2", order=2))
    tasks.repair(WorkKind.PREPARE, task("r2"), since=since)
    wait_for_device(tasks)
    assert driver.calls == ["prepare k", "release k", "prepare last"]


@short_timeout
def test_a_repair_is_skipped_after_a_task_that_was_running(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    gate = driver.hang()
    tasks.release(task("o1", order=1))
    tasks.repair(WorkKind.PREPARE, task("r1"), since=tasks.change_count)
    gate.set()
    wait_for_device(tasks)
    assert driver.calls == ["release k", "prepare last"]


def test_a_task_runs_after_an_earlier_repair(tasks: DeviceTasks, driver: Recorder) -> None:
    tasks.repair(WorkKind.PREPARE, task("r1"), since=tasks.change_count)
    assert tasks.release(task("o1", order=1)) == Outcome("o1")
    assert driver.calls == ["prepare k", "release k"]
    # A repair has no order, so that no task makes it late.
    tasks.repair(WorkKind.PREPARE, task("r2"), since=tasks.change_count)
    eventually(lambda: driver.calls[2:] == ["prepare k"])


@short_timeout
def test_repairs_are_not_queued_behind_a_device_that_hangs(
    tasks: DeviceTasks, driver: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Each comparison requests the repair again while the device hangs."""
    caplog.set_level(logging.INFO)
    gate = driver.hang()
    for _ in range(5):
        tasks.repair(WorkKind.PREPARE, task("r1"), since=tasks.change_count)
    gate.set()
    wait_for_device(tasks)
    assert driver.calls == ["prepare k", "prepare last"]
    assert "skipped" not in caplog.text


def test_a_repair_is_skipped_after_an_earlier_repair(tasks: DeviceTasks, driver: Recorder) -> None:
    """A comparison that began before the first repair ended has not seen its result."""
    since = tasks.change_count
    tasks.repair(WorkKind.PREPARE, task("r1"), since=since)
    wait_for_device(tasks)
    tasks.repair(WorkKind.RELEASE, task("r2"), since=since)
    assert tasks.prepare(task("later", "later")).done
    assert driver.calls == ["prepare k", "prepare last", "prepare later"]


def test_only_the_last_tasks_are_remembered(tasks: DeviceTasks, driver: Recorder) -> None:
    for number in range(MAX_TASKS + 1):
        tasks.prepare(task(f"o{number}", str(number), order=number))
    count = len(driver.calls)
    tasks.prepare(task(f"o{MAX_TASKS}", str(MAX_TASKS), order=MAX_TASKS))
    tasks.prepare(task("o1", "1", order=1))
    assert len(driver.calls) == count
    tasks.prepare(task("o0", "0"))
    assert driver.calls[count:] == ["prepare 0"]


def test_a_device_that_hangs_blocks_no_other_device(tasks: DeviceTasks, driver: Recorder) -> None:
    gate = driver.hang()
    for number in range(40):
        tasks.repair(WorkKind.PREPARE, task(f"r{number}", str(number)), since=0)
    eventually(lambda: driver.calls == ["prepare 0"])
    driver.action = lambda: None
    assert tasks.prepare(task("o1", device_key="another")) == Outcome("o1")
    gate.set()


@short_timeout
def test_stop_waits_for_the_running_task(tasks: DeviceTasks, driver: Recorder) -> None:
    gate, ended = Gate(), threading.Event()

    def slow() -> None:
        gate.hold()
        ended.set()

    driver.action = slow
    tasks.prepare(task("o1"))
    gate.reached()
    stopper = threading.Thread(target=tasks.stop)
    stopper.start()
    stopper.join(0.2)
    assert stopper.is_alive()
    gate.set()
    joined(stopper)
    assert ended.is_set()


def test_agent_stops_while_a_driver_hangs_and_begins_no_other_task(
    driver: Recorder, tmp_path: Path, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = driver.hang()
    store = StateStore(tmp_path, "host")
    tasks = DeviceTasks(
        drivers={"recorder": driver},
        journal=TaskJournal(store),
        glance=lambda: cast(Glance, FakeGlance()),
        images=images,
        timeout=PATIENCE,
        request_scan=lambda: None,
        worker=Worker(wait=gate.limit),
    )
    assert not tasks.prepare(task("o1")).done
    assert not tasks.release(task("o2")).done
    tasks.stop()
    assert "The agent stops during prepare of d, which has not ended" in caplog.text
    # The next process repeats or reverts it.
    assert TaskJournal(store).has_interrupted
    gate.set()
    with pytest.raises(exception.Unavailable, match="it stops"):
        tasks.release(task("o2"))
    assert driver.calls == ["prepare k"]


def test_an_image_is_refused_after_one_with_a_later_order(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    later, earlier = image("o2", "later", order=2), image("o1", "earlier", order=1)
    eventually(lambda: tasks.program(later).done)
    calls = list(driver.calls)
    refusals: list[str | None] = []

    def refused() -> bool:
        refusals.append(tasks.program(earlier).fault)
        return refusals[-1] is not None

    eventually(refused)
    assert "later order" in str(refusals[-1])
    assert driver.calls == calls
    # The handles of the deployable have orders of their own.
    eventually(lambda: tasks.prepare(task("p1", order=1)).done)
    assert len(driver.calls) == len(calls) + 1


def test_images_of_an_earlier_process_are_removed(tmp_path: Path, images: Path) -> None:
    images.mkdir(parents=True)
    (images / "image").write_text("data")
    DeviceTasks(
        drivers={},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=lambda: cast(Glance, FakeGlance()),
        images=images,
        timeout=PATIENCE,
        request_scan=lambda: None,
        worker=Worker(),
    ).stop()
    assert not images.exists()


@pytest.mark.parametrize(
    ("order", "calls", "loaded"),
    [
        (
            ImageOrder("image", exclusive=True),
            ["program data of image", "prepare k"],
            "image",
        ),
        (ImageOrder("image", exclusive=True, prepare=False), ["program data of image"], "image"),
        (ImageOrder("image", loaded="image"), ["prepare k"], "image"),
        (
            ImageOrder(function_id="f", loaded="image", exclusive=True),
            ["program data of image of f", "prepare k"],
            "image of f",
        ),
        (ImageOrder(function_id="f", loaded="image of f"), ["prepare k"], "image of f"),
    ],
)
def test_the_image_of_a_bind_is_loaded_if_it_is_not_there(
    tasks: DeviceTasks, driver: Recorder, order: ImageOrder, calls: list[str], loaded: str
) -> None:
    assert tasks.prepare(task("o1"), order) == Outcome("o1", image=loaded)
    assert driver.calls == calls


@pytest.mark.parametrize(
    ("verb", "fails", "end"),
    [
        (
            WorkKind.PREPARE,
            False,
            "completed: a guest has it",
        ),
        (
            WorkKind.RELEASE,
            False,
            "completed: no guest has it",
        ),
        (
            WorkKind.PREPARE,
            True,
            "failed: Driver recorder failed",
        ),
    ],
    ids=["prepared", "released", "failed"],
)
def test_the_end_of_a_repair_is_logged(
    tasks: DeviceTasks,
    driver: Recorder,
    caplog: pytest.LogCaptureFixture,
    verb: WorkKind,
    fails: bool,
    end: str,
) -> None:
    caplog.set_level(logging.INFO)
    if fails:
        driver.fail()
    tasks.repair(verb, task("r1"), since=tasks.change_count)
    wait_for_device(tasks)
    (logged,) = (text for text in caplog.messages if text.startswith("Repair "))
    line = f"Repair ({verb}) of handle k of deployable u {end}"
    assert logged.startswith(line)
    assert fails or logged == line


def test_a_task_of_a_restored_database_is_run(tasks: DeviceTasks) -> None:
    """Its orders continue from the backup, but their times of issue are later."""

    def late(order: int, issued_ms: int) -> bool:
        handle = task(f"o{order} {issued_ms}", order=order, issued_ms=issued_ms)
        outcome = tasks.prepare(handle)
        assert outcome.fault is None or "later order" in outcome.fault
        return outcome.fault is not None

    assert not late(9, 900)
    assert late(8, 800)
    assert late(8, 900)
    assert not late(5, 1000)
    assert late(4, 950)
    assert not late(6, 1100)
    # Without a time of issue only the order counts.
    assert tasks.release(task("o9", order=9)) == Outcome("o9")
    assert late(8, 8)


def test_an_image_is_loaded_once_and_its_file_removed(
    tasks: DeviceTasks, driver: Recorder, images: Path
) -> None:
    images.parent.mkdir()
    images.write_text("a file")
    with pytest.raises(exception.Unavailable, match="images"):
        tasks.program(image("o1", "image"))
    images.unlink()
    for _ in range(2):
        assert tasks.program(image("o1", "image")) == Outcome("o1")
    assert driver.calls == ["program data of image"]
    assert list(images.iterdir()) == []
    # No other user can read it.
    assert images.stat().st_mode & 0o777 == 0o700
    assert tasks.program(image("o2", "image")) == Outcome("o2")


def test_nothing_is_loaded_without_driver_image_or_glance(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    outcome = tasks.program(image("o1", "none"))
    assert "Image none could not be found" in str(outcome.fault)
    for _ in range(2):
        with pytest.raises(exception.Unavailable):
            tasks.program(image("o2", "away"))
    with pytest.raises(exception.Unavailable, match="not loaded"):
        tasks.prepare(task("o3", driver="unknown"))
    for loaded in (None, "image"):
        outcome = tasks.prepare(task("o4"), ImageOrder("another", loaded=loaded))
        words = f"u is in use with image {loaded or 'unknown'}, and image another"
        assert words in str(outcome.fault)
    assert driver.calls == []
    tasks.release(task("o6", order=2))
    outcome = tasks.prepare(task("o5", order=1), ImageOrder("image", exclusive=True))
    assert "later order" in str(outcome.fault)
    assert driver.calls == ["release k"]


@pytest.mark.parametrize(
    ("devices", "fault", "note"),
    [
        ([replace(entry(setup_required=True), key="another"), entry()], None, None),
        ([entry(reboot_required=True)], None, "Its host has to be rebooted."),
        (
            [entry(reboot_required=True, reason="new firmware")],
            None,
            "Its host has to be rebooted: new firmware",
        ),
        ([], "the driver does not list the device any more", None),
        ([entry(setup_required=True)], "it still has to be set up", None),
        ([entry(setup_required=True, reason="no licence")], "no licence", None),
        (
            [entry(setup_required=True, reboot_required=True)],
            "the host has to be rebooted before it is ready (it still has to be set up)",
            None,
        ),
    ],
)
def test_a_device_is_set_up_and_the_hardware_read_again(
    tasks: DeviceTasks,
    driver: Recorder,
    caplog: pytest.LogCaptureFixture,
    devices: list[Hardware],
    fault: str | None,
    note: str | None,
) -> None:
    driver.devices = devices
    outcome = tasks.install(InstallTask("o1", "recorder", "d"))
    assert driver.calls == ["install d"]
    assert driver.scans == [1]
    # Else a device that a guest holds would be missing.
    assert driver.took_for_ours
    if fault is None:
        assert outcome == Outcome("o1", note=note, health=DeviceHealth("recorder d"))
    else:
        assert str(outcome.fault).endswith(fault)
    assert ("install of d failed" in caplog.text) == (fault is not None)


def journalled(tmp_path: Path) -> list[tuple[str, str | None, bool]]:
    """Return verb, fault and end of the rows of the journal."""
    (file,) = tmp_path.glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT verb, fault, ended_at FROM tasks ORDER BY rowid")
        return [(verb, fault, ended is not None) for verb, fault, ended in rows]


def step(driver: Recorder, name: str, **values: Any) -> CleanStep:
    return CleanStep(name, lambda progress: driver._run(f"step {name}"), **values)


def test_clean_steps_follow_a_release_in_their_order(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path
) -> None:
    driver.steps = [
        step(driver, "low", priority=1),
        step(driver, "first", priority=90),
        CleanStep("reset", ResetLevel.FUNCTION, priority=50),
    ]
    outcome = tasks.release(task("o1"))
    assert outcome == Outcome("o1", cleaned=outcome.cleaned)
    assert [step.name for step in outcome.cleaned] == ["first", "reset", "low"]
    assert all(0 <= step.ms < 60_000 for step in outcome.cleaned)
    assert driver.calls == [
        *("release k", "step first", "reset d function", "recorder has reset d", "step low")
    ]
    assert journalled(tmp_path) == [("clean step low", None, True)]


def test_step_says_which_device_it_has_reset(tasks: DeviceTasks, driver: Recorder) -> None:
    """A unit may be a part of its device: a virtual function."""
    driver.steps = [step(driver, "vf reset", resets="vf"), step(driver, "tidy", priority=1)]
    assert tasks.release(task("o1")).fault is None
    assert driver.calls == ["release k", "step vf reset", "recorder has reset vf", "step tidy"]


@pytest.mark.parametrize(
    ("spec", "calls"),
    [
        ({}, ["release k", "step tidy"]),
        ({"clean": "none"}, ["release k"]),
        ({"clean": "reset"}, ["release k", "step tidy"]),
        ({"clean": "full"}, ["release k", "step erase", "step tidy"]),
    ],
    ids=str,
)
def test_level_of_the_conductor_decides_which_steps_run(
    tasks: DeviceTasks, driver: Recorder, spec: dict[str, str], calls: list[str]
) -> None:
    driver.steps = [
        step(driver, "erase", level=CleanLevel.FULL, priority=60),
        step(driver, "tidy"),
    ]
    outcome = tasks.release(replace(task("o1"), spec=spec))
    assert driver.calls == calls
    assert [f"step {step.name}" for step in outcome.cleaned] == calls[1:]


def test_repair_never_erases_data(tasks: DeviceTasks, driver: Recorder) -> None:
    """The unit may never have been given to a guest."""
    driver.steps = [step(driver, "erase", level=CleanLevel.FULL), step(driver, "tidy")]
    tasks.repair(WorkKind.RELEASE, task("r1"), since=tasks.change_count)
    wait_for_device(tasks)
    assert driver.calls == ["release k", "step tidy", "prepare last"]


@pytest.mark.parametrize("level", ["reset", "full"])
def test_release_fails_where_a_unit_must_be_cleaned_and_nothing_can_be(
    tasks: DeviceTasks, level: str
) -> None:
    outcome = tasks.release(replace(task("o1"), spec={"clean": level}))
    assert "no safe way is known to remove the data of the last guest" in str(outcome.fault)
    assert "--free-unit" in str(outcome.fault)


def test_clean_steps_follow_the_release_of_a_repair(tasks: DeviceTasks, driver: Recorder) -> None:
    driver.steps = [step(driver, "erase")]
    tasks.repair(WorkKind.RELEASE, task("r1"), since=tasks.change_count)
    tasks.repair(WorkKind.PREPARE, task("r2", "other"), since=tasks.change_count)
    wait_for_device(tasks)
    assert driver.calls == ["release k", "step erase", "prepare other", "prepare last"]


def test_a_clean_step_that_fails_ends_the_release(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path
) -> None:
    def refuse(progress: Progress) -> None:
        raise exception.HostError(action="erasing", reason="no power")

    driver.steps = [CleanStep("erase", refuse), step(driver, "later", priority=1)]
    fault = str(tasks.release(task("o1")).fault)
    assert "no power" in fault
    assert driver.calls == ["release k"]
    assert journalled(tmp_path) == [("clean step erase", fault, True)]


def test_nothing_runs_beside_a_clean_step_that_exceeds_its_limit(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    gate = Gate()
    driver.steps = [CleanStep("erase", lambda progress: gate.hold(), timeout=0.05)]
    fault = tasks.release(task("o1")).fault
    assert "clean step erase" in str(fault)
    assert "it did not end within 0.05 s" in str(fault)
    with pytest.raises(exception.Unavailable, match="clean step erase has not ended yet"):
        tasks.prepare(task("o2", "other"))
    # The conductor counts it as a refusal: after some, Placement does not offer the unit any more.
    assert "clean step erase has not ended yet" in str(tasks.release(task("o1")).fault)
    assert tasks.prepare(task("o3", device_key="another")) == Outcome("o3")
    assert driver.calls == ["release k", "prepare k"]
    gate.set()
    driver.steps = []

    eventually(lambda: tasks.release(task("o1")) == Outcome("o1"))


@pytest.mark.parametrize("interruptible", [True, False])
def test_an_agent_that_stops_waits_for_steps_that_cannot_be_interrupted(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path, interruptible: bool
) -> None:
    gate, ended = Gate(), threading.Event()

    def erase(progress: Progress) -> None:
        gate.hold()
        ended.set()

    driver.steps = [
        CleanStep("erase", erase, interruptible=interruptible),
        step(driver, "later", priority=1),
    ]
    failures: list[str] = []

    def release() -> None:
        try:
            tasks.release(task("o1"))
        except exception.Unavailable as error:
            failures.append(str(error))

    caller = threading.Thread(target=release)
    caller.start()
    gate.reached()
    stopper = threading.Thread(target=tasks.stop)
    stopper.start()
    # A driver that hangs does not keep the process from ending.
    assert all(thread.daemon for thread in threading.enumerate() if "clean-" in thread.name)
    if interruptible:
        joined(stopper)
        # The next process finds the row without an end, and begins the release again.
        assert journalled(tmp_path) == [("clean step erase", None, False)]
        assert not ended.is_set()
        gate.set()
    else:
        stopper.join(0.2)
        assert stopper.is_alive()
        gate.set()
        joined(stopper)
        assert ended.is_set()
    joined(caller)
    assert "it stops" in failures[0]
    assert driver.calls == ["release k"]


def test_a_late_bind_loads_no_image(tasks: DeviceTasks, driver: Recorder) -> None:
    """Not even from Glance, which may be away."""
    assert tasks.prepare(task("o2", order=2)) == Outcome("o2")
    late = tasks.prepare(task("o1", order=1), ImageOrder("away", exclusive=True))
    assert "later order" in str(late.fault)


@short_timeout
def test_the_progress_of_an_earlier_attempt_is_forgotten(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    gate = Gate()

    def fail(progress: Progress) -> None:
        progress(0.9, "verifying")
        raise exception.HostError(action="erasing", reason="no power")

    driver.steps = [CleanStep("erase", fail)]
    eventually(lambda: tasks.release(task("o1")).fault is not None)
    driver.steps = [CleanStep("erase", lambda progress: gate.hold())]
    outcomes = [tasks.release(task("o1")) for _ in range(2)]
    gate.set()
    assert outcomes == [Outcome("o1", done=False)] * 2


@short_timeout
def test_the_progress_of_a_long_call_is_told(tasks: DeviceTasks, driver: Recorder) -> None:
    gate = Gate()

    def erase(progress: Progress) -> None:
        progress(0.4, "block 17\nof 40")
        gate.hold()

    driver.steps = [CleanStep("erase", erase)]

    def told() -> bool:
        return tasks.release(task("o1")).progress == "erase, 40%: block 17 of 40"

    eventually(told)
    gate.set()
    eventually(lambda: tasks.release(task("o1")).done)


@pytest.mark.parametrize(
    "values",
    [
        {"timeout": 0.0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"timeout": None},
        {"timeout": "5"},
        {"priority": None},
        {"priority": float("nan")},
        {"name": ""},
        {"name": "erase\nClean step erase completed"},
        {"name": None},
        {"work": None},
        {"work": "function"},
        {"level": CleanLevel.NONE},
        {"level": None},
    ],
    ids=str,
)
def test_a_clean_step_that_is_not_valid_fails_the_release(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path, values: dict[str, Any]
) -> None:
    """The release can be tried again, and no row of the journal stays open."""

    class Careless(Recorder):
        def clean_steps(self, task: HandleTask) -> list[CleanStep]:
            return [CleanStep(**{"name": "erase", "work": lambda progress: None, **values})]

    tasks._drivers = {"recorder": Careless()}
    assert "clean_steps" in str(tasks.release(task("o1")).fault)
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted
    tasks._drivers = {"recorder": driver}
    assert tasks.release(task("o1")) == Outcome("o1")


@pytest.mark.parametrize("steps", [None, 7, ["erase"], [None]], ids=str)
def test_clean_steps_of_another_type_fail_the_release(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path, steps: Any
) -> None:
    driver.steps = steps
    assert "clean_steps" in str(tasks.release(task("o1")).fault)
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted


def test_a_driver_that_exits_fails_its_operation_only(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path
) -> None:
    def leave(progress: Progress) -> None:
        raise SystemExit("no licence")

    driver.action = lambda: leave(no_progress)
    assert "no licence" in str(tasks.prepare(task("o1")).fault)
    driver.action = lambda: None
    driver.steps = [CleanStep("erase", leave)]
    assert "no licence" in str(tasks.release(task("o1")).fault)
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted


@short_timeout
def test_progress_that_nobody_can_ask_for_is_dropped(tasks: DeviceTasks, driver: Recorder) -> None:
    """That of an operation that has ended, or of a repair under the same id."""
    told: list[Progress] = []
    gate = Gate()

    def erase(progress: Progress) -> None:
        told.append(progress)
        progress(0.9, "verifying")

    driver.steps = [CleanStep("erase", erase)]
    tasks.repair(WorkKind.RELEASE, task("o1"), since=tasks.change_count)
    wait_for_device(tasks)
    eventually(lambda: tasks.release(task("o2")).done)
    for progress in told:
        progress(0.5, "too late")
    driver.steps = [CleanStep("erase", lambda progress: gate.hold())]
    tasks._requested.clear()
    outcomes = [tasks.release(task(key)) for key in ("o1", "o2")]
    gate.set()
    assert outcomes == [Outcome("o1", done=False), Outcome("o2", done=False)]
    eventually(lambda: tasks.release(task("o2")).done)
    assert tasks._progress == {}


def test_a_unit_whose_repair_could_not_clean_it_is_cleaned_before_a_guest_gets_it(
    tasks: DeviceTasks, driver: Recorder
) -> None:
    power = False

    def erase(progress: Progress) -> None:
        driver.calls.append("erase")
        if not power:
            raise exception.HostError(action="erasing", reason="no power")

    driver.steps = [CleanStep("erase", erase)]
    tasks.repair(WorkKind.RELEASE, task("r1"), since=tasks.change_count)
    wait_for_device(tasks)
    assert "no power" in str(tasks.prepare(task("o1")).fault)
    assert driver.calls == ["release k", "erase", "prepare last", "release k", "erase"]
    power = True
    assert tasks.prepare(task("o1")) == Outcome("o1")
    assert tasks.prepare(task("o2")) == Outcome("o2")
    assert driver.calls[5:] == ["release k", "erase", "prepare k", "prepare k"]


def test_the_hardware_is_read_again_after_each_change(tasks: DeviceTasks, driver: Recorder) -> None:
    """Also after a change that failed, because it may have changed something."""
    tasks.prepare(task("o1"))
    assert driver.scans == [1]
    tasks.program(image("o2", "a"))
    assert driver.scans == [1, 2]
    driver.steps = [step(driver, "erase")]
    tasks.release(task("o3"))
    assert driver.scans == [1, 2, 3, 4]
    driver.fail()
    assert tasks.prepare(task("o4")).fault is not None
    assert driver.scans == [1, 2, 3, 4, 5]
    # What was refused has changed nothing.
    driver.action = lambda: None
    tasks.prepare(task("o5", order=5))
    tasks.prepare(task("o4", order=4))
    assert driver.scans == [1, 2, 3, 4, 5, 6]


def test_the_hardware_is_read_again_after_a_repair(tasks: DeviceTasks, driver: Recorder) -> None:
    tasks.repair(WorkKind.PREPARE, task("r1"), since=tasks.change_count)
    eventually(lambda: driver.scans == [1])


def partition(request_key: str) -> PartitionTask:
    return PartitionTask(request_key, "recorder", "d", "vfs=2")


def test_a_card_is_divided_by_one_operation_at_a_time_and_scanned_again(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    gate = driver.hang()
    running = [tasks.partition(partition(key)) for key in ("o1", "o2")]
    gate.set()
    for operation in running:
        result(operation)
    assert driver.calls == ["partition d vfs=2"] * 2
    assert driver.scans == [1, 2]
    assert driver.most_active == 1
    assert "Card d: 50 % (creating parts)" in caplog.messages
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted


def test_a_card_that_cannot_be_divided_is_scanned_again_and_has_the_reason(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path
) -> None:
    driver.fail()
    with pytest.raises(exception.DriverFailed, match="vendor's error"):
        result(tasks.partition(partition("o1")))
    assert driver.scans == [1]
    assert not TaskJournal(StateStore(tmp_path, "host")).has_interrupted


def test_a_division_that_a_stop_interrupts_is_in_the_journal(
    tasks: DeviceTasks, driver: Recorder, tmp_path: Path
) -> None:
    journals: list[TaskJournal] = []
    driver.action = lambda: journals.append(TaskJournal(StateStore(tmp_path, "host")))
    result(tasks.partition(partition("o1")))
    [journal] = journals
    assert journal.has_interrupted
    assert journal.interrupted_units == frozenset()

# SPDX-License-Identifier: Apache-2.0
"""Tasks on several units, devices and images: one says nothing about another."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.state_store import StateStore, TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import CleanStep, Driver, ImageFile, Progress, no_progress
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, Hardware
from cyborg.model.work import (
    HandleTask,
    ImageOrder,
    InstallTask,
    Outcome,
    ProgramTask,
    WorkKind,
)
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually


class Cards(Driver):
    """A driver that records its calls; ``actions`` are called in those of their names."""

    name = "cards"
    can_program = True

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.calls: list[str] = []
        self.actions: dict[str, Callable[[], object]] = {}
        self.devices: list[Hardware] = []
        self.steps: list[CleanStep] = []

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def hardware(self, scan: Scan) -> list[Hardware]:
        return self.devices

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        super().prepare(task, image, progress=progress)
        self.call(f"prepare {task.handle_key}")

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self.call(f"release {task.handle_key}")

    def clean_steps(self, task: HandleTask) -> list[CleanStep]:
        return self.steps

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        self.call(f"program {task.image_uuid}")

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        self.call(f"install {device_key}")

    def call(self, name: str) -> None:
        self.calls.append(name)
        self.actions.get(name, lambda: None)()

    def fail(self, name: str) -> None:
        """Let the calls of this name fail."""

        def fail() -> None:
            raise RuntimeError("no power")

        self.actions[name] = fail


class AnyImage:
    """A Glance that has every image."""

    def download(self, image_uuid: str, into: Path) -> None:
        into.write_text(image_uuid)


@pytest.fixture
def driver() -> Cards:
    return Cards()


@pytest.fixture
def prepares() -> list[tuple[str, str, str | None]]:
    """Driver, device and fault of each prepare that counts."""
    return []


@pytest.fixture
def scans() -> list[str]:
    """One entry for each request of a scan."""
    return []


@pytest.fixture
def tasks(
    driver: Cards, tmp_path: Path, prepares: list[tuple[str, str, str | None]], scans: list[str]
) -> Iterator[DeviceTasks]:
    tasks = DeviceTasks(
        drivers={"cards": driver},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=lambda: cast(Glance, AnyImage()),
        images=tmp_path / "images",
        timeout=PATIENCE,
        request_scan=lambda: scans.append("scan"),
        worker=Worker(),
        on_prepare=lambda *result: prepares.append(result),
    )
    yield tasks
    tasks.stop()


def task(request_key: str, key: str = "k", **changes: Any) -> HandleTask:
    values = {"driver": "cards", "device_key": "d", "deployable": "u", "handle_uuid": key}
    return HandleTask(request_key=request_key, handle_key=key, **{**values, **changes})


def image(request_key: str, uuid: str, order: int) -> ProgramTask:
    return ProgramTask(request_key, "cards", "d", "u", uuid, order=order)


@pytest.mark.parametrize("level", ["none", "reset"])
def test_unit_that_is_not_clean_stays_so_when_another_is_cleaned(
    tasks: DeviceTasks, driver: Cards, level: str
) -> None:
    driver.fail("erase")
    driver.steps = [CleanStep("erase", lambda progress: driver.call("erase"))]
    for key in ("a", "b"):
        tasks.repair(WorkKind.RELEASE, task(f"repair {key}", key), since=0)
    assert "no power" in str(tasks.release(task("o1", "c")).fault)
    del driver.actions["erase"]
    released = tasks.release(task("o2", "b", spec={"clean": level}))
    assert released.fault is None
    driver.calls.clear()
    assert tasks.prepare(task("o3", "b")) == Outcome("o3")
    assert driver.calls == ["prepare b"]
    # The guest of the other unit gets it only after a release of its own.
    assert tasks.prepare(task("o4", "a")) == Outcome("o4")
    assert driver.calls[1:] == ["release a", "erase", "prepare a"]


def test_only_a_prepare_without_a_new_image_counts_for_the_health_of_the_card(
    tasks: DeviceTasks, driver: Cards, prepares: list[tuple[str, str, str | None]]
) -> None:
    """An image that its user has chosen may be the reason, and takes no card out of service."""
    driver.fail("program bad")
    driver.fail("prepare k")
    driver.fail("release k")
    chosen = ImageOrder("bad", exclusive=True)
    assert "no power" in str(tasks.prepare(task("o1"), chosen).fault)
    assert "no power" in str(tasks.prepare(task("o2"), ImageOrder("a", exclusive=True)).fault)
    assert tasks.program(image("o3", "bad", 0)).fault is not None
    assert tasks.release(task("o4")).fault is not None
    assert tasks.prepare(task("o5", "other"), ImageOrder("b", exclusive=True)).fault is None
    assert prepares == []
    # With the loaded image, or without any, the card itself is the reason.
    tasks.prepare(task("o6"), ImageOrder("a", loaded="a"))
    tasks.prepare(task("o7", device_key="e"))
    assert [place for *place, _ in prepares] == [["cards", "d"], ["cards", "e"]]
    assert all("no power" in str(fault) for *_, fault in prepares)
    tasks.prepare(task("o8", "other"))
    assert prepares[2:] == [("cards", "d", None)]


def test_bind_with_an_image_and_a_programming_of_its_deployable_keep_their_order(
    tasks: DeviceTasks, driver: Cards
) -> None:
    assert tasks.program(image("o1", "later", order=5)) == Outcome("o1")
    # The order of the unit is new, the one of its deployable is late.
    late = tasks.prepare(task("o2", order=4), ImageOrder("earlier", exclusive=True))
    assert "later order" in str(late.fault)
    bound = tasks.prepare(task("o3", order=6), ImageOrder("bound", exclusive=True))
    assert bound == Outcome("o3", image="bound")
    assert "later order" in str(tasks.program(image("o4", "late", order=5)).fault)
    assert tasks.program(image("o5", "next", order=7)) == Outcome("o5")
    assert driver.calls == ["program later", "program bound", "prepare k", "program next"]


def test_change_of_one_unit_does_not_skip_the_repair_of_another(
    tasks: DeviceTasks, driver: Cards
) -> None:
    since = tasks.change_count
    assert tasks.prepare(task("o1", "a")) == Outcome("o1")
    tasks.repair(WorkKind.PREPARE, task("r1", "b"), since=since)
    tasks.repair(WorkKind.RELEASE, task("r2", "a"), since=since)
    assert tasks.prepare(task("o2", "last")) == Outcome("o2")
    assert driver.calls == ["prepare a", "prepare b", "prepare last"]


def test_device_whose_key_is_part_of_another_key_is_set_up(
    tasks: DeviceTasks, driver: Cards, scans: list[str]
) -> None:
    card = Hardware("card-10", "FPGA", "v", "m", offered=False, setup_required=True)
    driver.devices = [card, Hardware("card-1", "FPGA", "v", "m", offered=True)]
    assert tasks.install(InstallTask("o1", "cards", "card-1")).fault is None
    assert tasks.install(InstallTask("o2", "cards", "card-10")).fault is not None
    driver.fail("install card-1")
    assert tasks.install(InstallTask("o3", "cards", "card-1")).fault is not None
    # Also after one that failed, because it may have changed something.
    assert scans == ["scan"] * 3


def test_second_clean_step_that_exceeds_its_limit_keeps_the_device_busy(
    tasks: DeviceTasks, driver: Cards
) -> None:
    """The first one has ended, in this release or in an earlier one."""
    gate = Gate()
    tidy = CleanStep("tidy", lambda progress: driver.call("tidy"), priority=60, timeout=PATIENCE)
    driver.steps = [tidy]
    assert tasks.release(task("o1")).fault is None
    driver.steps = [tidy, CleanStep("erase", lambda progress: gate.hold(), timeout=0.05)]
    assert "clean step erase" in str(tasks.release(task("o2")).fault)
    with pytest.raises(exception.Unavailable, match="clean step erase has not ended yet"):
        tasks.prepare(task("o3"))
    assert tasks.prepare(task("o4", device_key="another")) == Outcome("o4")
    gate.set()
    driver.steps = [tidy]
    eventually(lambda: tasks.release(task("o5")).fault is None, "the erase has ended")


def test_progress_of_an_operation_is_not_that_of_another(tmp_path: Path, driver: Cards) -> None:
    gates = {key: Gate() for key in ("a", "b")}

    def steps(task: HandleTask) -> list[CleanStep]:
        def erase(progress: Progress) -> None:
            progress(0.5, f"block of {task.handle_key}")
            gates[task.handle_key].hold()

        return [CleanStep("erase", erase)]

    driver.clean_steps = steps  # type: ignore[method-assign]
    tasks = DeviceTasks(
        drivers={"cards": driver},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=lambda: cast(Glance, AnyImage()),
        images=tmp_path / "images",
        timeout=0.01,
        request_scan=lambda: None,
        worker=Worker(),
    )
    by_key = {key: task(f"release {key}", key, device_key=key) for key in gates}

    def told(key: str) -> bool:
        return tasks.release(by_key[key]).progress == f"erase, 50%: block of {key}"

    for key in by_key:
        eventually(partial(told, key), f"the progress of unit {key}")
    assert told("a")
    gates["a"].set()
    eventually(lambda: tasks.release(by_key["a"]).done, "the release of unit a")
    assert told("b")
    gates["b"].set()
    tasks.stop()

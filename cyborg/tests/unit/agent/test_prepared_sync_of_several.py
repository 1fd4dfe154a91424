# SPDX-License-Identifier: Apache-2.0
"""The repairs of several units and drivers: the state of one decides about that one only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from oslo_config import cfg

from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.state_store import StateStore, TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver, ImageFile, Progress, no_progress
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Unit, UnitUse, UnitUses, Use
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchUnitUses
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE


class Listing(Driver):
    """A driver that lists ``units``; all drivers share ``calls``. None: it cannot list them."""

    def __init__(self, name: str, units: Sequence[Unit] | None, calls: list[str]) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.name = name  # type: ignore[misc]
        self.units = units
        self.calls = calls
        #: What happens while it lists them.
        self.meanwhile: Callable[[], object] = lambda: None

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        self.meanwhile()
        if self.units is None:
            self._cannot("list its prepared units")
        return self.units

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        if task.handle_key != "last":
            self.calls.append(f"{self.name} prepares {task.handle_key}")

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self.calls.append(f"{self.name} releases {task.handle_key}")


@dataclass
class HostState:
    """An agent with these drivers, and a conductor with the uses of their units."""

    state_path: Path
    calls: list[str] = field(default_factory=list)
    drivers: dict[str, Driver] = field(default_factory=dict)
    uses: list[UnitUse] = field(default_factory=list)

    def __post_init__(self) -> None:
        journal = TaskJournal(StateStore(self.state_path, "host"))
        self.tasks = DeviceTasks(
            drivers=self.drivers,
            journal=journal,
            glance=lambda: cast(Glance, None),
            images=self.state_path / "images",
            timeout=PATIENCE,
            request_scan=lambda: None,
            worker=Worker(),
        )
        self._sync = PreparedUnitsSync(
            drivers=self.drivers,
            tasks=self.tasks,
            journal=journal,
            conductor=cast(ConductorClient, self),
            worker=Worker(),
            timeout=PATIENCE,
        )

    def request(self, _command: FetchUnitUses) -> UnitUses:
        """Answer as the conductor."""
        return UnitUses(tuple(self.uses))

    def add(self, name: str, units: Sequence[Unit] | None) -> Listing:
        driver = self.drivers[name] = Listing(name, units, self.calls)
        return driver

    def sync(self) -> list[str]:
        """Compare, and return the calls of all drivers in any order."""
        self._sync.sync("host", 1)
        for name in self.drivers:
            # It runs after all repairs of the device.
            self.tasks.prepare(task(name, "last"))
        calls = sorted(self.calls)
        self.calls.clear()
        return calls


def task(driver: str, key: str) -> HandleTask:
    return HandleTask(f"{driver} {key}", driver, "d", f"{driver}-u", key, f"uuid of {key}")


def unit(driver: str, key: str) -> Unit:
    return task(driver, key).unit


@pytest.fixture
def state(tmp_path: Path) -> Iterator[HostState]:
    state = HostState(tmp_path)
    yield state
    state.tasks.stop()


def test_each_unit_is_repaired_by_its_own_state(state: HostState) -> None:
    state.add("first", [unit("first", "a"), unit("first", "b"), unit("second", "e")])
    state.add("second", [unit("second", "d")])
    state.uses = [
        UnitUse(task("first", "a"), Use.PREPARED),
        UnitUse(task("first", "b"), Use.FREE),
        UnitUse(task("first", "c"), Use.PREPARED),
        UnitUse(task("second", "d"), Use.FREE),
        # The other driver lists it, but this one has to prepare it.
        UnitUse(task("second", "e"), Use.PREPARED),
    ]
    assert state.sync() == [
        "first prepares c",
        "first releases b",
        "second prepares e",
        "second releases d",
    ]


def test_driver_that_cannot_list_its_units_stops_no_repair_of_another(state: HostState) -> None:
    state.add("first", None)
    state.add("second", [unit("second", "a")])
    state.uses = [
        UnitUse(task("first", "a"), Use.PREPARED),
        UnitUse(task("second", "a"), Use.FREE),
    ]
    assert state.sync() == ["second releases a"]


def test_only_the_unit_of_the_interrupted_operation_is_repeated(tmp_path: Path) -> None:
    TaskJournal(StateStore(tmp_path, "host")).begin("prepare", task("first", "a"))
    state = HostState(tmp_path)
    units = [unit("first", "a"), unit("first", "b")]
    state.add("first", units)
    state.uses = [UnitUse(task("first", key), Use.PREPARED) for key in ("a", "b")]
    assert state.sync() == ["first prepares a"]
    state.tasks.stop()


def test_unit_that_is_bound_while_it_is_compared_is_left_to_its_bind(state: HostState) -> None:
    """The conductor's answer and the driver's list may be of before the bind."""
    driver = state.add("first", [unit("first", "a"), unit("first", "b")])
    state.uses = [UnitUse(task("first", key), Use.FREE) for key in ("a", "b")]
    driver.meanwhile = lambda: state.tasks.prepare(task("first", "a"))
    assert state.sync() == ["first prepares a", "first releases b"]


def test_each_unit_without_a_record_is_logged_and_again_when_it_returns(
    state: HostState, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        caplog.clear()
        state.sync()
        return [text.split()[1] for text in caplog.messages if "has no record of it" in text]

    units = [unit("first", key) for key in ("x", "y")]
    driver = state.add("first", units)
    assert logged() == ["x", "y"]
    driver.units = units[:1]
    assert logged() == []
    driver.units = [*units, unit("first", "z")]
    assert logged() == ["y", "z"]

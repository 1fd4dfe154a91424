# SPDX-License-Identifier: Apache-2.0
"""What the agent does about each unit, from what host, conductor and journal say of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.operations import Operations
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.state_store import OperationJournal, StateFiles
from cyborg.clients.glance import Glance
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Holding, Holdings, Unit, Use
from cyborg.rpc.conductor import ReportClient
from cyborg.testing.fake_host import FakeHost

UNIT = Unit("u", "k")


class Shower(Driver):
    """A driver that shows what it is told to, or throws it."""

    name = "shower"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.shows: Sequence[Unit] | Exception = ()
        self.calls: list[str] = []

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return []

    def prepared(self) -> Sequence[Unit]:
        if isinstance(self.shows, Exception):
            raise self.shows
        return self.shows

    def prepare(self, task: HandleTask) -> None:
        self.calls += [] if task.handle_key == "last" else ["prepare"]

    def release(self, task: HandleTask) -> None:
        self.calls.append("release")


class Dumb(Shower):
    """One that cannot tell."""

    name = "dumb"

    def prepared(self) -> Sequence[Unit]:
        self._cannot("tell what is prepared")


@dataclass
class Conductor:
    """What the conductor says of the one unit; how often it was asked."""

    use: Use = Use.FREE
    driver: str = "shower"
    asked: int = 0
    error: Exception | None = None

    def holdings(self, host: str, epoch: int) -> Holdings:
        self.asked += 1
        if self.error is not None:
            raise self.error
        task = HandleTask("o", self.driver, "d", UNIT.deployable, UNIT.handle_key, "uuid")
        return Holdings((Holding(task, self.use),))


@dataclass
class Bench:
    """A prepared_sync and all around it."""

    directory: Path
    driver: Shower = field(default_factory=Shower)
    conductor: Conductor = field(default_factory=Conductor)

    def tend(self) -> list[str]:
        """One comparison by a new agent; what was done to the hardware."""
        journal = OperationJournal(StateFiles(self.directory), "host")
        drivers = {self.driver.name: self.driver}
        operations = Operations(
            drivers=drivers,
            journal=journal,
            glance=lambda: cast(Glance, None),
            images=self.directory,
            patience=5,
            look_again=lambda: None,
        )
        prepared_sync = PreparedUnitsSync(
            drivers=drivers,
            operations=operations,
            journal=journal,
            conductor=cast(ReportClient, self.conductor),
        )
        try:
            prepared_sync.tend("host", 1)
        finally:
            # Behind all repairs of the device.
            operations.prepare(HandleTask("last", self.driver.name, "d", "u", "last", "uuid"))
            operations.stop()
        calls, self.driver.calls = self.driver.calls, []
        return calls


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def crash(bench: Bench) -> None:
    """An agent ends in the middle of something with the unit."""
    journal = OperationJournal(StateFiles(bench.directory), "host")
    journal.begin("prepare", HandleTask("crashed", bench.driver.name, "d", *UNIT, "uuid"))


@pytest.mark.parametrize(
    ("use", "there", "done"),
    [
        (Use.PREPARED, True, []),
        (Use.PREPARED, False, ["prepare"]),
        (Use.FREE, True, ["release"]),
        (Use.FREE, False, []),
        (Use.IN_TRANSITION, True, []),
        (Use.IN_TRANSITION, False, []),
    ],
)
def test_what_is_done(bench: Bench, use: Use, there: bool, done: list[str]) -> None:
    bench.conductor.use, bench.driver.shows = use, [UNIT] if there else []
    assert bench.tend() == done


@pytest.mark.parametrize("kind", [Shower, Dumb])
@pytest.mark.parametrize(
    ("use", "done"), [(Use.PREPARED, ["prepare"]), (Use.FREE, ["release"]), (Use.IN_TRANSITION, [])]
)
def test_after_a_crash_it_is_done_once_more(
    bench: Bench, kind: type[Shower], use: Use, done: list[str]
) -> None:
    """Nobody knows how far it got, whatever the host shows."""
    bench.driver, bench.conductor = kind(), Conductor(use, kind.name)
    bench.driver.shows = [UNIT] if use is Use.PREPARED else []
    crash(bench)
    assert bench.tend() == done
    # That was that.
    assert bench.tend() == []


def test_what_the_conductor_could_not_be_asked_about_is_done_later(bench: Bench) -> None:
    crash(bench)
    bench.conductor.error = exception.Unavailable(peer="conductor", reason="away")
    with pytest.raises(exception.Unavailable):
        bench.tend()
    bench.conductor.error = None
    assert bench.tend() == ["release"]


def test_nobody_is_asked_where_nobody_can_tell(bench: Bench) -> None:
    bench.driver = Dumb()
    assert bench.tend() == []
    assert bench.conductor.asked == 0


def test_a_driver_that_fails_is_left_alone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.driver.shows = RuntimeError("the library crashed")
    bench.conductor.use = Use.PREPARED
    assert bench.tend() == []
    assert "What shower has prepared is not known" in caplog.text


def test_a_driver_that_is_not_loaded_any_more(bench: Bench) -> None:
    bench.conductor = Conductor(Use.PREPARED, "gone")
    assert bench.tend() == []


def test_what_the_conductor_does_not_know_is_not_touched(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.driver.shows = [Unit("another", "x"), UNIT]
    bench.conductor.use = Use.PREPARED
    assert bench.tend() == []
    assert "x of another is prepared, but the conductor does not know it" in caplog.text

# SPDX-License-Identifier: Apache-2.0
"""The repair of each unit, by its state on the host, in the conductor and in the journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
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
from cyborg.tests.fixtures.waiting import PATIENCE, Gate

UNIT = Unit("u", "k")


class Listing(Driver):
    """A driver that lists the units in ``units``, or raises the error there."""

    name = "listing"

    def __init__(self, units: Sequence[Unit] | Exception = ()) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.units = units
        self.calls: list[str] = []

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        if isinstance(self.units, Exception):
            raise self.units
        return self.units

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.calls += [] if task.handle_key == "last" else ["prepare"]

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self.calls.append("release")


class NotListing(Listing):
    """A driver that cannot list its prepared units."""

    name = "not_listing"

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        self._cannot("list its prepared units")


@dataclass
class Conductor:
    """A conductor with one unit, and the number of its calls."""

    use: Use = Use.FREE
    driver: str = "listing"
    calls: int = 0
    error: Exception | None = None

    def request(self, _command: FetchUnitUses) -> UnitUses:
        self.calls += 1
        if self.error is not None:
            raise self.error
        task = HandleTask("o", self.driver, "d", UNIT.deployable, UNIT.handle_key, "uuid")
        return UnitUses((UnitUse(task, self.use),))


def sync(
    state_path: Path,
    driver: Listing,
    conductor: Conductor,
    *,
    others: Sequence[Listing] = (),
    times: int = 1,
    worker: Worker | None = None,
) -> list[str]:
    """Compare with a new agent on this state directory; return the calls of the driver."""
    journal = TaskJournal(StateStore(state_path, "host"))
    drivers = {each.name: each for each in (*others, driver)}
    tasks = DeviceTasks(
        drivers=drivers,
        journal=journal,
        glance=lambda: cast(Glance, None),
        images=state_path,
        timeout=PATIENCE,
        request_scan=lambda: None,
        worker=Worker(),
    )
    prepared_sync = PreparedUnitsSync(
        drivers=drivers,
        tasks=tasks,
        journal=journal,
        conductor=cast(ConductorClient, conductor),
        worker=worker or Worker(),
        timeout=PATIENCE,
    )
    try:
        for _ in range(times):
            prepared_sync.sync("host", 1)
    finally:
        # It runs after all repairs of the device.
        tasks.prepare(HandleTask("last", driver.name, "d", "u", "last", "uuid"))
        tasks.stop()
    calls, driver.calls = driver.calls, []
    return calls


def crash(state_path: Path, driver: Listing) -> None:
    """Leave the journal of an agent that stopped in the middle of an operation."""
    journal = TaskJournal(StateStore(state_path, "host"))
    journal.begin("prepare", HandleTask("crashed", driver.name, "d", *UNIT, "uuid"))


@pytest.mark.parametrize(
    ("use", "prepared", "calls"),
    [
        (Use.PREPARED, True, []),
        (Use.PREPARED, False, ["prepare"]),
        (Use.FREE, True, ["release"]),
        (Use.FREE, False, []),
        (Use.IN_TRANSITION, True, []),
        (Use.IN_TRANSITION, False, []),
    ],
)
def test_a_unit_that_is_not_as_required_is_repaired(
    tmp_path: Path, use: Use, prepared: bool, calls: list[str]
) -> None:
    assert sync(tmp_path, Listing([UNIT] if prepared else []), Conductor(use)) == calls


@pytest.mark.parametrize(
    ("use", "calls"),
    [(Use.PREPARED, []), (Use.FREE, ["release"]), (Use.IN_TRANSITION, [])],
)
def test_a_unit_can_be_listed_by_the_uuid_of_its_handle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, use: Use, calls: list[str]
) -> None:
    driver = Listing([Unit(UNIT.deployable, "uuid")])
    assert sync(tmp_path, driver, Conductor(use)) == calls
    assert "the conductor has no record" not in caplog.text


def test_a_driver_knows_the_handles_of_its_own_units(tmp_path: Path) -> None:
    driver, other = Listing(), NotListing()
    sync(tmp_path, driver, Conductor(Use.PREPARED), others=[other])
    assert [each.attach_handles for each in (driver, other)] == [{"uuid": UNIT}, {}]


@pytest.mark.parametrize("kind", [Listing, NotListing])
@pytest.mark.parametrize(
    ("use", "calls"),
    [(Use.PREPARED, ["prepare"]), (Use.FREE, ["release"]), (Use.IN_TRANSITION, [])],
)
def test_an_interrupted_operation_is_repeated_or_reverted_once(
    tmp_path: Path, kind: type[Listing], use: Use, calls: list[str]
) -> None:
    """How far the operation got is unknown, whatever the driver lists."""
    driver, conductor = kind([UNIT] if use is Use.PREPARED else []), Conductor(use, kind.name)
    crash(tmp_path, driver)
    assert sync(tmp_path, driver, conductor) == calls
    assert sync(tmp_path, driver, conductor) == []


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_unit_of_a_driver_that_is_not_loaded_is_skipped(
    tmp_path: Path, interrupted: bool
) -> None:
    if interrupted:
        crash(tmp_path, Listing())
    assert sync(tmp_path, Listing(), Conductor(Use.PREPARED, "gone")) == []


def test_a_unit_without_a_record_is_left_alone_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, however often it is seen; a unit with a record is never logged."""
    driver = Listing([Unit("another", "x"), UNIT])
    assert sync(tmp_path, driver, Conductor(Use.PREPARED), times=3) == []
    logged = [text for text in caplog.messages if "the conductor has no record" in text]
    assert len(logged) == 1
    assert logged[0].startswith("Handle x of deployable another is prepared")


def test_a_driver_that_cannot_list_its_units_is_not_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the conductor is not, when no driver can."""
    driver, conductor = Listing(RuntimeError("the library crashed")), Conductor(Use.PREPARED)
    assert sync(tmp_path, driver, conductor) == []
    assert "Driver listing did not list its prepared units" in caplog.text
    conductor = Conductor()
    assert sync(tmp_path, NotListing(), conductor) == []
    assert conductor.calls == 0


def test_the_repair_is_done_when_the_conductor_is_back(tmp_path: Path) -> None:
    driver, conductor = Listing(), Conductor()
    crash(tmp_path, driver)
    conductor.error = exception.Unavailable(peer="conductor", reason="away")
    with pytest.raises(exception.Unavailable):
        sync(tmp_path, driver, conductor)
    conductor.error = None
    assert sync(tmp_path, driver, conductor) == ["release"]


class Late(Listing):
    """A driver that answers after its gate is open."""

    name = "late"

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.asked = 0

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        self.asked += 1
        self.gate.hold()
        return ()


@pytest.mark.parametrize("answer", [None, 7, [None], [UNIT, "u"], [("u", "k")]], ids=str)
def test_a_list_of_another_type_is_a_failure_of_its_driver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    assert sync(tmp_path, Listing(answer), Conductor(Use.FREE)) == []
    assert "Driver listing did not list its prepared units" in caplog.text


def test_a_driver_that_hangs_or_exits_delays_no_repair_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Leaves(Listing):
        name = "leaves"

        def prepared(self, scan: Scan) -> Sequence[Unit]:
            raise SystemExit("no licence")

    late, other = Late(), Listing([UNIT])
    try:
        others, worker = (late, Leaves()), Worker(wait=late.gate.limit)
        calls = sync(tmp_path, other, Conductor(Use.FREE), others=others, times=2, worker=worker)
    finally:
        late.gate.set()
    assert set(calls) == {"release"}
    # It is not asked again before it has answered.
    assert late.asked == 1
    for name in ("late", "leaves"):
        assert f"Driver {name} did not list its prepared units" in caplog.text

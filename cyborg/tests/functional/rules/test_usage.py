# SPDX-License-Identifier: Apache-2.0
"""Usage is exact: it equals a ledger that is kept beside the service, to the millisecond.

What is counted here must not depend on the database, so these tests run on every server.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import pytest
import sqlalchemy as sa
import webtest
from oslo_config import cfg

from cyborg import exception
from cyborg.api.answers import instant
from cyborg.conductor import jobs
from cyborg.conductor.audit import repairs
from cyborg.db import bulk, events
from cyborg.db.models import Arq, AttachHandle, Deployable, DeviceProfile, Event, UsageRecord, Work
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.rpc.verbs import CreateArqs, DeleteArqs, DeleteInstanceArqs, PatchArqs
from cyborg.tests.fixtures.choice import FULL, generator
from cyborg.tests.fixtures.crash import FaultPlan
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.single_step import MOVED, Conductor, Environment
from cyborg.tests.fixtures.usage_ledger import (
    MeteredClock,
    UsageLedger,
    Use,
    check_usage_records,
    metered,
    pairs,
)
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.schema.databases import upgraded_database

HOSTS: Final = ("plain", "preparing")
DEVICES: Final = 3
PROJECTS: Final = ("red", "green", "blue")
#: Requests of the walk; about one in four kills the conductor.
_STEPS: Final = 2000 if FULL else 120
#: Uses of the history, each with two events, and how many begin or end in one transaction.
_USES: Final = 50_000 if FULL else 2_000
_BATCH: Final = 500
_GROUPS: Final = ("resource_class", "type", "host", "project_id", "profile", "instance")


Query = dict[str, Any]


@pytest.fixture
def clock() -> MeteredClock:
    return MeteredClock()


@pytest.fixture
def environment(tmp_path: Path, clock: MeteredClock) -> Iterator[Environment]:
    """A database whose clock the test moves, and a Nova that takes every event."""
    with upgraded_database(tmp_path) as db, SimulatedNova() as nova:
        made = Environment(
            database_url=db.engine.url.render_as_string(hide_password=False),
            nova=nova.adapter(),
            clock=clock,
            settings=MOVED,
        )
        with contextlib.closing(made):
            yield made


@pytest.fixture
def operator(environment: Environment, conf: cfg.ConfigOpts) -> Iterator[Client]:
    """Who asks the API for the usage of all projects."""
    api = environment.api(conf)
    yield Client(webtest.TestApp(api.app), role="operator", version="2.100")
    api.stop()


def unit_ms(
    operator: Client, groups: Sequence[str], start_ms: int, end_ms: int
) -> dict[tuple[str | None, ...], int]:
    """What the API answers, in the form of the ledger."""
    start, end = instant(start_ms), instant(end_ms)
    answer = operator.get("/usage", group_by=",".join(groups), start=start, end=end)
    assert (answer["start"], answer["end"]) == (start, end)
    rows: dict[tuple[str | None, ...], int] = {}
    for row in answer["usage"]:
        assert {name for name in _GROUPS if row[name] is None} == set(_GROUPS[1:]) - set(groups)
        # Exact: no sum here has more digits than a float.
        rows[tuple(row[name] for name in ("resource_class", *groups))] = round(
            row["unit_seconds"] * 1000
        )
        assert (
            row["unit_seconds"] == rows[tuple(row[n] for n in ("resource_class", *groups))] / 1000
        )
    assert len(rows) == len(answer["usage"])
    return rows


def compare(operator: Client, ledger: UsageLedger, dice: Random) -> None:
    """The API and the ledger agree on the whole time, and on parts of it, in any grouping."""
    first, last = ledger.spans[0][0], ledger.spans[-1][1]
    ranges = [(first, last)]
    for _ in range(10):
        start_ms, end_ms = sorted(dice.sample(range(first, last), 2))
        ranges.append((start_ms, end_ms))
    for start_ms, end_ms in ranges:
        groups = dice.sample(_GROUPS[1:], dice.randrange(len(_GROUPS)))
        groups.sort(key=_GROUPS.index)
        expected = ledger.unit_ms(("resource_class", *groups), start_ms, end_ms)
        assert unit_ms(operator, groups, start_ms, end_ms) == expected
    # Ranges that follow each other add up.
    middle = dice.randrange(first + 1, last)
    parts: Counter[tuple[str | None, ...]] = Counter()
    for start_ms, end_ms in ((first, middle), (middle, last)):
        parts.update(unit_ms(operator, ["project_id"], start_ms, end_ms))
    assert parts == unit_ms(operator, ["project_id"], first, last)


@dataclass
class Walk:
    """Nova and a conductor that is killed again and again; requests are repeated, or given up."""

    environment: Environment
    clock: MeteredClock
    dice: Random
    conductor: Conductor
    profiles: Sequence[str] = ()
    kills: int = 0
    lives: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    def step(self) -> None:
        """Make one request of Nova or one turn of the conductor, then let time pass."""
        self.ask(self.dice.choice([self._create, self._bind, self._bind, self._end, self._work]))
        self.clock.ms += self.dice.choice([0, 1, 7, self.dice.randrange(100_000)])

    def ask(self, choose: Any) -> None:
        """Do something until it is done, unless its caller gives up after a crash."""
        request = choose()
        if request is None:
            return
        if self.dice.random() < 0.25:
            self.conductor.fault_plan.crash_after(
                self.dice.randrange(25), after=self.dice.random() < 0.5
            )
        while True:
            try:
                request()
                self.conductor.fault_plan.rest()
            except Died:
                self.kills += 1
                self.conductor.stop()
                self.conductor = self.conductor.again(f"control-{next(self.lives)}")
                self.conductor.renew()
                self.clock.ms += self.dice.randrange(5000)
                if self.dice.random() < 0.3:
                    return
            except exception.CyborgError:
                # The conductor refused it: no unit is free, or the ARQ is gone.
                self.conductor.fault_plan.rest()
                return
            else:
                return

    def _caller(self) -> Caller:
        return Caller(self.dice.choice(PROJECTS), "nova", "req-walk", service=True)

    def _send(self, make: Any) -> Any:
        key = str(uuid4())
        return lambda: self.conductor.ask(make(key))

    def _create(self) -> Any:
        caller, profile = self._caller(), self.dice.choice(self.profiles)
        return self._send(lambda key: CreateArqs(caller, key, profile))

    def _arqs(self, *terms: sa.ColumnElement[bool]) -> list[Any]:
        query = sa.select(Arq.uuid, Arq.project_id, Arq.instance_uuid).where(*terms)
        return self.environment.rows(query.order_by(Arq.id))

    def _bind(self) -> Any:
        unbound = self._arqs(Arq.instance_uuid.is_(None))
        if not unbound:
            return None
        arq = self.dice.choice(unbound)
        caller = Caller(arq.project_id, "nova", "req-walk", service=True)
        provider = provider_of(self.dice.choice(HOSTS), self.dice.randrange(DEVICES))
        binding = Binding(arq.uuid, "compute", provider, str(uuid4()))
        return self._send(lambda key: PatchArqs(caller, key, [binding], []))

    def _end(self) -> Any:
        bound = self._arqs(Arq.instance_uuid.is_not(None))
        if not bound:
            return None
        arq = self.dice.choice(bound)
        caller = Caller(arq.project_id, "nova", "req-walk", service=True)
        return self._send(
            self.dice.choice(
                [
                    lambda key: PatchArqs(caller, key, [], [arq.uuid]),
                    lambda key: DeleteArqs(caller, key, [arq.uuid]),
                    lambda key: DeleteInstanceArqs(caller, key, arq.instance_uuid),
                ]
            )
        )

    def _work(self) -> Any:
        # No agent answers: binds that need one fail at their deadline.
        return self.conductor.run_worker


def test_usage_equals_a_ledger_although_conductors_are_killed(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    dice = generator("usage with kills")
    conductor = environment.conductor("control-1", faults=FaultPlan())
    conductor.renew()
    for host in HOSTS:
        conductor.report(host, report_of(host, DEVICES, prepare=host == "preparing"))
    profiles = [conductor.profile({"resources:FPGA": str(units)}) for units in (1, 2)]
    walk = Walk(environment, clock, dice, conductor, profiles)
    with metered(clock, environment.watch) as ledger:
        for _ in range(_STEPS):
            walk.step()
        clock.ms += 1
    check_usage_records(environment.watch)
    assert walk.kills
    assert {row.state for row in environment.rows(sa.select(Arq.state))} > {"Bound"}
    compare(operator, ledger, dice)
    # The history tells the same, as long as it is there.
    rows = environment.rows(
        sa.select(Event.subject_uuid, Event.action, Event.at_ms)
        .where(Event.noun == "arq")
        .order_by(Event.id)
    )
    told = sum((end or clock.ms) - begin for _, begin, end in pairs(tuple(row) for row in rows))
    (total,) = unit_ms(operator, [], ledger.spans[0][0], clock.ms).values()
    assert told == total
    walk.conductor.stop()


def test_usage_of_a_long_history(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    """Many uses begin and end in big transactions, of which one in ten is cut off."""
    dice = generator("usage of a long history")
    db = environment.watch
    cases = environment.cases()
    cases.report("plain", report_of("plain", DEVICES))
    names = [cases.profile({"resources:FPGA": "1"}) for _ in range(4)]
    places = environment.values(sa.select(Deployable.id))
    profile_ids = environment.rows(sa.select(DeviceProfile.id, DeviceProfile.name))
    ledger, start_ms = UsageLedger(db), clock.ms
    #: ARQ → what its use is counted by, and since when.
    running: dict[str, tuple[Use, int]] = {}

    class Cut(Exception):
        """The process dies."""

    def begin() -> None:
        rows = []
        for _ in range(_BATCH):
            profile = dice.choice(profile_ids)
            rows.append(
                {
                    "uuid": str(uuid4()),
                    "state": "Bound",
                    "project_id": dice.choice(PROJECTS),
                    "device_profile_id": profile.id,
                    "device_profile_group_id": 0,
                    "instance_uuid": str(uuid4()),
                    "deployable_id": dice.choice(places),
                }
            )
        with contextlib.suppress(Cut), db.writer() as tx:
            bulk.insert(tx, Arq, rows)
            events.record_for(
                tx, [events.Entry("arq", row["uuid"], "Bound", takes_unit=True) for row in rows]
            )
            if dice.random() < 0.1:
                raise Cut
            by_id = {row.id: row.name for row in profile_ids}
            tx.then(
                running.update,
                {
                    row["uuid"]: (
                        Use(
                            *("FPGA", "FPGA", "plain", row["project_id"]),
                            by_id[row["device_profile_id"]],
                            row["instance_uuid"],
                        ),
                        clock.ms,
                    )
                    for row in rows
                },
            )

    def end() -> None:
        ended = dice.sample(sorted(running), min(len(running), _BATCH))
        ids = dict(environment.rows(sa.select(Arq.uuid, Arq.id).where(Arq.uuid.in_(ended))))
        with contextlib.suppress(Cut), db.writer() as tx:
            events.record_for(
                tx, [events.Entry("arq", uuid, "deleted", left_by=ids[uuid]) for uuid in ended]
            )
            tx.execute(sa.delete(Arq).where(Arq.id.in_(ids.values())))
            if dice.random() < 0.1:
                raise Cut
            tx.then(note, ended)

    def note(ended: Sequence[str]) -> None:
        for uuid in ended:
            use, began_ms = running.pop(uuid)
            ledger.spans.append((began_ms, clock.ms, Counter([use])))

    while environment.count(UsageRecord) < _USES:
        dice.choice([begin, begin, end])()
        clock.ms += dice.randrange(10_000)
    while running:
        end()
        clock.ms += dice.randrange(10_000)
    ledger.spans.append((start_ms, clock.ms, Counter()))
    ledger.spans.sort(key=lambda span: span[:2])
    assert environment.count(Event, Event.noun == "arq") >= 2 * _USES
    assert environment.count(AttachHandle, AttachHandle.arq_id.is_not(None)) == 0
    assert len(names) == len(profile_ids)
    lasted = clock.ms - start_ms
    for start, end_ms in ((start_ms, clock.ms), (start_ms + lasted // 7, clock.ms - lasted // 5)):
        for groups in ([], ["project_id"], ["host", "project_id", "profile"]):
            expected = ledger.unit_ms(("resource_class", *groups), start, end_ms)
            assert unit_ms(operator, groups, start, end_ms) == expected


def test_use_lasts_from_the_bind_to_the_release_of_its_arq(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    """Each end of a use has its moment: a refused bind, an unbind, a deletion, an audit."""
    cases = environment.cases()
    cases.report("plain", report_of("plain", 1, handles=8))
    cases.report("preparing", report_of("preparing", 1, handles=8, prepare=True))
    start_ms = clock.ms
    ends = {
        "unbound": lambda arqs, _: cases.unbind(arqs),
        "deleted": lambda arqs, _: cases.delete(arqs),
        "gone": lambda _, instance: cases.delete_of(instance),
        "failed": lambda arqs, _: repairs.fail_bind(cases.db, arqs[0]),
        "taken": lambda arqs, _: repairs.release_handle_of_arq(cases.db, arqs[0]),
    }
    expected = {}
    for host in HOSTS:
        for seconds, (name, end) in enumerate(ends.items(), 1):
            if name == "failed" and host == "plain":
                continue
            arqs, instance = cases.boot(provider_of(host, 0))
            if name == "failed":
                cases.execute(sa.delete(Work))
            elif name == "taken":
                cases.execute(sa.update(Arq).where(Arq.uuid.in_(arqs)).values(state="Unbound"))
            clock.ms += 1000 * seconds + 1
            end(arqs, instance)
            expected["FPGA", host, instance] = 1000 * seconds + 1
            # Nothing that follows counts: not the cleaning, nor the deletion of what is left.
            clock.ms += 50
            cases.delete(set(arqs) & set(environment.values(sa.select(Arq.uuid))))
    check_usage_records(environment.watch)
    assert unit_ms(operator, ["host", "instance"], start_ms, clock.ms) == expected


def test_clock_that_was_set_back_makes_no_use_negative(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    cases = environment.cases()
    cases.report("plain", report_of("plain", 1))
    start_ms = clock.ms
    arqs, _ = cases.boot(provider_of("plain", 0))
    clock.ms -= 60_000
    cases.delete(arqs)
    clock.ms += 120_000
    assert unit_ms(operator, [], start_ms - 60_000, clock.ms) == {}


def test_usage_of_a_range_is_limited_to_what_the_caller_may_see(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    cases = environment.cases()
    cases.report("plain", report_of("plain", 1, handles=4))
    start_ms = clock.ms
    arqs, instance = cases.boot(provider_of("plain", 0))
    clock.ms += 1500
    cases.execute(sa.update(UsageRecord).values(project_id="red", profile="gpu"))
    cases.boot(provider_of("plain", 0))
    clock.ms += 500
    cases.delete(arqs)
    whole: dict[str, Any] = {"start": instant(start_ms)}
    empty = dict.fromkeys(_GROUPS)
    red = {**empty, "resource_class": "FPGA", "unit_seconds": 2.0}
    member = Client(operator.app, project="red", version="2.100")
    assert member.get("/usage", **whole) == {
        "usage": [red],
        "start": instant(start_ms),
        "end": instant(clock.ms),
        "complete_from": None,
    }
    assert member.get("/usage", **whole, project_id=NOVA.project_id)["usage"] == []
    hidden: list[Query] = [{"group_by": "host"}, {"host": "plain"}]
    for query in hidden:
        member.get("/usage", status=403, **whole, **query)
    (both,) = operator.get("/usage", **whole)["usage"]
    assert both["unit_seconds"] == 2.5
    matching: list[Query] = [
        {"project_id": "red"},
        {"profile": "gpu"},
        {"instance": instance},
        {"profile": "gpu", "host": "plain", "type": "FPGA", "resource_class": "FPGA"},
    ]
    for query in matching:
        assert operator.get("/usage", **whole, **query)["usage"] == [red]
    other: list[Query] = [{"profile": "other"}, {"host": "other"}, {"resource_class": "GPU"}]
    for query in other:
        assert operator.get("/usage", **whole, **query)["usage"] == []
    # Both words name a project.
    for word in ("project", "project_id"):
        rows = operator.get("/usage", **whole, group_by=word)["usage"]
        assert {row["project_id"]: row["unit_seconds"] for row in rows} == {
            "red": 2.0,
            NOVA.project_id: 0.5,
        }
    # A range that ends later ends now.
    later = operator.get("/usage", **whole, end=instant(clock.ms + 60_000))
    assert (later["end"], later["usage"]) == (instant(clock.ms), [both])


def test_range_that_cannot_be_counted_is_refused(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    now, day = clock.ms, 24 * 3600 * 1000
    refused: dict[str, Query] = {
        "start": {"end": instant(now)},
        "end": {"start": instant(now - 5), "end": instant(now - 5)},
        "profile": {"profile": "gpu"},
        "instance": {"instance": str(uuid4())},
        "group_by": {"group_by": "profile"},
    }
    for field_name, query in refused.items():
        answer = operator.get("/usage", status=400, **query)
        assert f"{field_name}" in answer["error_message"]
    for start_ms, words in (
        (now, "it must be in the past"),
        (now + 1, "it must be in the past"),
        (now - 366 * day - 1, "longer than 366 days"),
    ):
        answer = operator.get("/usage", status=400, start=instant(start_ms))
        assert words in answer["error_message"]
    operator.get("/usage", start=instant(now - 366 * day))
    for value in ("", "yesterday", "1700000000", "2023-13-01", "2023-11-14T25:00"):
        operator.get("/usage", status=400, start=value)
    operator.get("/usage", status=400, start=instant(now - 5), group_by="colour")


def test_answer_with_too_many_rows_is_refused(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    row: dict[str, Any] = {
        "project_id": "red",
        "profile": "gpu",
        "resource_class": "FPGA",
        "type": "FPGA",
    }
    row |= {"hostname": "plain", "began_ms": clock.ms - 1000, "ended_ms": clock.ms}
    with environment.watch.writer() as tx:
        bulk.insert(
            tx, UsageRecord, [{**row, "instance_uuid": str(uuid4())} for _ in range(10_001)]
        )
    asked: dict[str, Any] = {"start": instant(clock.ms - 1000)}
    answer = operator.get("/usage", status=400, **asked, group_by="instance")
    assert "more than 10000 rows" in answer["error_message"]
    (total,) = operator.get("/usage", **asked)["usage"]
    assert total["unit_seconds"] == 10_001.0


def test_usage_says_from_when_on_it_is_complete_after_old_records_are_deleted(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    day = 24 * 3600 * 1000
    cases = environment.cases(usage_retention=10)
    cases.report("plain", report_of("plain", 1, handles=4))
    start_ms = clock.ms
    running, _ = cases.boot(provider_of("plain", 0))
    arqs, _ = cases.boot(provider_of("plain", 0))
    clock.ms += day
    cases.delete(arqs)
    whole: dict[str, Any] = {"start": instant(start_ms)}
    clock.ms += 10 * day
    jobs.remove_expired(cases.ctx)
    answer = operator.get("/usage", **whole)
    assert (answer["complete_from"], environment.count(UsageRecord)) == (None, 2)
    clock.ms += 1
    jobs.remove_expired(cases.ctx)
    answer = operator.get("/usage", **whole)
    assert answer["complete_from"] == instant(clock.ms - 10 * day)
    # What is in use is not old, however long ago it began.
    (row,) = answer["usage"]
    assert row["unit_seconds"] == (clock.ms - start_ms) / 1000
    clock.ms += 1000
    jobs.remove_expired(cases.ctx)
    assert operator.get("/usage", **whole)["complete_from"] == answer["complete_from"]
    cases.delete(running)


def test_retention_0_keeps_all_records(
    environment: Environment, clock: MeteredClock, operator: Client
) -> None:
    cases = environment.cases(usage_retention=0)
    cases.report("plain", report_of("plain", 1))
    arqs, _ = cases.boot(provider_of("plain", 0))
    cases.delete(arqs)
    clock.ms += 10_000 * 24 * 3600 * 1000
    jobs.remove_expired(cases.ctx)
    assert environment.count(UsageRecord) == 1

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
from cyborg.db import bulk, events
from cyborg.db.models import Arq, AttachHandle, Deployable, DeviceProfile, Event, UsageRecord
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
    asked = {"group_by": ",".join(groups), "start": instant(start_ms), "end": instant(end_ms)}
    answer = operator.get("/usage", **asked)
    assert (answer["start"], answer["end"]) == (instant(start_ms), instant(end_ms))
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
    ranges += [tuple(sorted(dice.sample(range(first, last), 2))) for _ in range(10)]
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
    for start, end_ms in ((start_ms, clock.ms), (start_ms + 12_345, clock.ms - 54_321)):
        for groups in ([], ["project_id"], ["host", "project_id", "profile"]):
            expected = ledger.unit_ms(("resource_class", *groups), start, end_ms)
            assert unit_ms(operator, groups, start, end_ms) == expected

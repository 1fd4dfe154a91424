# SPDX-License-Identifier: Apache-2.0
"""Work that outlives its conductor: owned, leased, fenced; and more than one conductor at once."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import service
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.tasks.queue import Fenced, WorkQueue
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import Service, Work
from cyborg.db.services import Process
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    bind,
    create,
    eventually,
    eventually_idle,
    work_left,
)

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]


class FakeConductor:
    """Another conductor, as far as its lease and the work in its hands go."""

    def __init__(self, database: Database) -> None:
        self._database = database
        process = Process(f"mortal-{uuid4().hex[:8]}", CONDUCTOR, "0", "nowhere", "1")
        self._lease = ConductorLease(db=database, process=process)
        self._renewals = service.PeriodicTask("mortal", self._lease.renew, interval=0.1)
        self._renewals.start()
        eventually(lambda: self._lease.owner is not None)

    def take(self, **task: Any) -> Sequence[Any]:
        """Make some work and have it in hand, before anybody else can."""
        owner = self._lease.owner
        assert owner is not None
        database = self._database
        with database.writer() as tx:
            work.add(tx, [task])
            return work.claim(tx, owner=owner, lease_ms=1000, limit=1)

    def die(self) -> None:
        """Show no more signs of life."""
        self._renewals.stop()


@pytest.fixture
def fake_conductor(database: Database) -> Iterator[FakeConductor]:
    one = FakeConductor(database)
    yield one
    one.die()


@pytest.fixture
def bound(
    compute: Computes, profile: Profiles, member: Client, database: Database
) -> dict[str, str]:
    """What a notification is about: an ARQ that is bound, of which Nova was told once."""
    host = compute()
    nova = member.with_service_token()
    arqs = create(nova, profile(FPGA))
    instance = bind(nova, arqs, host.fake_provider)
    eventually_idle(database)
    return {"instance_uuid": instance, "arq_uuid": arqs[0]["uuid"]}


def told(nova_api: SimulatedNova, bound: dict[str, str]) -> int:
    return sum(1 for one in nova_api.events if one.tag == bound["arq_uuid"])


def age_ms(database: Database) -> int:
    """How old the only work there is has become, by the database's clock."""
    with database.reader() as tx:
        return int(tx.execute(sa.select(database.now - Work.created_ms)).scalar_one())


def test_work_of_a_dead_conductor_is_taken_over(
    fake_conductor: FakeConductor,
    bound: dict[str, str],
    nova_api: SimulatedNova,
    stack: Stack,
    database: Database,
) -> None:
    rows = fake_conductor.take(kind=WorkKind.NOTIFY, **bound)
    lease = stack.times.lease
    # As long as it lives, however long it takes, nobody else touches it.
    eventually(lambda: age_ms(database) > 1500 * lease)
    assert (told(nova_api, bound), work_left(database)) == (1, ["notify"])
    fake_conductor.die()
    assert service.wait_until(lambda: told(nova_api, bound) == 2, timeout=lease + 2)
    eventually_idle(database)
    # It comes to itself, and finds that what it does counts no more.
    queue = WorkQueue(db=database)
    for context in (queue.complete, queue.checkpoint):
        with pytest.raises(Fenced), context(rows) as tx:
            tx.execute(sa.update(Service).values(disabled=True))
    with database.reader() as tx:
        assert not any(tx.execute(sa.select(Service.disabled)).scalars())
    queue.reschedule(rows, "too late")
    assert work_left(database) == []
    assert told(nova_api, bound) == 2


def served(answers: Counter[int]) -> None:
    """Wait until some more requests have been answered."""
    count = answers.total()
    eventually(lambda: answers.total() > count + 4)


def test_stopping_conductor_fails_no_request(
    beside: Callable[..., Stack], profile: Profiles, member: Client
) -> None:
    """What reached it in its last moment is asked again, of another."""
    ending = beside().start_conductor("control-2")
    name = profile(FPGA)
    over = threading.Event()
    answers: Counter[int] = Counter()

    def ask() -> None:
        while not over.is_set():
            answers[member.answer("POST", ARQS, {"device_profile_name": name})] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    served(answers)
    ending.stop()
    served(answers)
    over.set()
    for thread in threads:
        thread.join(30)
    assert set(answers) == {201}

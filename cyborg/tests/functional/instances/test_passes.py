# SPDX-License-Identifier: Apache-2.0
"""One pass of the conductor that asks Nova: how much it asks, about whom, and who does it."""

import time
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Nova, ServerInfo
from cyborg.conductor.jobs import read_instances
from cyborg.conductor.leases import ConductorLease, oldest_only
from cyborg.db.models import Instance
from cyborg.db.services import Process
from cyborg.model.process import CONDUCTOR
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.functional.instances.conftest import Cloud

_DAY = 86_400_000
_PASS = 20


class Clock:
    """Seconds that pass with each look at it."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._seconds = 0.0

    def __call__(self) -> float:
        self._seconds += self._step
        return self._seconds


def process(name: str) -> Process:
    return Process("control", CONDUCTOR, "0", "", name)


@pytest.fixture
def quiet(make_cloud: Callable[..., Cloud]) -> Cloud:
    """One whose conductor asks nothing, and is not the first."""
    return make_cloud(refresh=0.0, first=process("1"))


def lease(cloud: Cloud, name: str = "1") -> ConductorLease:
    made = ConductorLease(db=cloud.database, process=process(name))
    made.renew()
    return made


def inquirer(
    cloud: Cloud,
    *,
    own: ConductorLease | None = None,
    nova: Nova | None = None,
    time_limit: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """A pass of a conductor whose day has a hundred turns."""
    ctx = context(
        cloud.database,
        nova=nova or Nova(cloud.nova.adapter()),
        instance_refresh=_DAY / 1000,
        instance_interval=time_limit,
    )
    return oldest_only(own or lease(cloud), _DAY, partial(read_instances, ctx, clock))


def age(cloud: Cloud, *instances: str, by: int) -> None:
    """These have their turn so many milliseconds ago."""
    with cloud.database.writer() as tx:
        chosen = sa.update(Instance).where(Instance.uuid.in_(instances))
        tx.execute(chosen.values(look_ms=cloud.database.now - by))


def wait_ms(cloud: Cloud, instance: str) -> int:
    """How long it is until the next look."""
    with cloud.database.reader() as tx:
        left = sa.select(Instance.look_ms - cloud.database.now).where(Instance.uuid == instance)
        return int(tx.execute(left).scalar_one() or 0)


def test_run_is_bounded_and_next_run_continues(quiet: Cloud) -> None:
    booted = {quiet.boot("blue") for _ in range(_PASS + 5)}
    passes = inquirer(quiet)
    passes()
    assert len(set(quiet.nova.shows.asked)) == len(quiet.nova.shows.asked) == _PASS
    passes()
    assert set(quiet.nova.shows.asked) == booted
    passes()
    assert len(quiet.nova.shows.asked) == len(booted)


def test_instances_without_info_come_first(quiet: Cloud) -> None:
    old = [quiet.boot("blue") for _ in range(_PASS)]
    passes = inquirer(quiet)
    passes()
    age(quiet, *old, by=1000)
    age(quiet, old[7], by=2000)
    fresh = quiet.boot("blue")
    passes()
    assert quiet.nova.shows.asked[_PASS : _PASS + 2] == (fresh, old[7])


def test_run_ends_after_its_time_limit(quiet: Cloud) -> None:
    for _ in range(5):
        quiet.boot("blue")
    inquirer(quiet, time_limit=2.5, clock=Clock(1.0))()
    assert len(quiet.nova.shows.asked) == 2


def test_run_ends_after_its_first_failure(quiet: Cloud) -> None:
    booted = {quiet.boot("blue") for _ in range(2)}
    quiet.nova.shows.fail(503)
    passes = inquirer(quiet)
    for _ in range(2):
        with pytest.raises(exception.Unavailable, match="Nova"):
            passes()
    assert len(quiet.nova.shows.asked) == 2
    assert set(quiet.nova.shows.asked) == booted
    assert all(0 < wait_ms(quiet, one) <= 30_000 for one in booted)
    # Both wait for their next turn now.
    passes()
    assert len(quiet.nova.shows.asked) == 2


def test_transitional_states_are_read_again_soon(quiet: Cloud) -> None:
    expected: dict[str, tuple[str, bool]] = {}
    for status, task, soon in (
        ("ACTIVE", None, False),
        ("SHUTOFF", None, False),
        ("BUILD", None, True),
        ("BUILD", "spawning", True),
        ("ACTIVE", "powering-off", True),
    ):
        instance = quiet.boot("blue", "web")
        guest = quiet.servers[instance]
        guest.status, guest.task, guest._looks = status, task, 9
        expected[instance] = status, soon
    inquirer(quiet)()
    for instance, (status, soon) in expected.items():
        assert quiet.kept(instance)[:2] == ("web", status)
        assert (wait_ms(quiet, instance) <= 30_000) == soon


def test_only_the_first_conductor_reads_nova(quiet: Cloud) -> None:
    quiet.boot("blue")
    first, second = lease(quiet, "1"), lease(quiet, "2")
    unborn = ConductorLease(db=quiet.database, process=process("3"))
    for idle in (second, unborn):
        inquirer(quiet, own=idle)()
    assert quiet.nova.shows.asked == ()
    inquirer(quiet, own=first)()
    assert len(quiet.nova.shows.asked) == 1


def test_instance_is_queried_again_after_a_crash(quiet: Cloud) -> None:
    instance = quiet.boot("blue", "web")

    class Fatal(Nova):
        def server_info(self, instance_uuid: str) -> ServerInfo | None:
            super().server_info(instance_uuid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inquirer(quiet, nova=Fatal(quiet.nova.adapter()))()
    assert quiet.kept(instance) == (None, None, None, 0)
    inquirer(quiet)()
    assert quiet.kept(instance)[:2] == ("web", "ACTIVE")


def test_deleted_instance_is_not_queried(quiet: Cloud) -> None:
    instance = quiet.boot("blue", "web")
    quiet.delete(instance, "blue")
    inquirer(quiet)()
    assert quiet.nova.shows.asked == ()
    quiet.bind("blue", instance)
    inquirer(quiet)()
    assert quiet.kept(instance)[:2] == ("web", "ACTIVE")

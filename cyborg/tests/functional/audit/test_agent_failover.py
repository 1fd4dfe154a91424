# SPDX-License-Identifier: Apache-2.0
"""Dead agents: after a grace Placement offers nothing any more that needs their work."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.hosts.agent_failover import Absences, reserve_absent
from cyborg.conductor.leases import ConductorLease, oldest_only
from cyborg.db.models import Service
from cyborg.db.services import Process
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.audit.cloud import SmallCloud
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.steps import eventually_offered

_GRACE = 3_600_000


class CountingPlacement(Placement):
    """The real one; ``away`` makes it unreachable."""

    def __init__(self, service: PlacementService) -> None:
        super().__init__(service.adapter())
        self.away = False
        self.reads: list[str] = []

    def inventories(self, uuid: str):
        self.reads.append(uuid)
        if self.away:
            raise exception.Unavailable(peer="Placement", reason="away")
        return super().inventories(uuid)


@pytest.fixture
def watched(placement: PlacementService) -> CountingPlacement:
    return CountingPlacement(placement)


#: One pass of the job.
Pass = Callable[[], None]


@pytest.fixture
def failover(cloud: SmallCloud, watched: CountingPlacement) -> Pass:
    return make(cloud, watched, cloud.cases.lease)


def make(cloud: SmallCloud, placement: Placement, lease: ConductorLease) -> Pass:
    ctx = changed(cloud.cases.ctx, agent_grace=_GRACE / 1000)
    ctx, absences = replace(ctx, publisher=lambda: Publisher(placement)), Absences()
    return oldest_only(lease, 60_000, partial(reserve_absent, ctx, absences), absences.forget)


def silence(cloud: SmallCloud, host: str, milliseconds: int = 2 * _GRACE) -> None:
    """The agent's last sign of life was so long ago."""
    is_agent = (Service.host == host, Service.binary == AGENT)
    cloud.cases.execute(
        sa.update(Service).where(*is_agent).values(last_seen_ms=cloud.cases.db.now - milliseconds)
    )


def units(cloud: SmallCloud, host: str) -> int:
    return offered(cloud.placement, provider_of(host, 0))


def look(failover: Pass) -> None:
    """As often as it takes to be sure that an agent is gone."""
    for _ in range(2):
        failover()


def test_only_devices_that_need_their_agent_are_reserved(
    cloud: SmallCloud, failover: Pass, caplog: pytest.LogCaptureFixture
) -> None:
    dead, plain, alive = cloud.host(prepare=True), cloud.host(), cloud.host(prepare=True)
    silence(cloud, dead)
    silence(cloud, plain)
    silence(cloud, alive, _GRACE // 2)
    look(failover)
    assert [units(cloud, one) for one in (dead, plain, alive)] == [0, 4, 4]
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [dead in one for one in said] == [True]
    # An audit knows why.
    assert not [one for one in cloud.found() if one[1] == provider_of(dead, 0)]


def test_devices_are_reserved_once_for_each_absence(
    cloud: SmallCloud, failover: Pass, watched: CountingPlacement
) -> None:
    host = cloud.host(prepare=True)
    silence(cloud, host)
    before = cloud.cases.generation(host)
    for _ in range(5):
        look(failover)
    assert watched.reads == [provider_of(host, 0)]
    assert cloud.cases.generation(host) == before + 1
    cloud.cases.heartbeat(host)
    cloud.publish(host)
    assert units(cloud, host) == 4
    look(failover)
    assert units(cloud, host) == 4
    silence(cloud, host)
    look(failover)
    assert units(cloud, host) == 0


def test_agent_with_a_new_heartbeat_keeps_its_units(cloud: SmallCloud, failover: Pass) -> None:
    host = cloud.host(prepare=True)
    silence(cloud, host)
    failover()
    cloud.cases.heartbeat(host)
    look(failover)
    assert units(cloud, host) == 4


def test_agent_that_returns_during_the_write_publishes_again(
    cloud: SmallCloud, failover: Pass, watched: CountingPlacement
) -> None:
    host = cloud.host(prepare=True)
    silence(cloud, host)
    failover()
    before = cloud.cases.generation(host)
    # The agent's heartbeat and its full check, and only then the conductor's write.
    read = watched.inventories

    def late(uuid: str):
        cloud.cases.heartbeat(host)
        cloud.publish(host)
        return read(uuid)

    object.__setattr__(watched, "inventories", late)
    failover()
    assert units(cloud, host) == 0
    # What is desired has another number and is as before: the agent takes that for a full check.
    assert cloud.cases.generation(host) == before + 1


def test_reservation_is_retried_after_placement_returns(
    cloud: SmallCloud, failover: Pass, watched: CountingPlacement
) -> None:
    host = cloud.host(prepare=True)
    silence(cloud, host)
    watched.away = True
    failover()
    for _ in range(2):
        with pytest.raises(exception.Unavailable):
            failover()
    watched.away = False
    failover()
    assert units(cloud, host) == 0


def test_only_the_first_conductor_reserves_units(
    cloud: SmallCloud, watched: CountingPlacement
) -> None:
    host = cloud.host(prepare=True)
    silence(cloud, host)
    second = ConductorLease(db=cloud.cases.db, process=Process("control", CONDUCTOR, "0", "", "2"))
    second.renew()
    look(make(cloud, watched, second))
    assert watched.reads == []
    look(make(cloud, watched, cloud.cases.lease))
    assert units(cloud, host) == 0


def test_units_are_reserved_and_released_without_an_operator(
    running: Callable[..., Stack],
    racked: Callable[..., RackedCompute],
    resource_class: str,
    placement: PlacementService,
) -> None:
    rack = racked(Traits(resource_class, prepare=True), on=running(agent_grace=1.0))
    rack.stop()
    eventually_offered(placement, rack.provider(), 0)
    rack.restart()
    eventually_offered(placement, rack.provider(), 2)

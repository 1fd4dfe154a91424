# SPDX-License-Identifier: Apache-2.0
"""A process that is up again before its removal stays, and the operation says so."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.hosts.removal import HostRemover, Processes
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.operations.operations import Operations
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import operations, work
from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.db.work import ClaimedWork
from cyborg.model.caller import Caller
from cyborg.model.operation import OperationState
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.agent import AgentClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.unreachable import unreachable
from cyborg.tests.fixtures.waiting import PATIENCE

DOWN_AFTER = dict.fromkeys((AGENT, API, CONDUCTOR), 30_000)
CALLER = Caller("project", "user", "req-1", all_projects=True)


@pytest.fixture
def processes(db: Database) -> Processes:
    agents = AgentClient(DirectBus(Exchange()), timeout=PATIENCE)
    operations = Operations(db=db, wake=lambda: None, down_after=30_000)
    return Processes(db=db, agents=agents, operations=operations, down_after=DOWN_AFTER)


@pytest.fixture
def host_remover(db: Database) -> HostRemover:
    return HostRemover(
        db=db,
        queue=WorkQueue(db=db),
        publisher=lambda: Publisher(Placement(unreachable())),
        down_after=DOWN_AFTER,
    )


@pytest.fixture
def api(db: Database) -> str:
    """The uuid of an API process that has sent one heartbeat."""
    Heartbeats(db=db, down_after=30_000).api_heartbeat("control", "0", "http")
    with db.writer() as tx:
        tx.execute(sa.update(Service).values(last_seen_ms=0))
        return str(tx.execute(sa.select(Service.uuid)).scalar_one())


def claimed(db: Database, lease: ConductorLease) -> Sequence[ClaimedWork]:
    lease.renew()
    assert lease.owner is not None
    with db.writer() as tx:
        return work.claim(tx, owner=lease.owner, lease_ms=5000, limit=10)


def exists(db: Database, binary: str) -> bool:
    with db.reader() as tx:
        return tx.execute(sa.select(Service.id).where(Service.binary == binary)).first() is not None


def test_a_process_that_is_still_down_is_removed(
    db: Database,
    lease: ConductorLease,
    processes: Processes,
    host_remover: HostRemover,
    *,
    api: str,
) -> None:
    operation = processes.request_removal(CALLER, str(uuid4()), api)
    assert (operation.state, exists(db, API)) == (OperationState.RUNNING, True)
    host_remover.remove(claimed(db, lease))
    assert not exists(db, API)
    with db.reader() as tx:
        ended = operations.show(tx, operation.uuid, EVERYWHERE)
    assert ended is not None
    assert ended.state is OperationState.SUCCEEDED


def test_a_process_that_is_up_again_is_not_removed(
    db: Database,
    lease: ConductorLease,
    processes: Processes,
    host_remover: HostRemover,
    *,
    api: str,
) -> None:
    operation = processes.request_removal(CALLER, str(uuid4()), api)
    Heartbeats(db=db, down_after=30_000).api_heartbeat("control", "0", "http")
    host_remover.remove(claimed(db, lease))
    assert exists(db, API)
    with db.reader() as tx:
        ended = operations.show(tx, operation.uuid, EVERYWHERE)
    assert ended is not None
    assert [result.error for result in ended.results] == ["cyborg-api is up again"]
    assert claimed(db, lease) == []

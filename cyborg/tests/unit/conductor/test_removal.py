# SPDX-License-Identifier: Apache-2.0
"""A process that is up again before its removal stays, and the operation says so."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.context import Conductor
from cyborg.conductor.hosts import removal
from cyborg.conductor.hosts.heartbeats import api_heartbeat
from cyborg.conductor.leases import ConductorLease
from cyborg.db import operations, work
from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.db.work import ClaimedWork
from cyborg.model.caller import Caller
from cyborg.model.operation import OperationState
from cyborg.model.process import API
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.verbs import ApiHeartbeat, RemoveService
from cyborg.tests.fixtures.contexts import context

CALLER = Caller("project", "user", "req-1", all_projects=True)


@pytest.fixture
def ctx(db: Database) -> Conductor:
    return context(db)


@pytest.fixture
def api(db: Database) -> str:
    """The uuid of an API process that has sent one heartbeat."""
    api_heartbeat(context(db), ApiHeartbeat("control", "0", "http"))
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
    ctx: Conductor,
    *,
    api: str,
) -> None:
    operation = removal.request_removal(ctx, RemoveService(CALLER, str(uuid4()), api))
    assert (operation.state, exists(db, API)) == (OperationState.RUNNING, True)
    removal.remove(ctx, claimed(db, lease))
    assert not exists(db, API)
    with db.reader() as tx:
        ended = operations.show(tx, operation.uuid, EVERYWHERE)
    assert ended is not None
    assert ended.state is OperationState.SUCCEEDED


def test_a_process_that_is_up_again_is_not_removed(
    db: Database,
    lease: ConductorLease,
    ctx: Conductor,
    *,
    api: str,
) -> None:
    operation = removal.request_removal(ctx, RemoveService(CALLER, str(uuid4()), api))
    api_heartbeat(context(db), ApiHeartbeat("control", "0", "http"))
    removal.remove(ctx, claimed(db, lease))
    assert exists(db, API)
    with db.reader() as tx:
        ended = operations.show(tx, operation.uuid, EVERYWHERE)
    assert ended is not None
    assert [result.error for result in ended.results] == ["cyborg-api is up again"]
    assert claimed(db, lease) == []

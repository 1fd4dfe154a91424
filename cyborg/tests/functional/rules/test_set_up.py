# SPDX-License-Identifier: Apache-2.0
"""Set-up of a device: what its end stores beside a report of the same host."""

from typing import cast
from uuid import uuid4

import sqlalchemy as sa

from cyborg.conductor.tasks import set_up
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import devices, work
from cyborg.db.models import Device, Event
from cyborg.model.device import DeviceStatus
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.tests.functional.races.arena import Arena, Conductor
from cyborg.tests.functional.rules.rows import execute
from cyborg.tests.functional.rules.test_units import Agent

FAULT = "uncorrectable errors"


def test_health_that_a_report_stored_first_is_recorded_once(
    arena: Arena, conductor: Conductor
) -> None:
    with arena.db.reader() as tx:
        uuid = tx.execute(sa.select(Device.uuid).limit(1)).scalar_one()
        existing = devices.with_agent(tx, uuid)
    assert existing is not None
    execute(arena.db, sa.update(Device).values(status=DeviceStatus.INSTALLING.value))
    with arena.db.writer() as tx:
        set_up.begin(tx, [existing], str(uuid4()))
    drain = {"health": Condition.DRAIN.value, "health_reason": FAULT}
    agent = Agent(
        answer={"health": DeviceHealth(existing.device_key, Condition.DRAIN, (FAULT,))},
        meanwhile=lambda: execute(arena.db, sa.update(Device).values(**drain)),
    )
    assert conductor.lease.owner is not None
    with arena.db.writer() as tx:
        rows = work.claim(tx, owner=conductor.lease.owner, lease_ms=60_000, limit=1)
    handler = set_up.DeviceSetUp(
        queue=WorkQueue(db=arena.db), agents=cast(AgentClient, agent)
    ).handlers()[WorkKind.SET_UP_DEVICE]
    handler(rows)
    with arena.db.reader() as tx:
        actions = tx.execute(sa.select(Event.action)).scalars().all()
    assert actions == [DeviceStatus.ENABLED]
    execute(arena.db, sa.update(Device).values(health=None, health_reason=None))

# SPDX-License-Identifier: Apache-2.0
"""Set-up of a device: what its end stores beside a report of the same host."""

from uuid import uuid4

import sqlalchemy as sa

from cyborg.conductor.tasks import set_up
from cyborg.db import devices
from cyborg.db.models import Device, Event
from cyborg.model.device import DeviceStatus
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.use_cases import UseCases

FAULT = "uncorrectable errors"


def test_health_that_a_report_stored_first_is_recorded_once(conductor: UseCases) -> None:
    with conductor.db.reader() as tx:
        uuid = tx.execute(sa.select(Device.uuid).limit(1)).scalar_one()
        existing = devices.with_agent(tx, uuid)
    assert existing is not None
    conductor.execute(sa.update(Device).values(status=DeviceStatus.INSTALLING.value))
    with conductor.db.writer() as tx:
        set_up.begin(tx, [existing], str(uuid4()))
    drain = {"health": Condition.DRAIN.value, "health_reason": FAULT}
    health = DeviceHealth(existing.device_key, Condition.DRAIN, (FAULT,))
    conductor.agents.answer = {"health": health}
    conductor.agents.meanwhile = lambda: conductor.change(Device, **drain)
    conductor.do(WorkKind.SET_UP_DEVICE)
    assert [row.action for row in conductor.rows(Event)] == [DeviceStatus.ENABLED]
    conductor.execute(sa.update(Device).values(health=None, health_reason=None))

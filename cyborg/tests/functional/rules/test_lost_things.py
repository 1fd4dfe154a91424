# SPDX-License-Identifier: Apache-2.0
"""What is lost, reported lost again, and forgotten by an operator."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.hosts.lost_devices import request_removal
from cyborg.db import lost_devices, work
from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.model.report import Report
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import DeleteDevice
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.rules.conftest import PLAIN, UNITS
from cyborg.tests.functional.rules.rows import work_kinds


@pytest.fixture(autouse=True)
def _all_there(conductor: UseCases) -> Iterator[None]:
    """The host shows everything again after each test."""
    yield
    conductor.report(PLAIN, Report(()))
    conductor.report(PLAIN, report_of(PLAIN, 1, handles=UNITS))


def marks(conductor: UseCases) -> list[int | None]:
    """Since when each unit of the host has been lost, by id."""
    with conductor.db.reader() as tx:
        query = (
            sa.select(AttachHandle.lost_ms)
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .where(Deployable.rp_uuid == provider_of(PLAIN, 0))
        )
        return list(tx.execute(query.order_by(AttachHandle.id)).scalars())


def device(conductor: UseCases) -> Any:
    with conductor.db.reader() as tx:
        return tx.execute(
            sa.select(Device.id, Device.uuid, Deployable.id.label("deployable_id"))
            .join(Deployable, Deployable.device_id == Device.id)
            .where(Deployable.rp_uuid == provider_of(PLAIN, 0))
        ).one()


@pytest.mark.parametrize("mark", [lost_devices.REMOVAL_REQUESTED, 1_000_000])
def test_report_keeps_lost_time_of_a_unit(conductor: UseCases, mark: int) -> None:
    """Its retention goes on, and an operator's word to forget it holds."""
    conductor.report(PLAIN, report_of(PLAIN, 1, handles=1))
    there, lost = marks(conductor)
    assert (there, lost is None) == (None, False)
    conductor.execute(
        sa.update(AttachHandle).where(AttachHandle.lost_ms.is_not(None)).values(lost_ms=mark),
    )
    conductor.report(PLAIN, report_of(PLAIN, 2, handles=1))
    assert marks(conductor) == [None, mark]


def test_delete_of_device_cancels_its_setup(conductor: UseCases) -> None:
    """The set-up would go on for a device that nobody wants, and would keep its row."""
    conductor.report(PLAIN, Report(()))
    conductor.report(PLAIN, report_of(PLAIN, 0))
    mine = device(conductor)
    with conductor.db.writer() as tx:
        task = {"kind": WorkKind.SET_UP_DEVICE, "deployable_id": mine.deployable_id}
        work.add(tx, [task, {"kind": WorkKind.NOTIFY}])
    request_removal(conductor.ctx, DeleteDevice(NOVA, str(uuid4()), mine.uuid))
    assert work_kinds(conductor.db) == ["notify"]
    conductor.execute(sa.update(Device).where(Device.id == mine.id).values(being_removed=False))

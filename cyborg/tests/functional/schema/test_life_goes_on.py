# SPDX-License-Identifier: Apache-2.0
"""A cloud that comes from the existing service: its hosts report again, its instances end."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.arqs.release import ArqReleaser
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db import schema
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Attribute, Deployable, Device, Instance
from cyborg.drivers.fake import FakeDriver
from cyborg.model.caller import Caller
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, Report
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

HOST = "lab-host-1"
INSTANCE = "929f7c3a-8b62-40e6-b75d-935dc6e01e88"
NOVA = Caller("a16ab9bb0bff41aeb4d519a9d7d223ac", "u", "req-1", all_projects=True, service=True)
TABLES: tuple[Any, ...] = (Device, Deployable, Attribute, AttachHandle)


@pytest.fixture
def upgraded(existing: Database) -> Database:
    schema.upgrade(existing)
    return existing


def rows(db: Database) -> Mapping[str, Any]:
    with db.reader() as tx:
        return {
            table.__tablename__: tx.execute(sa.select(table.__table__).order_by(table.id)).all()
            for table in TABLES
        }


def report_of(host: str) -> Report:
    devices = FakeDriver(FakeHost(), configured(host=host)).discover()
    return Report((DriverReport("fake_driver", DriverState.READY, tuple(devices)),))


def test_first_report_after_upgrade_changes_nothing(upgraded: Database) -> None:
    before = rows(upgraded)
    heartbeats = Heartbeats(db=upgraded, down_after=30_000)
    reply = heartbeats.heartbeat(AgentHeartbeat(HOST, (HOST,), "18", f"x@{HOST}", None))
    assert reply.digest is None
    taken = ReportApplier(db=upgraded, auto_enable=frozenset({"*"}), wake=lambda: None).report(
        HOST, reply.epoch, report_of(HOST)
    )
    assert taken.refused == {}
    assert rows(upgraded) == before


def test_a_disabled_device_stays_reserved(upgraded: Database) -> None:
    reply = Heartbeats(db=upgraded, down_after=30_000).heartbeat(
        AgentHeartbeat(HOST, (HOST,), "18", f"x@{HOST}", None)
    )
    (provider,) = DesiredStates(db=upgraded).desired(HOST, reply.epoch).tree.providers
    assert (provider.total, provider.reserved) == (16, 16)
    assert provider.uuid == "056d6221-b84c-3d5f-bb2d-d03980a6d471"


def test_a_running_instance_can_be_deleted(upgraded: Database) -> None:
    arq_releaser = ArqReleaser(db=upgraded, wake=lambda: None)
    arq_releaser.by_instance(NOVA, str(uuid4()), INSTANCE)
    with upgraded.reader() as tx:
        held = tx.scalar(
            sa.select(sa.func.count()).select_from(AttachHandle).where(AttachHandle.state == "held")
        )
        instance = tx.execute(
            sa.select(Instance.bound, Instance.project_id).where(Instance.uuid == INSTANCE)
        ).one()
    assert held == 4
    assert (instance.bound, instance.project_id) == (False, NOVA.project_id)

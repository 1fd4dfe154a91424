# SPDX-License-Identifier: Apache-2.0
"""Health in the database: stored with a report, used by the desired state and by binds."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Device, DeviceProfile, Event
from cyborg.model.arq import Binding, State
from cyborg.model.caller import Caller
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.report import AgentHeartbeat, Report
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of

HOST = "compute"
KEYS = ("0000:00:00.0", "0000:00:01.0")
FAULT = DeviceHealth(KEYS[0], Condition.DRAIN, "hot")
CALLER = Caller("project", "user", "req-bind", all_projects=True)


@dataclass
class Host:
    """A host with two devices of two units each."""

    db: Database
    epoch: int

    def report(self, *healths: DeviceHealth, driver: str | None = None) -> int:
        """Apply a report with these healths; return the desired generation."""
        (reported,) = report_of(HOST, 2).drivers
        name = driver or reported.driver
        report = Report((replace(reported, driver=name, health=healths),))
        applier = ReportApplier(db=self.db, auto_enable=frozenset({"*"}), wake=lambda: None)
        return applier.report(HOST, self.epoch, report).desired_generation

    def reserved(self) -> list[int]:
        """Return the numbers of reserved units of the two providers."""
        tree = DesiredStates(db=self.db).desired(HOST, self.epoch).tree
        return [provider.reserved for provider in tree.providers]

    def devices(self) -> list[Any]:
        """Return the rows of the devices, ordered by key."""
        with self.db.reader() as tx:
            columns = (Device.health, Device.health_reason, Device.health_ms, Device.status)
            return list(tx.execute(sa.select(*columns).order_by(Device.device_key)))

    def history(self) -> list[str]:
        """Return the actions of the history that are about health."""
        with self.db.reader() as tx:
            query = sa.select(Event.action).where(Event.action.like("health%"))
            return list(tx.execute(query.order_by(Event.id)).scalars())

    def bind(self, index: int) -> None:
        """Bind a new ARQ to a unit of one of the devices."""
        uuid, group = str(uuid4()), f'{{"resources:{RESOURCE_CLASS}": "1"}}'
        with self.db.writer() as tx:
            profile = tx.execute(
                sa.insert(DeviceProfile).values(
                    uuid=str(uuid4()), name=uuid, profile_json=f'{{"groups": [{group}]}}'
                )
            ).inserted_primary_key
            tx.execute(
                sa.insert(Arq).values(
                    uuid=uuid,
                    state=State.INITIAL.value,
                    device_profile_id=profile[0] if profile else None,
                    device_profile_group_id=0,
                    group_spec={f"resources:{RESOURCE_CLASS}": "1"},
                )
            )
        binder = ArqBinder(db=self.db, wake=lambda: None, bind_timeout=1000)
        binding = Binding(uuid, HOST, provider_of(HOST, index), str(uuid4()))
        binder.patch(CALLER, str(uuid4()), [binding], [])


@pytest.fixture
def host(db: Database) -> Host:
    heartbeat = AgentHeartbeat(HOST, (HOST,), "0", f"agent@{HOST}", None)
    return Host(db, Heartbeats(db=db, down_after=30_000).heartbeat(heartbeat).epoch)


def test_only_the_units_of_a_faulty_device_are_reserved(host: Host) -> None:
    host.report()
    assert host.reserved() == [0, 0]
    host.report(FAULT)
    assert host.reserved() == [2, 0]
    host.report(DeviceHealth(KEYS[0], Condition.DEGRADED, "slow"))
    assert host.reserved() == [0, 0]
    assert host.history() == ["health drain", "health degraded"]


def test_a_new_faulty_device_is_reserved_at_once(host: Host) -> None:
    host.report(FAULT, DeviceHealth(KEYS[1], Condition.OK))
    assert host.reserved() == [2, 0]
    assert [(row.health, row.health_reason, row.status) for row in host.devices()] == [
        ("drain", "hot", "enabled"),
        ("ok", None, "enabled"),
    ]
    assert host.history() == ["health drain"]


def test_a_bind_to_a_faulty_device_is_refused_and_changes_nothing(host: Host) -> None:
    host.report(FAULT)
    with pytest.raises(exception.DeviceUnavailable, match="unhealthy"):
        host.bind(0)
    with host.db.reader() as tx:
        assert set(tx.execute(sa.select(AttachHandle.state)).scalars()) == {"free"}
    host.bind(1)
    host.report(DeviceHealth(KEYS[0], Condition.OK))
    host.bind(0)


def test_a_device_keeps_its_health_when_the_report_does_not_mention_it(host: Host) -> None:
    host.report(FAULT)
    before = host.devices()
    host.report()
    assert host.devices() == before
    assert host.reserved() == [2, 0]


def test_a_device_is_available_when_its_health_becomes_unknown(host: Host) -> None:
    host.report(FAULT)
    host.report(DeviceHealth(KEYS[0]))
    assert host.reserved() == [0, 0]
    assert host.devices()[0][:3] == (None, None, None)
    assert host.history() == ["health drain", "health unknown"]


def test_the_health_is_unknown_after_another_driver_takes_the_device_over(host: Host) -> None:
    host.report(FAULT)
    host.report(driver="other_driver")
    assert host.devices()[0].health is None
    assert host.reserved() == [0, 0]


def test_the_desired_state_changes_only_when_the_inventory_does(host: Host) -> None:
    first = host.report()
    healthy = DeviceHealth(KEYS[0], Condition.OK)
    assert host.report(healthy) == first
    faulty = host.report(FAULT)
    assert faulty > first
    since = host.devices()[0].health_ms
    assert host.report(replace(FAULT, reason="hotter")) == faulty
    assert host.devices()[0][:3] == ("drain", "hotter", since)
    assert host.report(replace(FAULT, condition=Condition.DEAD)) == faulty
    assert host.history() == ["health drain", "health dead"]
    assert host.report(healthy) > faulty


def test_the_health_of_unknown_devices_is_ignored(host: Host) -> None:
    host.report(DeviceHealth("nowhere", Condition.DEAD, "gone"))
    assert [row.health for row in host.devices()] == [None, None]

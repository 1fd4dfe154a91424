# SPDX-License-Identifier: Apache-2.0
"""Health in the database: stored with a report, used by the desired state and by binds."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.device_health import HealthExpiry
from cyborg.conductor.hosts.devices import DeviceAdmin
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db import notifications
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Device, DeviceProfile, Event
from cyborg.model.arq import Binding, State
from cyborg.model.caller import Caller
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.probation import AT_ONCE, HealthOrder, Rules
from cyborg.model.report import AgentHeartbeat, Report
from cyborg.rpc.agent import AgentClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.waiting import PATIENCE

HOST = "compute"
KEYS = ("0000:00:00.0", "0000:00:01.0")
FAULT = DeviceHealth(KEYS[0], Condition.DRAIN, ("hot",))
CALLER = Caller("project", "user", "req-bind", all_projects=True)


@dataclass
class Host:
    """A host with two devices of two units each."""

    db: Database
    epoch: int
    rules: Rules = AT_ONCE

    def report(self, *healths: DeviceHealth, driver: str | None = None) -> int:
        """Apply a report with these healths; return the desired generation."""
        (reported,) = report_of(HOST, 2).drivers
        name = driver or reported.driver
        report = Report((replace(reported, driver=name, health=healths),))
        applier = ReportApplier(
            db=self.db, auto_enable=frozenset({"*"}), wake=lambda: None, health_rules=self.rules
        )
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

    def pass_time(self, milliseconds: int) -> None:
        """Let the stored times be so much longer ago."""
        with self.db.writer() as tx:
            tx.execute(
                sa.update(Device).values(health_until_ms=Device.health_until_ms - milliseconds)
            )

    def expire(self) -> list[str]:
        """Run the job of a conductor that has just started."""
        return HealthExpiry(db=self.db, rules=self.rules).run_once()

    def order(self, health: HealthOrder) -> str:
        """Have an operator change the health of the first device; return its uuid."""
        with self.db.reader() as tx:
            query = sa.select(Device.uuid).where(Device.device_key == KEYS[0])
            uuid: str = tx.execute(query).scalar_one()
        admin = DeviceAdmin(
            db=self.db,
            agents=AgentClient(DirectBus(Exchange()), timeout=PATIENCE),
            lost_devices=LostDevices(db=self.db, lost_retention=0, down_after=1000),
            wake=lambda: None,
            health_rules=self.rules,
        )
        admin.update(CALLER, str(uuid4()), uuid, health=health)
        return uuid

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
        binder = ArqBinder(
            db=self.db,
            agents=AgentClient(DirectBus(Exchange()), timeout=PATIENCE),
            wake=lambda: None,
            bind_timeout=1000,
        )
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
    host.report(DeviceHealth(KEYS[0], Condition.DEGRADED, ("slow",)))
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
    assert host.report(replace(FAULT, reasons=("hotter",))) == faulty
    assert host.devices()[0][:3] == ("drain", "hotter", since)
    assert host.report(replace(FAULT, condition=Condition.DEAD)) == faulty
    assert host.history() == ["health drain", "health dead"]
    assert host.report(healthy) > faulty


def test_the_health_of_unknown_devices_is_ignored(host: Host) -> None:
    host.report(DeviceHealth("nowhere", Condition.DEAD, ("gone",)))
    assert [row.health for row in host.devices()] == [None, None]


RULES = Rules(probation=600_000, faults=3, window=3_600_000)
HEALTHY = DeviceHealth(KEYS[0], Condition.OK)


@pytest.fixture
def patient(host: Host) -> Host:
    """Return a host whose devices have a probation."""
    host.rules = RULES
    host.report(HEALTHY)
    return host


def test_device_is_reserved_during_its_probation(patient: Host) -> None:
    patient.report(FAULT)
    before = patient.report(HEALTHY)
    assert patient.devices()[0].health == "probation"
    assert patient.reserved() == [2, 0]
    assert patient.expire() == []
    patient.pass_time(599_000)
    assert patient.expire() == []
    # The conductor of the report is gone; the time is in the database.
    patient.pass_time(1_000)
    assert patient.expire() == [HOST]
    (device, _) = patient.devices()
    assert (device.health, device.health_reason) == ("ok", None)
    assert patient.reserved() == [0, 0]
    assert patient.report(HEALTHY) > before
    assert patient.history() == ["health drain", "health probation", "health ok"]
    assert patient.expire() == []


def test_device_that_flaps_is_parked_until_an_operator_releases_it(patient: Host) -> None:
    for _ in range(3):
        patient.report(FAULT)
        patient.report(HEALTHY)
    (device, _) = patient.devices()
    assert device.health == "parked"
    assert "3 times within 1 h." in device.health_reason
    patient.pass_time(10**9)
    assert patient.expire() == []
    assert patient.reserved() == [2, 0]
    patient.order(HealthOrder())
    assert patient.devices()[0].health == "ok"
    assert patient.reserved() == [0, 0]
    assert patient.history()[-2:] == ["health parked", "health ok"]


def test_an_operator_has_faults_ignored_for_a_time(patient: Host) -> None:
    patient.report(FAULT)
    patient.order(HealthOrder(ignore_for=3600))
    assert patient.devices()[0].health == "ignored"
    assert patient.reserved() == [0, 0]
    patient.bind(0)
    patient.report(DeviceHealth(KEYS[0], Condition.DEAD, ("gone",)))
    assert patient.reserved() == [0, 0]
    patient.pass_time(3_600_001)
    assert patient.expire() == [HOST]
    assert patient.devices()[0].health == "dead"
    # The bound unit is not touched.
    assert patient.reserved() == [2, 0]
    assert patient.history() == ["health drain", "health ignored", "health dead"]


def test_repeated_order_of_an_operator_changes_nothing(patient: Host) -> None:
    patient.report(FAULT)
    uuid = patient.order(HealthOrder(ignore_for=3600))
    key = str(uuid4())
    admin = DeviceAdmin(
        db=patient.db,
        agents=AgentClient(DirectBus(Exchange()), timeout=PATIENCE),
        lost_devices=LostDevices(db=patient.db, lost_retention=0, down_after=1000),
        wake=lambda: None,
    )
    for order in (HealthOrder(), HealthOrder(ignore_for=60)):
        admin.update(CALLER, key, uuid, health=order)
    assert patient.devices()[0].health == "drain"


def test_a_fault_of_all_devices_of_a_driver_is_one_event(
    patient: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    both = [DeviceHealth(key, Condition.DRAIN, ("the library is dead",)) for key in KEYS]
    patient.report(*both)
    assert [device.health for device in patient.devices()] == ["drain", "drain"]
    (message,) = [record.message for record in caplog.records if "health" in record.message]
    assert message.endswith(
        "health drain: All 2 devices of driver bench_driver have this health. the library is dead"
    )
    patient.report(*(DeviceHealth(key, Condition.OK) for key in KEYS))
    patient.pass_time(600_000)
    patient.expire()
    assert patient.history() == ["health drain", "health probation", "health ok"]
    with patient.db.reader() as tx:
        nouns = set(tx.execute(sa.select(Event.noun).where(Event.action.like("health%"))).scalars())
        (uuid,) = set(
            tx.execute(sa.select(Event.subject_uuid).where(Event.noun == "driver")).scalars()
        )
        ((name, devices),) = notifications.drivers(tx, [uuid]).values()
    assert (nouns, len(devices)) == ({"driver"}, 2)
    assert name in message


def test_different_faults_of_all_devices_are_events_of_their_own(patient: Host) -> None:
    patient.report(*(DeviceHealth(key, Condition.DRAIN, (key,)) for key in KEYS))
    assert patient.history() == ["health drain", "health drain"]

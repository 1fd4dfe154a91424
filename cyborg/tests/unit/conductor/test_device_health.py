# SPDX-License-Identifier: Apache-2.0
"""Health in the database: stored with a report, used by the desired state and by binds."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.device_health import expire
from cyborg.db import notifications
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Device, Event
from cyborg.model.caller import Caller
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.probation import HealthOrder, Rules
from cyborg.model.report import Report
from cyborg.tests.fixtures.commands import update_device
from cyborg.tests.fixtures.commits import FollowedCommits
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.use_cases import UseCases

HOST = "compute"
KEYS = ("0000:00:00.0", "0000:00:01.0")
FAULT = DeviceHealth(KEYS[0], Condition.DRAIN, ("hot",))
CALLER = Caller("project", "user", "req-bind", all_projects=True)


@pytest.fixture
def host(db: Database) -> UseCases:
    """A host with two devices of two units each."""
    return UseCases(db)


def reported(host: UseCases, *healths: DeviceHealth, driver: str | None = None) -> int:
    """Apply a report with these healths; return the desired generation."""
    (shown,) = report_of(HOST, 2).drivers
    name = driver or shown.driver
    return host.report(HOST, Report((replace(shown, driver=name, health=healths),)))


def reserved(host: UseCases) -> list[int]:
    """Return the numbers of reserved units of the two providers."""
    return list(host.reserved(HOST).values())


def devices_of(host: UseCases) -> list[Any]:
    """Return what the rows of the devices say of health, ordered by key."""
    with host.db.reader() as tx:
        columns = (Device.health, Device.health_reason, Device.health_ms, Device.status)
        return list(tx.execute(sa.select(*columns).order_by(Device.device_key)))


def pass_time(host: UseCases, milliseconds: int) -> None:
    """Let the stored times be so much longer ago."""
    host.change(Device, health_until_ms=Device.health_until_ms - milliseconds)


def expired(host: UseCases) -> list[str]:
    """Run the job of a conductor that has just started; return the agents that it notifies."""
    commits = FollowedCommits(host.db)
    expire(host.db, host.ctx.settings.health_rules)
    return commits.notified


def order(host: UseCases, health: HealthOrder) -> str:
    """Have an operator change the health of the first device; return its uuid."""
    uuid = str(host.row(Device, Device.device_key == KEYS[0]).uuid)
    host.ask(update_device(CALLER, str(uuid4()), uuid, health=health))
    return uuid


def history(host: UseCases) -> list[str]:
    """Return the actions of the history of devices and drivers that are about health."""
    about = (Event.action.like("health%"), Event.noun != "arq")
    return [row.action for row in host.rows(Event, *about)]


def boot(host: UseCases, index: int) -> None:
    """Bind a new ARQ to a unit of one of the devices."""
    host.boot(provider_of(HOST, index))


def test_only_the_units_of_a_faulty_device_are_reserved(host: UseCases) -> None:
    reported(host)
    assert reserved(host) == [0, 0]
    reported(host, FAULT)
    assert reserved(host) == [2, 0]
    reported(host, DeviceHealth(KEYS[0], Condition.DEGRADED, ("slow",)))
    assert reserved(host) == [0, 0]
    assert history(host) == ["health drain", "health degraded"]


def test_a_new_faulty_device_is_reserved_at_once(host: UseCases) -> None:
    reported(host, FAULT, DeviceHealth(KEYS[1], Condition.OK))
    assert reserved(host) == [2, 0]
    assert [(row.health, row.health_reason, row.status) for row in devices_of(host)] == [
        ("drain", "hot", "enabled"),
        ("ok", None, "enabled"),
    ]
    assert history(host) == ["health drain"]


def test_a_bind_to_a_faulty_device_is_refused_and_changes_nothing(host: UseCases) -> None:
    reported(host, FAULT)
    with pytest.raises(exception.DeviceUnavailable, match="unhealthy"):
        boot(host, 0)
    assert {row.state for row in host.rows(AttachHandle)} == {"ready"}
    boot(host, 1)
    reported(host, DeviceHealth(KEYS[0], Condition.OK))
    boot(host, 0)


def test_a_device_keeps_its_health_when_the_report_does_not_mention_it(host: UseCases) -> None:
    reported(host, FAULT)
    before = devices_of(host)
    reported(host)
    assert devices_of(host) == before
    assert reserved(host) == [2, 0]


def test_a_device_is_available_when_its_health_becomes_unknown(host: UseCases) -> None:
    reported(host, FAULT)
    reported(host, DeviceHealth(KEYS[0]))
    assert reserved(host) == [0, 0]
    assert devices_of(host)[0][:3] == (None, None, None)
    assert history(host) == ["health drain", "health unknown"]


def test_the_health_is_unknown_after_another_driver_takes_the_device_over(host: UseCases) -> None:
    reported(host, FAULT)
    reported(host, driver="other_driver")
    assert devices_of(host)[0].health is None
    assert reserved(host) == [0, 0]


def test_the_desired_state_changes_only_when_the_inventory_does(host: UseCases) -> None:
    first = reported(host)
    healthy = DeviceHealth(KEYS[0], Condition.OK)
    assert reported(host, healthy) == first
    faulty = reported(host, FAULT)
    assert faulty > first
    since = devices_of(host)[0].health_ms
    assert reported(host, replace(FAULT, reasons=("hotter",))) == faulty
    assert devices_of(host)[0][:3] == ("drain", "hotter", since)
    assert reported(host, replace(FAULT, condition=Condition.DEAD)) == faulty
    assert history(host) == ["health drain", "health dead"]
    assert reported(host, healthy) > faulty


def test_the_health_of_unknown_devices_is_ignored(host: UseCases) -> None:
    reported(host, DeviceHealth("nowhere", Condition.DEAD, ("gone",)))
    assert [row.health for row in devices_of(host)] == [None, None]


RULES = Rules(probation=600_000, faults=3, window=3_600_000)
HEALTHY = DeviceHealth(KEYS[0], Condition.OK)


@pytest.fixture
def patient(host: UseCases) -> UseCases:
    """Return a host whose devices have a probation."""
    host.ctx = changed(host.ctx, health_rules=RULES)
    reported(host, HEALTHY)
    return host


def test_device_is_reserved_during_its_probation(patient: UseCases) -> None:
    reported(patient, FAULT)
    before = reported(patient, HEALTHY)
    assert devices_of(patient)[0].health == "probation"
    assert reserved(patient) == [2, 0]
    assert expired(patient) == []
    pass_time(patient, 599_000)
    assert expired(patient) == []
    # The conductor of the report is gone; the time is in the database.
    pass_time(patient, 1_000)
    assert expired(patient) == [HOST]
    (device, _) = devices_of(patient)
    assert (device.health, device.health_reason) == ("ok", None)
    assert reserved(patient) == [0, 0]
    assert reported(patient, HEALTHY) > before
    assert history(patient) == ["health drain", "health probation", "health ok"]
    assert expired(patient) == []


def test_device_that_flaps_is_parked_until_an_operator_releases_it(patient: UseCases) -> None:
    for _ in range(3):
        reported(patient, FAULT)
        reported(patient, HEALTHY)
    (device, _) = devices_of(patient)
    assert device.health == "parked"
    assert "3 times within 1 h." in device.health_reason
    pass_time(patient, 10**9)
    assert expired(patient) == []
    assert reserved(patient) == [2, 0]
    order(patient, HealthOrder())
    assert devices_of(patient)[0].health == "ok"
    assert reserved(patient) == [0, 0]
    assert history(patient)[-2:] == ["health parked", "health ok"]


def test_an_operator_has_faults_ignored_for_a_time(patient: UseCases) -> None:
    reported(patient, FAULT)
    order(patient, HealthOrder(ignore_for=3600))
    assert devices_of(patient)[0].health == "ignored"
    assert reserved(patient) == [0, 0]
    boot(patient, 0)
    reported(patient, DeviceHealth(KEYS[0], Condition.DEAD, ("gone",)))
    assert reserved(patient) == [0, 0]
    pass_time(patient, 3_600_001)
    assert expired(patient) == [HOST]
    assert devices_of(patient)[0].health == "dead"
    # The bound unit is not touched.
    assert reserved(patient) == [2, 0]
    assert history(patient) == ["health drain", "health ignored", "health dead"]
    # The owner of the bound unit learns it, too; nobody had the unit before.
    assert patient.actions("arq")[-1] == "health dead"
    assert sum(action.startswith("health") for action in patient.actions("arq")) == 1


def test_repeated_order_of_an_operator_changes_nothing(patient: UseCases) -> None:
    reported(patient, FAULT)
    uuid = order(patient, HealthOrder(ignore_for=3600))
    key = str(uuid4())
    for late in (HealthOrder(), HealthOrder(ignore_for=60)):
        patient.ask(update_device(CALLER, key, uuid, health=late))
    assert devices_of(patient)[0].health == "drain"


def test_a_fault_of_all_devices_of_a_driver_is_one_event(
    patient: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    both = [DeviceHealth(key, Condition.DRAIN, ("the library is dead",)) for key in KEYS]
    reported(patient, *both)
    assert [device.health for device in devices_of(patient)] == ["drain", "drain"]
    (message,) = [record.message for record in caplog.records if "health" in record.message]
    assert message.endswith(
        "health drain: All 2 devices of driver bench_driver have this health. the library is dead"
    )
    reported(patient, *(DeviceHealth(key, Condition.OK) for key in KEYS))
    pass_time(patient, 600_000)
    expired(patient)
    assert history(patient) == ["health drain", "health probation", "health ok"]
    with patient.db.reader() as tx:
        nouns = set(tx.execute(sa.select(Event.noun).where(Event.action.like("health%"))).scalars())
        (uuid,) = set(
            tx.execute(sa.select(Event.subject_uuid).where(Event.noun == "driver")).scalars()
        )
        ((name, devices),) = notifications.drivers(tx, [uuid]).values()
    assert (nouns, len(devices)) == ({"driver"}, 2)
    assert name in message


def test_different_faults_of_all_devices_are_events_of_their_own(patient: UseCases) -> None:
    reported(patient, *(DeviceHealth(key, Condition.DRAIN, (key,)) for key in KEYS))
    assert history(patient) == ["health drain", "health drain"]

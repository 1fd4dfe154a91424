# SPDX-License-Identifier: Apache-2.0
"""One pass of the publisher: what is sent, what is removed, and which silence counts."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.hosts import heartbeats
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.notifications import NotificationPublisher
from cyborg.conductor.reports import apply
from cyborg.db import events, notifications
from cyborg.db.engine import Database
from cyborg.db.models import (
    METADATA,
    Arq,
    AttachHandle,
    Deployable,
    Device,
    DeviceProfile,
    Driver,
    Event,
    Service,
)
from cyborg.db.services import Process
from cyborg.model.notification import Notification
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.verbs import ApiHeartbeat, Heartbeat, SendReport
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.single_step import Clock
from cyborg.tests.fixtures.waiting import eventually

#: Milliseconds.
DOWN_AFTER = {AGENT: 10_000, API: 20_000}
HOST = "compute"


class FakeNotifier:
    """Keeps what it sends; raises ``error`` instead if there is one."""

    def __init__(self) -> None:
        self.sent: list[Notification] = []
        self.enabled = True
        self.error: Exception | None = None
        self.closed = False

    def send(self, messages: Sequence[Notification]) -> None:
        if self.error is not None:
            raise self.error
        if self.enabled:
            self.sent += messages

    def close(self) -> None:
        """Nobody waits for the bus any more."""
        self.closed = True

    def take(self) -> list[dict[str, Any]]:
        """The payloads since the last time, each with its type."""
        sent, self.sent = self.sent, []
        return [{"type of event": one.event_type, **one.payload} for one in sent]


@dataclass
class Site:
    """A conductor, and a host with two devices; the clock stands still."""

    db: Database
    clock: Clock
    epoch: int
    publisher: NotificationPublisher
    notifier: FakeNotifier = field(default_factory=FakeNotifier)

    def record(self, *entries: events.Entry) -> None:
        with self.db.writer() as tx:
            events.record(tx, entries)

    def waiting(self) -> int:
        with self.db.reader() as tx:
            return len(notifications.pending(tx, 1000))

    def sent(self) -> list[dict[str, Any]]:
        """What one pass sends."""
        self.publisher.run_once()
        return self.notifier.take()

    def services(self) -> list[tuple[str, str, str]]:
        """(event type, binary, host) of what one pass sends."""
        return [(one["type of event"], one["binary"], one["host"]) for one in self.sent()]

    def heard(self, binary: str, host: str = HOST) -> None:
        """A process of a service has sent a heartbeat now."""
        with self.db.writer() as tx:
            tx.execute(
                sa.update(Service)
                .where(Service.binary == binary, Service.host == host)
                .values(last_seen_ms=self.clock.ms)
            )

    def device(self, index: int) -> str:
        with self.db.reader() as tx:
            uuids = tx.execute(sa.select(Device.uuid).order_by(Device.id)).scalars()
            return list(uuids)[index]

    def hold(self, index: int) -> tuple[str, str]:
        """A new ARQ has a unit of one of the devices; uuids of ARQ and instance."""
        arq, instance = str(uuid4()), str(uuid4())
        own = sa.select(Deployable.id).join(Device, Device.id == Deployable.device_id)
        own = own.where(Device.uuid == self.device(index))
        with self.db.writer() as tx:
            profile = sa.insert(DeviceProfile).values(uuid=arq, name=arq, profile_json="{}")
            (profile_id,) = tx.execute(profile).inserted_primary_key or (0,)
            handle = sa.select(sa.func.max(AttachHandle.id))
            handle_id = tx.execute(handle.where(AttachHandle.deployable_id.in_(own))).scalar_one()
            (arq_id,) = tx.execute(
                sa.insert(Arq).values(
                    uuid=arq,
                    state="Bound",
                    device_profile_id=profile_id,
                    device_profile_group_id=0,
                    group_spec={},
                    project_id="project",
                    instance_uuid=instance,
                )
            ).inserted_primary_key or (0,)
            unit = sa.update(AttachHandle).where(AttachHandle.id == handle_id)
            tx.execute(unit.values(arq_id=arq_id))
        return arq, instance


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    clock = Clock()
    db = Database(f"sqlite:///{tmp_path}/notifications.sqlite", now=clock.now)
    METADATA.create_all(db.engine)
    ctx = context(db)
    beat = AgentHeartbeat(HOST, (HOST,), "0", f"agent@{HOST}", None)
    epoch = heartbeats.heartbeat(ctx, Heartbeat(beat)).epoch
    apply.store(ctx, SendReport(HOST, epoch, report_of(HOST, 2)))
    lease = ConductorLease(db=db, process=Process("control", CONDUCTOR, "0", "here", "1"))
    lease.renew()
    notifier: Any = FakeNotifier()
    publisher = NotificationPublisher(
        db=db, lease=lease, notifier=notifier, down_after=DOWN_AFTER, lease_ms=3_600_000
    )
    db.outbox = True
    yield Site(db, clock, epoch, publisher, notifier)
    db.close()


def test_arq_is_notified_with_its_owner(site: Site) -> None:
    arq, instance = site.hold(0)
    gone = str(uuid4())
    site.record(
        events.Entry("arq", arq, "Bound", instance_uuid=instance, hostname=HOST),
        events.Entry("arq", gone, "deleted", reason="its server is gone"),
        events.Entry("arq", arq, "no state"),
    )
    first, second = site.sent()
    assert (first["type of event"], first["uuid"], first["state"]) == ("arq.state", arq, "Bound")
    assert (first["project_id"], first["instance"], first["host"]) == ("project", instance, HOST)
    assert (second["uuid"], second["state"], second["project_id"]) == (gone, "Deleted", None)
    assert second["reason"] == "its server is gone"
    assert first["event_id"] < second["event_id"]
    assert (site.waiting(), site.sent()) == (0, [])


def test_device_is_notified_with_its_users(site: Site) -> None:
    """Of its own units only, and its health apart from its state."""
    arq, instance = site.hold(0)
    used, free = site.device(0), site.device(1)
    site.record(
        events.Entry("device", used, "health drain"),
        events.Entry("device", free, "enable", state="enabled"),
        events.Entry("device", "removed", "retired"),
    )
    health, state, gone = site.sent()
    assert (health["type of event"], health["uuid"], health["health"]) == (
        "device.health",
        used,
        "drain",
    )
    assert health["users"] == [{"arq": arq, "instance": instance, "project_id": "project"}]
    assert (health["type"], health["driver"], health["model"]) == ("FPGA", "bench_driver", "bench")
    assert (state["type of event"], state["uuid"], state["state"]) == (
        "device.state",
        free,
        "enabled",
    )
    assert (state["users"], state["vendor"]) == ([], "0xABCD")
    assert (gone["state"], gone["type"], gone["users"]) == ("gone", None, [])


def test_driver_is_notified_with_its_devices_and_their_users(site: Site) -> None:
    """One event stands for all devices of the driver; a driver may have none."""
    arq, instance = site.hold(1)
    with site.db.writer() as tx:
        host = sa.select(Device.host_id).limit(1).scalar_subquery()
        idle = {"uuid": "idle", "name": "idle_driver", "state": "active"}
        tx.execute(sa.insert(Driver).values(host_id=host, **idle))
        own = sa.select(Driver.uuid).where(Driver.name == "bench_driver")
        bench_uuid = tx.execute(own).scalar_one()
    site.record(
        events.Entry("driver", bench_uuid, "health drain"),
        events.Entry("driver", "idle", "health drain"),
    )
    bench, other = site.sent()
    assert (bench["type of event"], bench["driver"]) == ("driver.health", "bench_driver")
    assert bench["devices"] == sorted((site.device(0), site.device(1)))
    assert bench["users"] == [{"arq": arq, "instance": instance, "project_id": "project"}]
    assert (other["driver"], other["devices"], other["users"]) == ("idle_driver", [], [])


def test_events_of_other_nouns_do_not_wait(site: Site) -> None:
    site.record(events.Entry("operation", "an operation", "installed"))
    assert site.waiting() == 0


@pytest.mark.parametrize("returning", [True, False])
def test_event_of_a_notification_is_that_of_the_history(site: Site, returning: bool) -> None:
    # MySQL has no INSERT ... RETURNING.
    site.db.engine.dialect.insert_executemany_returning = returning
    site.record(
        events.Entry("driver", "a driver", "installed"),
        events.Entry("arq", "one", "Bound"),
        events.Entry("arq", "two", "Bound"),
    )
    sent = {one["uuid"]: one["event_id"] for one in site.sent()}
    with site.db.reader() as tx:
        rows = tx.execute(sa.select(Event.subject_uuid, Event.id).where(Event.noun == "arq"))
        assert sent == {row.subject_uuid: row.id for row in rows}


def test_full_batch_is_followed_by_the_next(site: Site) -> None:
    names = [f"{number:03}" for number in range(201)]
    site.record(*(events.Entry("arq", name, "Bound") for name in names[:200]))
    assert [one["uuid"] for one in site.sent()] == names[:200]
    site.record(*(events.Entry("arq", name, "Bound") for name in names))
    assert [one["uuid"] for one in site.sent()] == names
    assert site.waiting() == 0


def test_events_that_could_not_be_sent_wait(site: Site) -> None:
    site.record(events.Entry("arq", "one", "Bound"))
    site.notifier.error = exception.Unavailable(peer="The bus", reason="it is away")
    with pytest.raises(exception.Unavailable):
        site.publisher.run_once()
    assert site.waiting() == 1
    site.notifier.error = None
    assert [one["uuid"] for one in site.sent()] == ["one"]


def test_events_are_removed_while_notifications_are_disabled(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.record(events.Entry("arq", "one", "Bound"), events.Entry("arq", "two", "Bound"))
    site.notifier.enabled = False
    text = "removed 2 events that were not sent"
    with caplog.at_level(logging.INFO):
        assert site.sent() == []
        assert (site.waiting(), caplog.text.count(text)) == (0, 1)
        assert site.sent() == []
        assert "removed 0 events" not in caplog.text
        site.notifier.enabled = True
        site.record(events.Entry("arq", "three", "Bound"))
        site.sent()
    assert caplog.text.count("that were not sent") == 1


def test_age_of_the_oldest_waiting_event_is_the_lag(site: Site) -> None:
    with site.db.reader() as tx:
        assert notifications.lag(tx) == 0
    site.record(events.Entry("arq", "one", "Bound"))
    site.clock.advance(5)
    site.record(events.Entry("arq", "two", "Bound"))
    with site.db.reader() as tx:
        assert notifications.lag(tx) == 5000


def test_service_is_down_after_a_second_silence(site: Site) -> None:
    """Half of the time again passes after the first look; then it is reported once."""
    site.clock.advance(10)
    assert site.services() == []
    site.clock.ms += 1
    assert site.services() == []
    site.clock.ms += 4_999
    assert site.services() == []
    site.clock.ms += 1
    (down,) = site.sent()
    assert (down["type of event"], down["binary"], down["host"]) == ("service.down", AGENT, HOST)
    assert (down["last_seen_at"], down["occurred_at"]) == (
        "2023-11-14T22:13:20.000+00:00",
        "2023-11-14T22:13:35.001+00:00",
    )
    site.clock.advance(60)
    assert site.services() == []
    site.heard(AGENT)
    assert site.services() == [("service.up", AGENT, HOST)]
    assert site.services() == []


def test_heartbeat_between_two_looks_begins_a_new_silence(site: Site) -> None:
    site.clock.advance(11)
    assert site.services() == []
    site.heard(AGENT)
    site.clock.advance(11)
    assert site.services() == []
    site.clock.advance(5)
    assert site.services() == [("service.down", AGENT, HOST)]


def test_outage_of_the_database_begins_a_new_silence(site: Site) -> None:
    site.clock.advance(11)
    assert site.services() == []
    site.record(events.Entry("arq", "one", "Bound"))
    site.notifier.error = exception.Unavailable(peer="The bus", reason="it is away")
    with pytest.raises(exception.Unavailable):
        site.publisher.run_once()
    site.notifier.error = None
    site.clock.advance(5)
    assert [one["type of event"] for one in site.sent()] == ["arq.state"]
    site.clock.advance(5)
    assert site.services() == [("service.down", AGENT, HOST)]


def test_each_service_is_reported_by_itself(site: Site) -> None:
    """Other services of the host, and the same service of other hosts, stay as they were."""
    ctx = context(site.db)
    beat = AgentHeartbeat("other", ("other",), "0", "agent@other", None)
    heartbeats.heartbeat(ctx, Heartbeat(beat))
    heartbeats.api_heartbeat(ctx, ApiHeartbeat(HOST, "0", "http"))
    site.clock.advance(11)
    site.heard(AGENT, "other")
    site.services()
    site.clock.advance(5)
    assert site.services() == [("service.down", AGENT, HOST)]
    site.clock.advance(20)
    site.services()
    site.clock.advance(10)
    assert site.services() == [("service.down", AGENT, "other"), ("service.down", API, HOST)]


def test_periodic_job_sends_what_waits_and_ends_with_the_bus(site: Site) -> None:
    site.record(events.Entry("arq", "one", "Bound"))
    task = site.publisher.periodic()
    task.start()
    eventually(lambda: site.waiting() == 0)
    task.stop()
    assert [one["uuid"] for one in site.notifier.take()] == ["one"]
    assert site.notifier.closed

# SPDX-License-Identifier: Apache-2.0
"""Notifications follow the state: told after the commit, in order, and lost by nobody's death."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import history, notifications, services
from cyborg.db.engine import Database
from cyborg.db.models import Event, Service
from cyborg.db.services import Process
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.functional.life.cards import Rack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, delete_arqs, eventually_offered
from cyborg.tests.functional.watching.conftest import Watched, administrator, soon, watched_agent
from cyborg.tests.functional.watching.publishers import (
    FakeNotifier,
    FakePublisher,
    fake_publisher,
    waiting,
    write_history,
)


def devices(admin: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.get("/devices")["devices"]
    return found


def bind_when_offered(
    admin: Client, arqs: list[dict[str, Any]], rack: Rack, watched: Watched
) -> str:
    eventually_offered(watched.placement, rack.provider(), 2)
    return bind(admin, arqs, rack.provider())


@pytest.fixture
def rack(watched: Watched) -> Rack:
    return watched.rack()


@pytest.fixture
def admin(watched: Watched, rack: Rack) -> Client:
    """A running service with one card."""
    watched.stack.start_conductor()
    watched_agent(watched, rack)
    client = administrator(watched)
    soon(lambda: len(devices(client)) == 1)
    return client


def test_arq_states_are_notified_in_order(watched: Watched, admin: Client, rack: Rack):
    (arq,) = create(admin, admin.make_profile(rack.one_unit))
    # A change that is rolled back is not notified.
    bind(admin, [arq], str(uuid4()), status=404)
    instance = bind_when_offered(admin, [arq], rack, watched)
    delete_arqs(admin, instance)
    told = ["Initial", "Bound", "Deleted"]
    soon(lambda: watched.listener.states("arq.state", arq["uuid"]) == told)
    bound = watched.listener.of("arq.state", uuid=arq["uuid"])[1]
    assert bound["version"] == "1.0"
    assert (bound["instance"], bound["host"]) == (instance, "compute")
    assert bound["request_id"].startswith("req-")
    ids = [one["event_id"] for one in watched.listener.of("arq.state", uuid=arq["uuid"])]
    assert ids == sorted(set(ids))
    publishers = {one["publisher_id"] for one in watched.listener.heard}
    assert publishers == {"cyborg-conductor:control-1"}


def test_device_users_receive_its_changes(watched: Watched, admin: Client, rack: Rack):
    (device,) = devices(admin)
    # How a discovered device is, and who has it, is read when that is told.
    soon(lambda: watched.listener.states("device.state", device["uuid"]) == ["enabled"])
    (arq,) = create(admin, admin.make_profile(rack.one_unit))
    instance = bind_when_offered(admin, [arq], rack, watched)
    admin.post(f"/devices/{device['uuid']}/disable", status=204)
    admin.patch(f"/devices/{device['uuid']}", {"labels": {"rack": "7"}}, status=200)
    admin.post(f"/devices/{device['uuid']}/enable", status=204)
    told = ["enabled", "maintaining", "enabled"]
    soon(lambda: watched.listener.states("device.state", device["uuid"]) == told)
    first, *_, last = watched.listener.of("device.state", uuid=device["uuid"])
    assert first["users"] == []
    assert last["users"] == [
        {"arq": arq["uuid"], "instance": instance, "project_id": admin.project}
    ]
    assert (last["type"], last["driver"], last["model"]) == ("FPGA", "card_driver", "card")
    assert last["host"] == rack.compute
    rack.pull("0000:81:00.0")
    soon(lambda: watched.listener.states("device.state", device["uuid"]) == [*told, "lost"])
    rack.plug("0000:81:00.0", 2)
    after = [*told, "lost", "enabled"]
    soon(lambda: watched.listener.states("device.state", device["uuid"]) == after)
    # The device of an uninstalled driver is gone.
    delete_arqs(admin, instance)
    eventually_offered(watched.placement, rack.provider(), 2)
    admin.delete("/drivers/card_driver", status=202)
    after += ["maintaining", "lost", "gone"]
    soon(lambda: watched.listener.states("device.state", device["uuid"]) == after)


def test_committed_change_is_notified_after_crash(watched: Watched):
    uuid = str(uuid4())
    # It dies with the message in hand, which went nowhere.
    first = fake_publisher(watched, FakeNotifier(Died("before it was sent")), "control-1")
    second = fake_publisher(watched, FakeNotifier(), "control-2")
    write_history(watched.database, uuid)
    with pytest.raises(Died):
        first.run_once()
    second.run_once()
    assert second.notifier.sent == []
    first.die()
    second.run_once()
    assert second.notifier.states(uuid) == ["Bound"]
    assert waiting(watched.database) == 0


def test_unrecorded_notification_is_sent_at_most_twice(watched: Watched):
    one, other, last = (str(uuid4()) for _ in range(3))
    first = fake_publisher(watched, FakeNotifier(), "control-1")
    second = fake_publisher(watched, FakeNotifier(), "control-2")
    write_history(watched.database, one)
    first.run_once()
    first.notifier.error = Died("after it was sent")
    write_history(watched.database, other)
    with pytest.raises(Died):
        first.run_once()
    assert (first.notifier.states(one), first.notifier.states(other)) == (["Bound"], ["Bound"])
    first.die()
    second.run_once()
    assert (second.notifier.states(one), second.notifier.states(other)) == ([], ["Bound"])
    twice = [both.notifier.sent[-1].payload["event_id"] for both in (first, second)]
    assert twice[0] == twice[1]
    # It was only suspended: it is the oldest again, and the other one stops.
    first.notifier.error = None
    first.resume()
    write_history(watched.database, last)
    second.run_once()
    assert second.notifier.states(last) == []
    first.run_once()
    assert first.notifier.states(last) == ["Bound"]
    assert first.notifier.states(other) == ["Bound"]


def test_more_than_one_batch_is_sent_in_order(watched: Watched):
    publisher = fake_publisher(watched, FakeNotifier(), "control-1")
    subjects = [str(uuid4()) for _ in range(450)]
    write_history(watched.database, *subjects)
    publisher.run_once()
    assert [one.payload["uuid"] for one in publisher.notifier.sent] == subjects
    ids = [one.payload["event_id"] for one in publisher.notifier.sent]
    assert ids == sorted(set(ids))
    assert waiting(watched.database) == 0


def test_events_wait_until_the_bus_is_back(watched: Watched):
    uuid = str(uuid4())
    notifier = FakeNotifier(exception.Unavailable(peer="The bus", reason="it is away"))
    publisher = fake_publisher(watched, notifier, "control-1")
    write_history(watched.database, uuid)
    with pytest.raises(exception.Unavailable):
        publisher.run_once()
    assert waiting(watched.database) == 1
    notifier.sent, notifier.error = [], None
    publisher.run_once()
    assert notifier.states(uuid) == ["Bound"]
    publisher.run_once()
    assert notifier.states(uuid) == ["Bound"]


def test_events_past_their_retention_do_not_wait_for_the_bus(watched: Watched):
    write_history(watched.database, str(uuid4()), str(uuid4()))
    assert waiting(watched.database) == 2
    history.purge(watched.database, history.cutoff(watched.database, -3600_000))
    assert waiting(watched.database) == 0


def test_event_ids_are_those_of_the_history_without_insert_returning(watched: Watched):
    # MySQL has no INSERT ... RETURNING.
    watched.database.engine.dialect.insert_executemany_returning = False
    publisher = fake_publisher(watched, FakeNotifier(), "control-1")
    subjects = [str(uuid4()) for _ in range(3)]
    write_history(watched.database, *subjects)
    publisher.run_once()
    told = {one.payload["uuid"]: one.payload["event_id"] for one in publisher.notifier.sent}
    with watched.database.reader() as tx:
        rows = tx.execute(sa.select(Event.subject_uuid, Event.id))
        assert told == {row.subject_uuid: row.id for row in rows}
    assert sorted(told) == sorted(subjects)


def seen(db: Database, binary: str, host: str, *, ago_ms: int) -> None:
    """Have a service heard of so long ago."""
    with db.writer() as tx:
        process = Process(host, binary, "0", f"{binary}@{host}")
        if not services.renew(tx, process):
            services.register(tx, process, "READY")
        tx.execute(
            sa.update(Service).where(Service.host == host).values(last_seen_ms=db.now - ago_ms)
        )


def test_service_down_and_up_are_notified_once(watched: Watched):
    watched.stack.times = replace(watched.stack.times, agent_down_after=3.0)
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    seen(db, AGENT, host, ago_ms=0)
    first = watched.stack.start_conductor("control-1")
    watched.stack.start_conductor("control-2")
    seen(db, AGENT, host, ago_ms=60_000)
    soon(lambda: len(watched.listener.of("service.down", host=host)) == 1)
    (down,) = watched.listener.of("service.down", host=host)
    assert down["binary"] == AGENT
    assert down["last_seen_at"] < down["occurred_at"]
    # Another takes over what is known to be down.
    first.stop()
    marker = str(uuid4())
    write_history(db, marker)
    soon(lambda: watched.listener.states("arq.state", marker) != [])
    seen(db, AGENT, host, ago_ms=-3600_000)
    soon(lambda: len(watched.listener.of("service.up", host=host)) == 1)
    assert len(watched.listener.of("service.down", host=host)) == 1


def report_down(publisher: FakePublisher) -> None:
    """Look until the silence of a service is long enough."""

    def reported() -> bool:
        publisher.run_once()
        return publisher.notifier.types == ["service.down"]

    soon(reported)


def test_no_service_is_down_after_database_outage(watched: Watched):
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    publisher = fake_publisher(watched, FakeNotifier(), "control-1")
    # Silent for longer than it may be at the first look, and back by the next.
    seen(db, AGENT, host, ago_ms=60_000)
    with db.reader() as tx:
        (silent,) = notifications.unreported_services(tx, {AGENT: 2000})
    assert (silent.binary, silent.host) == (AGENT, host)
    publisher.run_once()
    seen(db, AGENT, host, ago_ms=-3600_000)
    publisher.run_once()
    assert publisher.notifier.sent == []


def test_removed_service_is_not_notified_as_up(watched: Watched):
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    publisher = fake_publisher(watched, FakeNotifier(), "control-1")
    seen(db, AGENT, host, ago_ms=60_000)
    report_down(publisher)
    with db.writer() as tx:
        tx.execute(sa.delete(Service).where(Service.host == host))
    seen(db, AGENT, host, ago_ms=0)
    publisher.run_once()
    assert publisher.notifier.types == ["service.down"]


def test_restart_after_days_is_notified_as_up(watched: Watched):
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    publisher = fake_publisher(watched, FakeNotifier(), "control-1")
    seen(db, AGENT, host, ago_ms=48 * 3600_000)
    report_down(publisher)
    # Another process of the same service, which removes rows of earlier ones.
    process = Process(host, AGENT, "0", f"{AGENT}@{host}", "another")
    with db.writer() as tx:
        services.register(tx, process, "READY")
        services.remove_silent(tx, process, silent_ms=24 * 3600_000)
    publisher.run_once()
    assert publisher.notifier.types == ["service.down", "service.up"]
    with db.writer() as tx:
        services.remove_silent(tx, process, silent_ms=24 * 3600_000)
        left = tx.execute(sa.select(Service.process).where(Service.host == host))
        assert left.scalars().all() == ["another"]


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """What is sent to any database from here on."""
    sent: list[str] = []

    def note(*event: Any) -> None:
        sent.append(str(event[2]))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield sent
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("drivers", [["noop"], []])
def test_disabled_notifications_write_nothing(watched: Watched, statements: list[str]):
    rack = watched.rack()
    watched.stack.start_conductor()
    watched_agent(watched, rack)
    admin = administrator(watched)
    soon(lambda: len(devices(admin)) == 1)
    assert [one for one in statements if "outbox" in one and not one.startswith("SELECT")] == []
    assert waiting(watched.database) == 0
    assert watched.listener.heard == []


def test_conductor_without_notifications_removes_events(watched: Watched):
    # A conductor with another configuration has written them.
    write_history(watched.database, *(str(uuid4()) for _ in range(450)))
    first = fake_publisher(watched, FakeNotifier(enabled=False), "control-1")
    second = fake_publisher(watched, FakeNotifier(enabled=False), "control-2")
    second.run_once()
    assert waiting(watched.database) == 450
    first.run_once()
    assert waiting(watched.database) == 0
    assert first.notifier.sent == []


def test_service_that_was_down_before_is_only_notified_as_up(watched: Watched):
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    publisher = fake_publisher(watched, FakeNotifier(enabled=False), "control-1")
    seen(db, AGENT, host, ago_ms=60_000)

    def reported() -> bool:
        publisher.run_once()
        with db.reader() as tx:
            return not notifications.unreported_services(tx, {AGENT: 2000})

    soon(reported)
    publisher.notifier.enabled = True
    publisher.run_once()
    assert publisher.notifier.sent == []
    seen(db, AGENT, host, ago_ms=-3600_000)
    publisher.run_once()
    assert publisher.notifier.types == ["service.up"]

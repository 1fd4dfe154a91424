# SPDX-License-Identifier: Apache-2.0
"""Notifications follow the state: told after the commit, in order, and lost by nobody's death."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.tasks.queue import Fenced
from cyborg.db import notifications, services
from cyborg.db.engine import Database
from cyborg.db.models import Service, Work
from cyborg.db.services import Process
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.functional.life.cards import Rack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ARQS, bind, create, eventually_offered
from cyborg.tests.functional.watching.conftest import Watched, soon
from cyborg.tests.functional.watching.publishers import (
    FakeNotifier,
    FakePublisher,
    followed,
    marked,
    position,
    write_history,
)


def profile_of(admin: Client, rack: Rack) -> str:
    name = f"profile-{uuid4().hex[:12]}"
    groups = [{f"resources:{rack.resource_class}": "1"}]
    admin.post("/device_profiles", [{"name": name, "groups": groups}])
    return name


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
    """A running service with one card, whose history is followed."""
    watched.conductor()
    followed(watched)
    watched.agent(rack)
    client = watched.admin()
    soon(lambda: len(devices(client)) == 1)
    return client


def test_arq_states_are_notified_in_order(watched: Watched, admin: Client, rack: Rack):
    (arq,) = create(admin, profile_of(admin, rack))
    instance = bind_when_offered(admin, [arq], rack, watched)
    admin.delete(f"{ARQS}?instance={instance}")
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
    (arq,) = create(admin, profile_of(admin, rack))
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


def test_devices_of_uninstalled_driver_are_notified_as_gone(
    watched: Watched, admin: Client, rack: Rack
):
    (device,) = devices(admin)
    eventually_offered(watched.placement, rack.provider(), 2)
    admin.delete("/drivers/card_driver", status=202)
    told = ["enabled", "maintaining", "lost", "gone"]
    soon(lambda: watched.listener.states("device.state", device["uuid"]) == told)


def test_rolled_back_change_is_not_notified(watched: Watched, admin: Client, rack: Rack):
    (arq,) = create(admin, profile_of(admin, rack))
    bind(admin, [arq], str(uuid4()), status=404)
    admin.delete(f"{ARQS}?arqs={arq['uuid']}")
    told = ["Initial", "Deleted"]
    soon(lambda: watched.listener.states("arq.state", arq["uuid"]) == told)


def test_committed_change_is_notified_after_crash(watched: Watched):
    uuid = str(uuid4())
    # It dies with the message in hand, which went nowhere.
    first = FakePublisher(watched, FakeNotifier(Died("before it was sent")), "control-1")
    first.notifier.sent = []
    first.follow()
    write_history(watched.database, uuid)
    soon(lambda: len(first.ended) == 1)
    second = FakePublisher(watched, FakeNotifier(), "control-2")
    second.follow()
    soon(lambda: second.notifier.states(uuid) == ["Bound"])


def test_unrecorded_notification_is_sent_at_most_twice(watched: Watched):
    one, other = str(uuid4()), str(uuid4())
    first = FakePublisher(watched, FakeNotifier(), "control-1")
    first.follow()
    write_history(watched.database, one)
    soon(lambda: first.notifier.states(one) == ["Bound"])
    soon(lambda: len(position(watched.database).published) == 1)
    first.notifier.error = Died("after it was sent")
    write_history(watched.database, other)
    soon(lambda: len(first.ended) == 1)
    assert first.notifier.states(other) == ["Bound"]
    second = FakePublisher(watched, FakeNotifier(), "control-2")
    second.follow()
    soon(lambda: second.notifier.states(other) == ["Bound"])
    soon(lambda: len(position(watched.database).published) == 2)
    assert second.notifier.states(one) == []
    third = FakePublisher(watched, FakeNotifier(), "control-3")
    third.follow()
    # The second finds that it has been taken over: it tells nothing of what comes.
    soon(lambda: [type(end) for end in second.ended] == [Fenced])
    last = str(uuid4())
    write_history(watched.database, last)
    soon(lambda: third.notifier.states(last) == ["Bound"])
    assert (third.notifier.states(one), third.notifier.states(other)) == ([], [])
    assert second.notifier.states(last) == []


def seen(db: Database, binary: str, host: str, *, ago_ms: int) -> None:
    """Have a service heard of so long ago."""
    with db.writer() as tx:
        process = Process(host, binary, "0", f"{binary}@{host}")
        if not services.renew(tx, db.now, process):
            services.register(tx, db.now, process, "READY")
        tx.execute(
            sa.update(Service).where(Service.host == host).values(last_seen_ms=db.now - ago_ms)
        )


def test_service_down_and_up_are_notified_once(watched: Watched):
    watched.stack.times = replace(watched.stack.times, agent_down_after=3.0)
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    seen(db, AGENT, host, ago_ms=0)
    watched.conductor("control-1")
    watched.conductor("control-2")
    followed(watched)
    seen(db, AGENT, host, ago_ms=60_000)
    soon(lambda: len(watched.listener.of("service.down", host=host)) == 1)
    (down,) = watched.listener.of("service.down", host=host)
    assert down["binary"] == AGENT
    assert down["last_seen_at"] < down["occurred_at"]
    # Another takes over what is known to be down.
    with db.writer() as tx:
        tx.execute(sa.update(Work).values(owner_id=None, fence=Work.fence + 1))
    marker = str(uuid4())
    write_history(db, marker)
    soon(lambda: watched.listener.states("arq.state", marker) != [])
    seen(db, AGENT, host, ago_ms=-3600_000)
    soon(lambda: len(watched.listener.of("service.up", host=host)) == 1)
    assert len(watched.listener.of("service.down", host=host)) == 1


def test_no_service_is_down_after_database_outage(watched: Watched):
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    seen(db, AGENT, host, ago_ms=0)
    publisher = FakePublisher(watched, FakeNotifier(), "control-1")
    # Silent for longer than it may be at the first look, and back by the next.
    seen(db, AGENT, host, ago_ms=60_000)
    with db.reader() as tx:
        silent = notifications.down_services(tx, db.now, {AGENT: 2000})
    assert list(silent) == [(AGENT, host)]
    publisher.follow()
    seen(db, AGENT, host, ago_ms=-3600_000)
    marker = str(uuid4())
    write_history(db, marker)
    soon(lambda: publisher.notifier.states(marker) == ["Bound"])
    assert [one.event_type for one in publisher.notifier.sent] == ["arq.state"]


def test_removed_service_is_not_notified_as_up(watched: Watched):
    db, host = watched.database, f"compute-{uuid4().hex[:8]}"
    publisher = FakePublisher(watched, FakeNotifier(), "control-1")
    seen(db, AGENT, host, ago_ms=60_000)
    publisher.follow()
    soon(lambda: [one.event_type for one in publisher.notifier.sent] == ["service.down"])
    with db.writer() as tx:
        tx.execute(sa.delete(Service).where(Service.host == host))
    soon(lambda: position(db).down == frozenset())
    assert len(publisher.notifier.sent) == 1


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
def test_disabled_notifications_read_and_write_nothing(
    watched: Watched, drivers: list[str], statements: list[str]
):
    # Somebody listened once.
    FakePublisher(watched, FakeNotifier(), "control-0").stop()
    assert marked(watched)
    watched.conductor()
    soon(lambda: not marked(watched))
    statements.clear()
    write_history(watched.database, str(uuid4()))
    soon(lambda: len(statements) > 50)
    about_events = [one.split()[0] for one in statements if "FROM events" in one]
    assert about_events == []
    assert not marked(watched)
    assert watched.listener.heard == []

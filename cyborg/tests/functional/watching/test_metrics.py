# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus collects them: from conductors, agents and the API."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from keystoneauth1 import exceptions as ks_exceptions

from cyborg import exception
from cyborg.conductor.meters import Readings
from cyborg.conductor.metrics import CloudCollector
from cyborg.db import events, notifications, work
from cyborg.db.engine import Database, Reader
from cyborg.db.models import Event, Service, Work
from cyborg.db.transaction import Transaction
from cyborg.metrics import catalogue
from cyborg.metrics.meters import Meters
from cyborg.model.arq import State
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures import pages
from cyborg.tests.fixtures.pages import Page, ReadableMeters
from cyborg.tests.fixtures.unreachable import unreachable
from cyborg.tests.fixtures.waiting import Gate
from cyborg.tests.functional.life.steps import bind, create, eventually_offered
from cyborg.tests.functional.watching.conftest import (
    Watched,
    administrator,
    soon,
    watched_agent,
    watched_page,
)


@pytest.fixture
def drivers() -> list[str]:
    """Nobody listens to notifications."""
    return ["noop"]


def names(metrics: tuple[catalogue.Metric, ...]) -> set[str]:
    return {one.name for one in metrics}


def test_conductor_exposes_counts_of_the_cloud(watched: Watched):
    page = watched_page(watched)
    rack = watched.rack()
    agent = watched_agent(watched, rack)
    admin = administrator(watched)
    eventually_offered(watched.placement, rack.provider(), 2)
    name = admin.make_profile(rack.one_unit)
    bind(admin, create(admin, name), rack.provider())
    assert page.value("cyborg_arqs", state="Bound") == 1
    assert page.value("cyborg_attach_handles", state="ready") == 2
    mine = {"host": rack.compute, "resource_class": rack.resource_class}
    assert page.value("cyborg_units", **mine, state="used") == 1
    assert page.value("cyborg_units", **mine, state="free") == 1
    project = {"project_id": admin.project, "resource_class": rack.resource_class}
    assert page.value("cyborg_project_units", **project) == 1
    assert page.value("cyborg_profile_capacity", profile=name) == 1
    assert page.value("cyborg_operations", state="running") == 0
    assert page.value("cyborg_notification_lag_seconds") == 0
    assert page.value("cyborg_devices", type="FPGA", state="enabled") == 1
    assert page.value("cyborg_drivers", driver="card_driver", state="READY") == 1
    assert {one.labels["state"] for one in page.samples("cyborg_arqs")} == set(State)
    assert page.value("cyborg_services", binary=AGENT, state="up") == 1
    heartbeat = {"binary": AGENT, "host": rack.compute}
    soon(lambda: page.value("cyborg_service_heartbeat_age_seconds", **heartbeat) < 60)
    verbs = {one.labels["verb"] for one in page.samples("cyborg_rpc_duration_seconds_count")}
    assert verbs >= {"heartbeat", "report", "create_arqs", "patch_arqs"}
    assert page.names == names(pages.CONDUCTOR_METRICS)
    rack.pull("0000:81:00.0")
    soon(lambda: page.value("cyborg_devices", type="FPGA", state="lost") == 1)
    agent.stop()
    with watched.database.writer() as tx:
        tx.execute(sa.update(Service).where(Service.binary == AGENT).values(last_seen_ms=1))
    assert page.value("cyborg_services", binary=AGENT, state="down") == 1
    assert page.value("cyborg_services", binary=AGENT, state="up") == 0
    assert page.value("cyborg_service_heartbeat_age_seconds", host=rack.compute) > 1_000_000


def test_waiting_work_is_counted_with_its_age(watched: Watched):
    page = watched_page(watched)
    db = watched.database
    with db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.NOTIFY, "instance_uuid": str(uuid4())}])
        later = {
            "created_ms": Work.created_ms - 90_000,
            "not_before_ms": Work.not_before_ms * 2,
            "error": "Nova does not answer",
        }
        tx.execute(sa.update(Work).values(**later))
    assert page.value("cyborg_work", kind="notify") == 1
    assert 90 <= page.value("cyborg_work_oldest_seconds", kind="notify") < 3600
    assert page.value("cyborg_work_failing", kind="notify") == 1
    assert page.value("cyborg_work", kind="prepare") == 0


def test_notification_lag_is_age_of_oldest_pending_event(watched: Watched):
    db = watched.database
    db.outbox = True
    with db.writer() as tx:
        assert notifications.lag(tx) == 0
        for one in ("a", "b"):
            events.record(tx, [events.Entry("device", one, "lost")])
        tx.execute(
            sa.update(Event).where(Event.subject_uuid == "a").values(at_ms=Event.at_ms - 90_000)
        )
        assert 90_000 <= notifications.lag(tx) < 3_600_000


def test_metrics_without_database_show_the_rest(watched: Watched, tmp_path: Path):
    db = Database(f"sqlite:////{tmp_path}/no-such-place/cyborg.sqlite")
    meters = Meters(CONDUCTOR, "0", address="127.0.0.1:0")
    cloud = CloudCollector(db=db, readings=Readings(), down_after={AGENT: 1})
    listener = meters.listener(cloud)
    listener.start()
    try:
        page = Page.at(listener.url)
        assert page.value("cyborg_database_up") == 0
        assert page.value("cyborg_build_info", binary=CONDUCTOR) == 1
        assert page.samples("cyborg_arqs") == []
    finally:
        listener.stop()
        listener.wait()


class StuckReader(Reader):
    """A database that says nothing before ``opened``, and then no good; ``asked`` how often."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened = Gate()
        self.asked = 0

    @contextlib.contextmanager
    def reader(self) -> Iterator[Transaction]:
        """See Reader."""
        self.asked += 1
        self.opened.hold()
        with Reader("sqlite:////nowhere/at/all").reader() as tx:
            yield tx


def test_scrape_does_not_wait_for_database(tmp_path: Path):
    db = StuckReader(f"sqlite:///{tmp_path}/cyborg.sqlite")
    cloud = CloudCollector(db=db, readings=Readings(), down_after={AGENT: 1}, timeout=0.01)
    for _ in range(3):
        up, *_rest = cloud.collect()
        assert [sample.value for sample in up.samples] == [0]
    db.opened.reached()
    assert db.asked == 1
    db.opened.set()


def test_agent_exposes_drivers_and_conductor_state(watched: Watched):
    watched.stack.times = replace(watched.stack.times, rpc=2.0)
    conductor = watched.stack.start_conductor()
    rack = watched.rack()
    meters = ReadableMeters(AGENT)
    watched_agent(watched, rack, meters=meters)
    page = meters.page
    soon(lambda: page.value("cyborg_drivers", driver="card_driver", state="READY") == 1)
    soon(lambda: page.value("cyborg_conductor_up") == 1)
    rack.driver.behaviour.broken = ValueError("a fault of its own")
    soon(lambda: page.value("cyborg_drivers", driver="card_driver", state="FAILED") == 1)
    failures = page.value("cyborg_driver_failures_total", driver="card_driver", verb="discover")
    assert failures >= 1
    assert page.names == names(pages.AGENT_METRICS)
    conductor.stop()
    soon(lambda: page.value("cyborg_conductor_up") == 0)


def test_refusals_of_other_services_are_counted():
    meters = Meters(CONDUCTOR, "0", address="127.0.0.1:0")
    watching = meters.adapter("nova", unreachable())
    with pytest.raises(ks_exceptions.ClientException):
        watching.request("/servers", "GET", raise_exc=False)
    value = meters.registry.get_sample_value
    assert value("cyborg_peer_failures_total", {"peer": "nova", "reason": "unreachable"}) == 1
    assert value("cyborg_peer_failures_total", {"peer": "nova", "reason": "error"}) == 0


@pytest.mark.parametrize("address", ["192.0.2.1:9", "127.0.0.1:99999", "no.such.host.invalid:9"])
def test_unusable_metrics_address_is_one_line(address: str):
    with pytest.raises(exception.ConfigError, match=r"metrics_listen = .* cannot be listened on"):
        Meters(CONDUCTOR, "0", address=address).listener()


def test_metrics_port_is_used_once():
    listener = Meters(CONDUCTOR, "0", address="127.0.0.1:0").listener()
    try:
        taken = listener.url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(exception.ConfigError, match=r"cannot be listened on: .*in use"):
            Meters(CONDUCTOR, "0", address=taken).listener()
    finally:
        listener.stop()
        listener.wait()

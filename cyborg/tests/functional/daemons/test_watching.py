# SPDX-License-Identifier: Apache-2.0
"""Daemons that are watched: killed between a commit and its notification, counted together."""

import configparser
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import service as runner
from cyborg.db import events
from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.model.process import API, CONDUCTOR
from cyborg.tests.fixtures import pages
from cyborg.tests.fixtures.pages import Page, free_port
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import deployments
from cyborg.tests.functional.daemons.service import Http, all_at_once
from cyborg.tests.functional.deployed.page import block
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.watching.listener import NotificationListener

CLIENTS = 12
PATIENCE = 60.0


def soon(condition: Callable[[], bool]) -> None:
    assert runner.wait_until(condition, timeout=PATIENCE)


@pytest.fixture
def topic() -> str:
    return f"told-{uuid4().hex[:12]}"


@pytest.fixture
def listener(conf: cfg.ConfigOpts, topic: str, exchange: str) -> Iterator[NotificationListener]:
    """Somebody who begins to listen when told to; the broker keeps what comes before."""
    one = NotificationListener(conf, TRANSPORT_URL, topic, exchange=exchange)
    yield one
    one.close()


@pytest.fixture
def telling(topic: str) -> Options:
    """Return the options with which the installation guide switches notifications on."""
    guide = configparser.ConfigParser()
    guide.read_string(block("by-hand", "notifications-conf"))
    options = {group: dict(guide[group]) for group in guide.sections()}
    # The topic is shared by all clouds of a broker; a test has its own.
    return deployments.merged(options, {"oslo_messaging_notifications": {"topics": topic}})


def write_history(db: Database, uuid: str) -> None:
    db.outbox = True
    with db.writer() as tx:
        events.record(tx, [events.Entry("arq", uuid, "Bound")])


def heartbeats(db: Database) -> set[str]:
    """The hosts of the conductors that run, or were killed."""
    with db.reader() as tx:
        return set(tx.execute(sa.select(Service.host).where(Service.binary == CONDUCTOR)).scalars())


def test_notification_is_sent_after_conductor_is_killed(
    deploy: Callable[..., Deployment],
    telling: Options,
    listener: NotificationListener,
    db: Database,
):
    deployment = deploy(telling)
    first = deployment.conductor({"DEFAULT": {"host": "control-1"}})
    soon(lambda: heartbeats(db) == {"control-1"})
    before, after = str(uuid4()), str(uuid4())
    write_history(db, before)
    # Whether it has told this one or not when it dies.
    first.kill()
    write_history(db, after)
    deployment.conductor({"DEFAULT": {"host": "control-2"}})
    listener.listen()
    soon(lambda: listener.states("arq.state", after) == ["Bound"])
    soon(lambda: set(listener.states("arq.state", before)) == {"Bound"})
    # Nothing is heard of the first any more, and that is told, too.
    soon(lambda: len(listener.of("service.down", host="control-1")) == 1)


def test_readings_of_an_agent_appear_in_conductor_metrics(
    host: str,
    deploy: Callable[..., Deployment],
    telling: Options,
    listener: NotificationListener,
    tmp_path: Path,
):
    ports = free_port(), free_port()
    more = {
        "conductor": {"metrics_listen": f"127.0.0.1:{ports[0]}"},
        "agent": {"usage_interval": 0.5, "metrics_listen": f"127.0.0.1:{ports[1]}"},
    }
    deployment = deploy(telling, more, {"DEFAULT": {"state_path": tmp_path}})
    deployment.conductor()
    deployment.agent()
    listener.listen()
    conductor, agent = (Page.at(f"http://127.0.0.1:{port}/metrics") for port in ports)
    soon(lambda: listener.of("accelerator.usage", host=host) != [])
    power = "cyborg_accelerator_power_watts"
    soon(lambda: conductor.value(power, host=host, driver="fake_driver") == 75.0)
    assert conductor.names == {one.name for one in pages.CONDUCTOR_METRICS}
    soon(lambda: agent.value("cyborg_drivers", driver="fake_driver", state="READY") == 1)
    assert agent.names == {one.name for one in pages.AGENT_METRICS}


def test_daemon_does_not_start_when_metrics_port_is_unusable(deploy: Callable[..., Deployment]):
    taken = {"conductor": {"metrics_listen": "192.0.2.1:9101"}}
    ended = deploy(taken).run("cyborg-conductor")
    assert ended.returncode == 1
    assert "metrics_listen = 192.0.2.1:9101 cannot be listened on" in ended.stderr


def test_uwsgi_workers_share_their_counters(
    deploy: Callable[..., Deployment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counted = tmp_path / "counted"
    counted.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(counted))
    server, url = deploy({"api": {"metrics": True}}).uwsgi(processes=3)

    def ask(_number: int) -> str:
        return str(Http(url).ask("GET", f"/v2/devices/{uuid4()}").status_code)

    assert all_at_once(CLIENTS, ask) == {"404": CLIENTS}
    page = Page.at(f"{url}/metrics")
    # Whichever worker answers: several looks meet several of them.
    for _ in range(4):
        total = "cyborg_http_requests_total"
        assert page.value(total, route="/v2/devices/{id}", status="404") == CLIENTS
        seconds = "cyborg_http_request_duration_seconds_count"
        assert page.value(seconds, route="/v2/devices/{id}", method="GET") == CLIENTS
        assert page.value("cyborg_build_info", binary=API) == 1
    assert page.names == {one.name for one in pages.API_METRICS}
    assert server.stop() == 0

# SPDX-License-Identifier: Apache-2.0
"""Daemons that are watched: killed between a commit and its notification, counted together."""

import configparser
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg import service as runner
from cyborg.db import events
from cyborg.db.engine import Database
from cyborg.tests.fixtures import pages
from cyborg.tests.fixtures.pages import Page, free_port
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import deployments
from cyborg.tests.functional.deployed.page import block
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.watching.listener import NotificationListener

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


def test_readings_appear_and_notifications_outlive_a_killed_conductor(
    host: str,
    deploy: Callable[..., Deployment],
    telling: Options,
    listener: NotificationListener,
    *,
    db: Database,
    tmp_path: Path,
):
    ports = free_port(), free_port()
    more = {
        "conductor": {"metrics_listen": f"127.0.0.1:{ports[0]}"},
        "agent": {"usage_interval": 0.5, "metrics_listen": f"127.0.0.1:{ports[1]}"},
    }
    deployment = deploy(telling, more, {"DEFAULT": {"state_path": tmp_path}})
    first = deployment.conductor({"DEFAULT": {"host": "control-1"}})
    deployment.agent()
    listener.listen()
    conductor, agent = (Page.at(f"http://127.0.0.1:{port}/metrics") for port in ports)
    soon(lambda: listener.of("accelerator.usage", host=host) != [])
    power = "cyborg_accelerator_power_watts"
    soon(lambda: conductor.value(power, host=host, driver="fake_driver") == 75.0)
    assert conductor.names == {one.name for one in pages.CONDUCTOR_METRICS}
    soon(lambda: agent.value("cyborg_drivers", driver="fake_driver", state="READY") == 1)
    assert agent.names == {one.name for one in pages.AGENT_METRICS}

    before, after = str(uuid4()), str(uuid4())
    write_history(db, before)
    # Whether it has told this one or not when it dies.
    first.kill()
    write_history(db, after)
    deployment.conductor({"DEFAULT": {"host": "control-2"}})
    soon(lambda: listener.states("arq.state", after) == ["Bound"])
    soon(lambda: set(listener.states("arq.state", before)) == {"Bound"})
    # Nothing is heard of the first any more, and that is told, too.
    soon(lambda: len(listener.of("service.down", host="control-1")) == 1)

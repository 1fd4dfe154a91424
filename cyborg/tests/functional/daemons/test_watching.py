# SPDX-License-Identifier: Apache-2.0
"""Daemons that are watched: killed between a commit and its notification, counted together."""

import configparser
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg.db import events
from cyborg.db.engine import Database
from cyborg.tests.fixtures import pages
from cyborg.tests.fixtures.pages import Page
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.deployed.page import block
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.watching.listener import NotificationListener


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


def page(daemon: Program) -> Page:
    """The metrics of a daemon, at the URL that it logs."""
    return Page.at(daemon.wait_for(r"Metrics are available at (\S+)")[1])


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
    more = {
        "conductor": {"metrics_listen": "127.0.0.1:0"},
        "agent": {"usage_interval": 0.5, "metrics_listen": "127.0.0.1:0"},
    }
    deployment = deploy(telling, more, {"DEFAULT": {"state_path": tmp_path}})
    first = deployment.conductor({"DEFAULT": {"host": "control-1"}})
    conductor, agent = page(first), page(deployment.agent())
    listener.listen()
    eventually(lambda: listener.of("accelerator.usage", host=host) != [])
    power = "cyborg_accelerator_power_watts"
    eventually(lambda: conductor.value(power, host=host, driver="fake_driver") == 75.0)
    assert conductor.names == {one.name for one in pages.CONDUCTOR_METRICS}
    eventually(lambda: agent.value("cyborg_drivers", driver="fake_driver", state="READY") == 1)
    assert agent.names == {one.name for one in pages.AGENT_METRICS}

    before, after = str(uuid4()), str(uuid4())
    write_history(db, before)
    # Whether it has told this one or not when it dies.
    first.kill()
    write_history(db, after)
    deployment.conductor({"DEFAULT": {"host": "control-2"}})
    eventually(lambda: listener.states("arq.state", after) == ["Bound"])
    eventually(lambda: set(listener.states("arq.state", before)) == {"Bound"})
    # Nothing is heard of the first any more, and that is told, too.
    eventually(lambda: len(listener.of("service.down", host="control-1")) == 1)

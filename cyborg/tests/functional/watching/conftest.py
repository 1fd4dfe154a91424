# SPDX-License-Identifier: Apache-2.0
"""A cloud of its own that is watched; its processes are for the tests to start."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg import service
from cyborg.db.engine import Database
from cyborg.model.process import CONDUCTOR
from cyborg.rpc.notifications import GROUP
from cyborg.tests.fixtures.pages import Page, ReadableMeters
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.http import Client, open_client
from cyborg.tests.functional.schema.databases import SERVER
from cyborg.tests.functional.watching.cards import MeasuringDriver, MeasuringRack
from cyborg.tests.functional.watching.listener import NotificationListener

collect_ignore = [] if SERVER else ["test_late_commits.py"]


def soon(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fails the test when it never does."""
    eventually(condition)


@dataclass
class Watched:
    """The service on a database of its own, and somebody who listens."""

    stack: Stack
    database: Database
    listener: NotificationListener
    placement: PlacementService
    state_path: Path
    endings: list[Callable[[], object]] = field(default_factory=list)

    def rack(self, kind: type[MeasuringDriver] = MeasuringDriver) -> MeasuringRack:
        """A machine with one card of two units that Placement knows as a compute."""
        name = fresh_host("watched")
        self.placement.make_compute(name)
        rack = Rack.build(name, Traits(f"CUSTOM_CARD_{uuid4().hex[:12].upper()}"), {CARD: 2})
        driver = kind(rack.machine, name, rack.driver.traits)
        self.endings.append(lambda: driver.gate.set())
        return MeasuringRack(name, rack.machine, driver)


def watched_page(watched: Watched, host: str = "control-1") -> Page:
    """Return the metrics of a conductor that is started for it."""
    meters = ReadableMeters(CONDUCTOR)
    watched.stack.start_conductor(host, meters=meters)
    return meters.page


def administrator(watched: Watched) -> Client:
    """Return an administrator in front of a new API, with a service token."""
    return open_client(watched.stack, "admin", version="2.100", service=True)


def watched_agent(watched: Watched, *racks: Rack, **more: Any) -> service.Daemon:
    """Start the agent of a machine, with the drivers of all these."""
    return watched.stack.start_agent(
        racks[0].compute,
        machine=racks[0].machine,
        drivers=[one.loaded for one in racks],
        state_path=watched.state_path,
        **more,
    )


@pytest.fixture
def topic() -> str:
    return f"told-{uuid4().hex[:12]}"


@pytest.fixture
def drivers() -> list[str]:
    """``[oslo_messaging_notifications] driver``."""
    return ["messagingv2"]


@pytest.fixture
def watched(
    stack: Stack,
    conf: cfg.ConfigOpts,
    placement: PlacementService,
    tmp_path: Path,
    topic: str,
    drivers: list[str],
    own_database: Database,
) -> Iterator[Watched]:
    # The bus of the house has registered the options.
    conf.set_override("driver", drivers, GROUP)
    conf.set_override("topics", [topic], GROUP)
    listener = NotificationListener(conf, TRANSPORT_URL, topic)
    listener.listen()
    # A conductor that a slow machine kept from its heartbeat tells some things twice.
    with stack.beside(own_database, agent_heartbeat=0.2, scan=0.2, lease=30.0) as own:
        made = Watched(own, own_database, listener, placement, tmp_path)
        yield made
        for ending in made.endings:
            ending()
    listener.close()
    conf.clear_override("driver", GROUP)
    conf.clear_override("topics", GROUP)

# SPDX-License-Identifier: Apache-2.0
"""A cloud of its own whose conductor puts no device into service by itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import webtest
from oslo_middleware import RequestId

from cyborg import service
from cyborg.api import app as api_app
from cyborg.db import schema
from cyborg.db.engine import Database, Reader
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack, Times, reach
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import eventually
from cyborg.tests.functional.readiness.cards import BareCardDriver
from cyborg.tests.functional.schema.databases import empty_database

TIMES = Times(agent_heartbeat=0.1, scan=0.1)


@pytest.fixture
def cautious(stack: Stack, tmp_path: Path) -> Iterator[tuple[Stack, Database]]:
    """The service on a database of its own; its conductor is not started yet."""
    with empty_database(tmp_path) as database:
        schema.upgrade(database)
        own = replace(
            stack,
            database_url=database.engine.url.render_as_string(hide_password=False),
            exchange=f"cyborg-{uuid4().hex[:12]}",
            times=TIMES,
            auto_enable=frozenset(),
            _endings=[],
        )
        yield own, database
        own.stop()


@dataclass(frozen=True)
class Site(Rack):
    """One compute with one card that nobody has enabled, and people who ask."""

    driver: BareCardDriver
    agent: service.Daemon
    operator: Client
    conductor: ConductorClient
    database: Database
    stack: Stack
    state_path: Path

    def as_(self, role: str, version: str | None = "2.4") -> Client:
        """Somebody of the same project as the operator."""
        return replace(self.operator, role=role, version=version)

    @property
    def device(self) -> dict[str, Any]:
        """The card as operators see it."""
        (found,) = self.operator.get("/devices")["devices"]
        return dict(found)

    @property
    def path(self) -> str:
        return f"/devices/{self.device['uuid']}"

    def enable(self) -> None:
        """Ask for it; the answer never waits for the host."""
        self.operator.post(f"{self.path}/enable", status=204)

    def becomes(self, status: str) -> None:
        """Wait until the device is so."""
        eventually(lambda: self.device["status"] == status)

    @property
    def hardware(self) -> dict[str, Any]:
        """What the card's host said of it when it last reported."""
        (found,) = self.operator.get("/hardware")["hardware"]
        return dict(found)

    def unready(self, *, required: bool = True) -> None:
        """Wait until the host has reported that the card has to be set up, or has not."""
        eventually(lambda: self.hardware["acc_status"]["setup_required"] is required)

    def restart(self) -> service.Daemon:
        """Another agent process on the same machine; the old one is to be stopped before."""
        return self.stack.start_agent(
            self.compute, machine=self.machine, drivers=[self.loaded], state_path=self.state_path
        )


@pytest.fixture
def site(
    cautious: tuple[Stack, Database], placement: PlacementService, tmp_path: Path
) -> Iterator[Callable[..., Site]]:
    """Start the conductor (``auto_enable``: for these drivers) and an agent with one card.

    One that is not ``bare`` is set up; ``shut``: no set-up ends before its gate is opened.
    """
    stack, database = cautious
    drivers: list[BareCardDriver] = []
    endings: list[Callable[[], object]] = []

    def start(
        *,
        bare: bool = True,
        auto_enable: tuple[str, ...] = (),
        plugged: bool = True,
        shut: bool = False,
    ) -> Site:
        own = replace(stack, auto_enable=frozenset(auto_enable))
        own.start_conductor()
        compute, resource_class = fresh_host("cautious"), f"CUSTOM_CARD_{uuid4().hex[:12].upper()}"
        placement.make_compute(compute)
        rack = Rack.build(compute, Traits(resource_class), {CARD: 2} if plugged else {})
        driver = BareCardDriver(rack.machine, compute, Traits(resource_class))
        drivers.append(driver)
        if not bare:
            driver.install(CARD, "")
        if shut:
            driver.gate.clear()
        rack = replace(rack, driver=driver)
        agent = own.start_agent(
            compute, machine=rack.machine, drivers=[rack.loaded], state_path=tmp_path
        )
        conductor = reach(ConductorClient(own.bus(), timeout=own.times.rpc))
        reader = Reader(own.database_url)
        endings.extend([conductor.close, reader.close])
        wsgi = RequestId(api_app.core(own.conf, reader=reader, conductor=conductor))
        operator = Client(webtest.TestApp(wsgi), role="operator", version="2.4")
        made = Site(
            compute,
            rack.machine,
            driver,
            agent,
            operator,
            conductor,
            database,
            own,
            tmp_path,
        )
        if plugged:
            eventually(lambda: len(operator.get("/devices")["devices"]) == 1)
        return made

    yield start
    for driver in drivers:
        driver.gate.set()
    for ending in endings:
        ending()

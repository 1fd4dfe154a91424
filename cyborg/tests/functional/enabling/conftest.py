# SPDX-License-Identifier: Apache-2.0
"""A cloud of its own whose conductor puts no device into service by itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.enabling.cards import BareCardDriver
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.http import Client, open_client


@dataclass(kw_only=True)
class Site(Rack, ComputeHost):
    """One compute with one card that nobody has enabled, and people who ask."""

    driver: BareCardDriver
    operator: Client
    conductor: ConductorClient
    database: Database

    def as_(self, role: str, version: str | None = "2.100") -> Client:
        """Somebody of the same project as the operator."""
        return replace(self.operator, role=role, version=version)

    def profile(self) -> str:
        """The name of a new profile for one unit."""
        return self.as_("admin").make_profile(self.one_unit)

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


@pytest.fixture
def site(
    beside: Callable[..., Stack], own_database: Database, tmp_path: Path
) -> Iterator[Callable[..., Site]]:
    """Start the conductor (``auto_enable``: for these drivers) and an agent with one card.

    One that is not ``bare`` is set up; ``shut``: no set-up ends before its gate is opened.
    """
    drivers: list[BareCardDriver] = []

    def start(
        *,
        bare: bool = True,
        auto_enable: tuple[str, ...] = (),
        plugged: bool = True,
        shut: bool = False,
    ) -> Site:
        own = beside(
            own_database, auto_enable=frozenset(auto_enable), agent_heartbeat=0.1, scan=0.1
        )
        own.start_conductor()
        traits = Traits(f"CUSTOM_CARD_{uuid4().hex[:12].upper()}")
        host = compute_host(own, tmp_path)
        rack = Rack.build(host.compute, traits, {CARD: 2} if plugged else {})
        host.machine = rack.machine
        driver = BareCardDriver(rack.machine, host.compute, traits)
        drivers.append(driver)
        if not bare:
            driver.install(CARD, "")
        if shut:
            driver.gate.clear()
        operator = open_client(own, "operator", version="2.100")
        made = Site(
            **vars(host),
            driver=driver,
            operator=operator,
            conductor=own.conductor_client(),
            database=own_database,
        )
        made.start(made.loaded)
        if plugged:
            eventually(lambda: len(operator.get("/devices")["devices"]) == 1)
        return made

    yield start
    for driver in drivers:
        driver.gate.set()

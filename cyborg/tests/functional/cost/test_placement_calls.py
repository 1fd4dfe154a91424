# SPDX-License-Identifier: Apache-2.0
"""What an agent asks of Placement, round by round, counted on its way to the real one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Device
from cyborg.testing.fake_host import FakeClock, FakeHost
from cyborg.tests.fixtures.cost_meter import CountedAdapter, Tally
from cyborg.tests.fixtures.counted_service import CountedService
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import DRIVER, provider_of, report_of
from cyborg.tests.fixtures.manual_processes import ManualAgent
from cyborg.tests.fixtures.placement import PlacementService, fresh_host

Statements = Callable[[], AbstractContextManager[Tally]]
FULL_CHECK = 600.0
#: Requests beside those for devices and lacking words: the compute, its tree (what Nova claims in
#: it must be known before the first look at the hardware) and the traits.
FIXED = 3


class Cards(Driver):
    """A driver whose devices are given to it."""

    name = DRIVER

    def __init__(self, conf: cfg.ConfigOpts, devices: tuple[Device, ...]) -> None:
        super().__init__(FakeHost(), conf)
        self._devices = devices

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return list(self._devices)


class Agent:
    """An agent's loop, beating when told to, on a host with so many devices of one class."""

    def __init__(
        self,
        counted_service: CountedService,
        placement: PlacementService,
        conf: cfg.ConfigOpts,
        *,
        devices: int,
        resource_class: str,
        state_path: Path,
    ) -> None:
        self.resource_class = resource_class
        self.host = fresh_host()
        self.root = placement.make_compute(self.host)
        self.clock = FakeClock()
        report = report_of(self.host, devices, resource_class=resource_class)
        self.beat = ManualAgent(
            DirectBus(Exchange()),
            self.host,
            [LoadResult(DRIVER, Cards(conf, report.drivers[0].devices))],
            placement=CountedAdapter(placement.adapter(), counted_service.meter),
            state_path=state_path,
            clock=self.clock.monotonic,
            conductor=counted_service.agent,
            scan=60.0,
            full_check=FULL_CHECK,
            rpc_timeout=1.0,
        ).run_once


@pytest.fixture(params=["FPGA", "CUSTOM_BENCH"])
def agent(
    request: pytest.FixtureRequest,
    counted_service: CountedService,
    placement: PlacementService,
    conf: cfg.ConfigOpts,
    tmp_path: Path,
) -> Callable[[int], Agent]:
    """Make an agent for a host with so many devices, of a standard class and of a custom one."""
    return lambda devices: Agent(
        counted_service,
        placement,
        conf,
        devices=devices,
        resource_class=request.param,
        state_path=tmp_path,
    )


def _lacking(calls: list[str]) -> int:
    """How many classes and traits were made because this Placement lacked them."""
    words = ("PUT /resource_classes/", "PUT /traits/")
    return sum(call.startswith(words) for call in calls)


@pytest.mark.parametrize("devices", [1, 8])
def test_cost_of_first_report(agent: Callable[[int], Agent], statements: Statements, devices: int):
    one = agent(devices)
    with statements() as tally:
        one.beat()
    assert len(tally.http) == 3 * devices + FIXED + _lacking(tally.http), tally.http
    assert tally.rpc == ["heartbeat", "desired", "report", "desired"]


def test_cost_of_an_unchanged_round(agent: Callable[[int], Agent], statements: Statements):
    one = agent(3)
    one.beat()
    one.clock.advance(61.0)
    with statements() as tally:
        one.beat()
    assert tally.http == []
    assert tally.rpc == ["heartbeat"]


def test_cost_of_a_full_check_without_changes(
    agent: Callable[[int], Agent], statements: Statements
):
    one = agent(3)
    one.beat()
    one.clock.advance(FULL_CHECK + 1)
    with statements() as tally:
        one.beat()
    assert len(tally.http) == 1, tally.http


def test_full_check_costs_two_more_for_each_changed_provider(
    agent: Callable[[int], Agent], statements: Statements, placement: PlacementService
):
    one = agent(3)
    one.beat()
    placement.call(
        "PUT",
        f"/resource_providers/{provider_of(one.host, 1)}/aggregates",
        {"resource_provider_generation": _generation(placement, one), "aggregates": [str(uuid4())]},
    )
    one.clock.advance(FULL_CHECK + 1)
    with statements() as tally:
        one.beat()
    assert len(tally.http) == 3, tally.http


def _generation(placement: PlacementService, agent: Agent) -> int:
    provider = placement.call("GET", f"/resource_providers/{provider_of(agent.host, 1)}")
    return int(provider["generation"])

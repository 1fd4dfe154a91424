# SPDX-License-Identifier: Apache-2.0
"""What an agent asks of Placement, round by round, counted on its way to the real one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device
from cyborg.testing.fake_host import FakeClock, FakeHost
from cyborg.tests.fixtures.cost_meter import CountedAdapter, Tally
from cyborg.tests.fixtures.counted_service import CountedService
from cyborg.tests.fixtures.host_reports import DRIVER, provider_of, report_of
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.single_step import Environment

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

    def discover(self, scan: Scan) -> list[Device]:
        return list(self._devices)


@pytest.mark.parametrize(
    ("devices", "resource_class"),
    [(1, "FPGA"), (8, "FPGA"), (1, "CUSTOM_BENCH"), (8, "CUSTOM_BENCH")],
)
def test_cost_of_the_rounds_of_an_agent(
    counted_service: CountedService,
    statements: Callable[[], AbstractContextManager[Tally]],
    placement: PlacementService,
    conf: cfg.ConfigOpts,
    tmp_path: Path,
    *,
    devices: int,
    resource_class: str,
):
    host, clock = fresh_host(), FakeClock()
    placement.make_compute(host)
    report = report_of(host, devices, resource_class=resource_class)
    environment = Environment(
        database_url=f"sqlite:///{tmp_path}/unused.sqlite",
        state_path=tmp_path,
        placement=CountedAdapter(placement.adapter(), counted_service.meter),
    )
    agent = environment.agent(
        host,
        LoadResult(DRIVER, Cards(conf, report.drivers[0].devices)),
        clock=clock.monotonic,
        conductor=counted_service.agent,
        scan=60.0,
        full_check_interval=FULL_CHECK,
    )

    def run(seconds: float) -> Tally:
        clock.advance(seconds)
        with statements() as tally:
            agent.run_once()
        return tally

    first = run(0.0)
    # Classes and traits that this Placement lacked.
    made = sum(call.startswith(("PUT /resource_classes/", "PUT /traits/")) for call in first.http)
    assert len(first.http) == 3 * devices + FIXED + made, first.http
    assert first.rpc == ["heartbeat", "desired", "report", "desired", "published"]
    unchanged = run(61.0)
    assert (unchanged.http, unchanged.rpc) == ([], ["heartbeat"])
    assert len(run(FULL_CHECK + 1).http) == 1
    # Two more for each provider that was changed.
    path = f"/resource_providers/{provider_of(host, 0)}"
    generation = placement.call("GET", path)["generation"]
    body = {"resource_provider_generation": generation, "aggregates": [str(uuid4())]}
    placement.call("PUT", f"{path}/aggregates", body)
    assert len(run(FULL_CHECK + 1).http) == 3

# SPDX-License-Identifier: Apache-2.0
"""The walk against the service of the functional tests: it repeats, and says what failed.

That every step holds, once and again, is shown by tests of ``tools/quickstart``.
"""

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import requests
from oslo_config import cfg

from cyborg.db.engine import Reader
from cyborg.drivers.fake import FakeDriver
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, requested
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg_tools.quickstart import cloud
from cyborg_tools.quickstart.clients import Scenario, StepFailed
from cyborg_tools.quickstart.preparation import Preparation
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.quickstart.walk import Walk

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def api_url(conf: cfg.ConfigOpts, stack: Stack) -> Iterator[str]:
    """The whole API over HTTP, without Keystone, as quickstart serves it."""
    conf.set_override("auth_strategy", "noauth", group="api")
    with Loopback(stack.make_api()) as server:
        # It connects to the bus at its first request.
        eventually(lambda: requests.get(f"{server.url}/healthcheck", timeout=PATIENCE).ok)
        yield server.url
    conf.clear_override("auth_strategy", group="api")


@pytest.fixture
def scenario(
    clean: None,
    api_url: str,
    compute: Callable[..., ComputeHost],
    conf: cfg.ConfigOpts,
    database_url: str,
    placement: PlacementService,
    nova_api: SimulatedNova,
) -> Iterator[Scenario]:
    """A host with the fake accelerator."""
    host = compute(published=False)
    reader = Reader(database_url)
    (device,) = look(FakeDriver(FakeHost(), conf)).discover()
    yield Scenario(
        url=api_url,
        placement_url=placement.url,
        nova=nova_api,
        host=host.compute,
        deployable=device.deployables[0],
        units=partial(cloud.units, reader),
    )
    reader.close()


def walked(scenario: Scenario) -> str:
    out = io.StringIO()
    Walk(scenario, Screen(out)).play()
    return " ".join(out.getvalue().split())


def test_leftovers_of_interrupted_walk_are_removed(scenario: Scenario) -> None:
    class Impatient(Screen):
        """Its person presses Ctrl-C when the instance holds the accelerator."""

        def step(self, text: str) -> None:
            super().step(text)
            if "lists the instance's ARQs" in text:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Walk(scenario, Impatient(io.StringIO())).play()
    assert Preparation(scenario).supply().handles == {"free": 15, "held": 1}
    assert "attach handles: 16 free" in walked(scenario)


def test_missing_free_units_are_named(scenario: Scenario, placement: PlacementService) -> None:
    walked(scenario)
    root = placement.make_compute(scenario.host)
    group = {"resources:FPGA": "16", "trait:CUSTOM_FAKE_DEVICE": "required"}
    (candidate,) = placement.candidates(requested([group]), in_tree=root)
    placement.allocate("5b9c1f0e-2f0b-4a55-9d6c-0d9f0c1a7e11", candidate)
    with pytest.raises(StepFailed, match="no host with a free unit"):
        walked(scenario)
    placement.free("5b9c1f0e-2f0b-4a55-9d6c-0d9f0c1a7e11")


def test_unreachable_service_is_named(scenario: Scenario, tmp_path: Path) -> None:
    with ports.refusing() as port:
        away = Scenario(
            f"http://127.0.0.1:{port}",
            scenario.placement_url,
            scenario.nova,
            scenario.host,
            scenario.deployable,
            scenario.units,
        )
        with pytest.raises(StepFailed, match="could not communicate"):
            walked(away)

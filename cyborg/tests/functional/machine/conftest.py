# SPDX-License-Identifier: Apache-2.0
"""Where the state machine plays: a database and a Nova of its own."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import webtest
from oslo_config import cfg

from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.functional.machine.cloud import Site
from cyborg.tests.functional.machine.simulation import Simulation, new_simulation


@pytest.fixture(scope="package")
def site(
    conf: cfg.ConfigOpts, tmp_path_factory: pytest.TempPathFactory, placement: PlacementService
) -> Iterator[Site]:
    """What all plays have in common."""
    files = tmp_path_factory.mktemp("machine")
    with (
        new_environment(files, placement) as (environment, nova, glance),
    ):
        nobody = ConductorClient(DirectBus(Exchange()), timeout=PATIENCE)
        api = environment.api(conf, conductor=nobody)
        yield Site(environment, placement, nova, glance, webtest.TestApp(api.app))
        api.stop()


@pytest.fixture
def simulation(site: Site) -> Iterator[Simulation]:
    """A cloud of its own for one test."""
    with closing(new_simulation(site)) as simulation:
        yield simulation

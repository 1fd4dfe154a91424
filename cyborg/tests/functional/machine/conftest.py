# SPDX-License-Identifier: Apache-2.0
"""Where the state machine plays: a database and a Nova of its own."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import webtest
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg.api import app as api_app
from cyborg.db.engine import Reader
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.functional.machine.cloud import Site
from cyborg.tests.functional.machine.simulation import Simulation


@pytest.fixture(scope="package")
def site(
    conf: cfg.ConfigOpts, tmp_path_factory: pytest.TempPathFactory, placement: PlacementService
) -> Iterator[Site]:
    """What all plays have in common."""
    files = tmp_path_factory.mktemp("machine")
    with (
        new_environment(files, placement) as (environment, nova, glance),
        closing(Reader(environment.database_url, now=environment.clock.now)) as reader,
        closing(ConductorClient(DirectBus(Exchange()), timeout=PATIENCE)) as nobody,
    ):
        app = webtest.TestApp(RequestId(api_app.core(conf, reader=reader, conductor=nobody)))
        yield Site(environment, placement, nova, glance, app)


@pytest.fixture
def simulation(site: Site) -> Iterator[Simulation]:
    """A cloud of its own for one test."""
    with closing(Simulation(site)) as simulation:
        yield simulation

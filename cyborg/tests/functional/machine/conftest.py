# SPDX-License-Identifier: Apache-2.0
"""Where the state machine plays: a database and a Nova of its own."""

from collections.abc import Iterator

import pytest
import webtest
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg.api import app as api_app
from cyborg.db import schema
from cyborg.db.engine import Database, Reader
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.machine.cloud import Site
from cyborg.tests.functional.machine.crashable import Clock
from cyborg.tests.functional.machine.simulation import Simulation
from cyborg.tests.functional.schema.databases import SERVER, empty_database

# Its directed lives show nothing that hangs on the database.
collect_ignore = ["test_play.py"] if SERVER else []


@pytest.fixture(scope="package")
def site(
    conf: cfg.ConfigOpts, tmp_path_factory: pytest.TempPathFactory, placement: PlacementService
) -> Iterator[Site]:
    """What all plays have in common."""
    directory = tmp_path_factory.mktemp("machine")
    clock = Clock()
    with empty_database(directory) as db, SimulatedNova() as nova, SimulatedGlance() as glance:
        schema.upgrade(db)
        url = db.engine.url.render_as_string(hide_password=False)
        own, reader = Database(url, now=clock.now), Reader(url)
        nobody = ConductorClient(DirectBus(Exchange()), timeout=1.0)
        app = webtest.TestApp(RequestId(api_app.core(conf, reader=reader, conductor=nobody)))
        yield Site(own, clock, placement, nova, glance, directory, app)
        for one in (nobody, reader, own):
            one.close()


@pytest.fixture
def simulation(site: Site) -> Iterator[Simulation]:
    """A cloud of its own for one test."""
    simulation = Simulation(site)
    yield simulation
    simulation.close()

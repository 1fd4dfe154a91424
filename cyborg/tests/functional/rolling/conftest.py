# SPDX-License-Identifier: Apache-2.0
"""One performance of the play, of which all tests here read what passed the bus."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import webtest
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg.api import app as api_app
from cyborg.db.engine import Reader
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Peers, Times, reach
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.rolling.middle import Middle
from cyborg.tests.functional.rolling.play import Play
from cyborg.tests.functional.rolling.records import LEVELS, RELEASE, before
from cyborg.tests.functional.rolling.tape import Tape, TapedStack
from cyborg.tests.functional.schema.databases import upgraded_database


@pytest.fixture(scope="module")
def middle() -> Middle:
    """What knows no more than the release before this one, and has heard all of the play."""
    return Middle(before())


@pytest.fixture(scope="module")
def played(
    conf: cfg.ConfigOpts,
    placement: PlacementService,
    tmp_path_factory: pytest.TempPathFactory,
    middle: Middle,
) -> Iterator[Play]:
    """The play when it is over; everybody was pinned to the release before this one.

    The pin is taken away before the last act.
    """
    files = tmp_path_factory.mktemp("play")
    with (
        upgraded_database(files) as database,
        SimulatedNova() as nova,
        SimulatedGlance() as glance,
        ExitStack() as endings,
    ):
        stack = TapedStack(
            conf=conf,
            database_url=database.engine.url.render_as_string(hide_password=False),
            transport_url=TRANSPORT_URL,
            peers=Peers(placement=placement.adapter, nova=nova.adapter, glance=glance.adapter),
            times=Times(agent_heartbeat=0.5, scan=0.5, full_check=2.0, lease=30.0, usage=2.0),
        )
        endings.callback(stack.stop)
        for option, version in LEVELS.items():
            conf.set_override(option, version, "upgrade_levels")
        stack.tape = Tape() if RELEASE else middle.tape()
        stack.start_conductor()
        client = reach(ConductorClient(stack.bus(), timeout=stack.times.rpc))
        reader = Reader(stack.database_url)
        endings.callback(reader.close)
        endings.callback(client.close)
        http = webtest.TestApp(RequestId(api_app.core(conf, reader=reader, conductor=client)))
        play = Play(stack, http, client, database, placement, nova, glance, files)
        try:
            play.perform()
        finally:
            for option in LEVELS:
                conf.clear_override(option, "upgrade_levels")
        play.upgrade()
        yield play

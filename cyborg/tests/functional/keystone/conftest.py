# SPDX-License-Identifier: Apache-2.0
"""One Keystone and one cloud for all tests of this package."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from oslo_config import cfg

from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.choice import FULL
from cyborg.tests.fixtures.keystone import KeystoneService
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Peers, Stack, Times
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.keystone.cloud import (
    Cloud,
    authentication,
    daemons,
    in_process,
    people,
)
from cyborg.tests.functional.schema.databases import upgraded_database


@pytest.fixture(scope="package")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystoneService]:
    with KeystoneService(tmp_path_factory.mktemp("keystone")) as running:
        yield running


@pytest.fixture(scope="package")
def cloud(
    keystone: KeystoneService,
    placement: PlacementService,
    nova_api: SimulatedNova,
    conf: cfg.ConfigOpts,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cloud]:
    """Keystone's catalogue has the accelerator service, and Placement the fake device."""
    directory, host = tmp_path_factory.mktemp("cloud"), fresh_host()
    placement.make_compute(host)
    with ExitStack() as running:
        database = running.enter_context(upgraded_database(directory))
        url = database.engine.url.render_as_string(hide_password=False)
        exchange = running.enter_context(broker.exchange(deployments.TRANSPORT_URL, host))
        options = deployments.merged(
            deployments.options(
                directory,
                database=url,
                exchange=exchange,
                host=host,
                placement=placement,
                nova=nova_api.url,
            ),
            authentication(keystone),
        )
        if deployments.HAS_BROKER and FULL:
            api = running.enter_context(daemons(options, directory))
        else:
            stack = Stack(
                conf=conf,
                database_url=url,
                transport_url=deployments.TRANSPORT_URL,
                peers=Peers(placement=placement.adapter, nova=nova_api.adapter),
                exchange=exchange,
                # No test is about a peer that does not answer.
                times=Times(bind_timeout=PATIENCE, agent=PATIENCE, rpc=PATIENCE),
            )
            api = running.enter_context(in_process(options, host, directory, stack))
        made = Cloud(keystone, people(keystone), host, running.enter_context(api()), api, database)
        keystone.register("accelerator", f"{made.url}/v2")
        eventually(lambda: offered(placement, made.provider) == 16, "Placement has the device")
        yield made

# SPDX-License-Identifier: Apache-2.0
"""A counted service in an empty database, and one among a thousand unrelated requests."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg.tests.fixtures.cost_meter import Tally
from cyborg.tests.fixtures.costs import Scenarios
from cyborg.tests.fixtures.counted_service import CountedService, running_service
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.unrelated_rows import crowd
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.schema.databases import SERVER, upgraded_database

# The benchmark counts what the tests beside it count on every server.
collect_ignore = ["test_bench.py"] if SERVER else []


@pytest.fixture(scope="package", params=[0, 1000], ids=lambda others: f"{others}-others")
def counted_service(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    conf: cfg.ConfigOpts,
    nova_api: SimulatedNova,
) -> Iterator[CountedService]:
    """A service whose database holds so many requests that have nothing to do with any test."""
    with upgraded_database(tmp_path_factory.mktemp("cost")) as db:
        crowd(db, request.param)
        with running_service(
            conf=conf,
            database_url=db.engine.url.render_as_string(hide_password=False),
            transport_url=TRANSPORT_URL,
            exchange=f"cost-{uuid4().hex[:12]}",
            nova=nova_api.adapter(),
        ) as made:
            yield made


@pytest.fixture
def statements(counted_service: CountedService) -> Callable[[], AbstractContextManager[Tally]]:
    """Open a block whose statements, commits and calls are counted."""
    return counted_service.meter.tally


@pytest.fixture
def scenarios(counted_service: CountedService) -> Scenarios:
    """A fresh host with two devices of eight units each."""
    return Scenarios(counted_service)

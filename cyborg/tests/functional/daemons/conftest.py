# SPDX-License-Identifier: Apache-2.0
"""Deployments: a configuration in a directory, a database, and whatever programs a test starts."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import deployments
from cyborg.tests.functional.daemons.service import Service, start_service
from cyborg.tests.functional.schema.databases import upgraded_database

# Processes share nothing but a broker: without one these are not collected.
collect_ignore = (
    []
    if deployments.HAS_BROKER
    else [
        "test_agent.py",
        "test_followed_events.py",
        "test_generated_requests.py",
        "test_generated_sequences.py",
        "test_no_conductor.py",
        "test_outages.py",
        "test_refusals.py",
        "test_three_daemons.py",
        "test_unpublished.py",
        "test_uwsgi.py",
        "test_watching.py",
    ]
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database of this module's own, at the newest revision."""
    with upgraded_database(tmp_path_factory.mktemp("database")) as db:
        yield db.engine.url.render_as_string(hide_password=False)


@pytest.fixture
def db(database: str) -> Iterator[Database]:
    """The same, for a test to look into."""
    with closing(Database(database)) as db:
        yield db


@pytest.fixture(scope="module")
def alone() -> Options:
    """No broker is needed to start."""
    return {"DEFAULT": {"transport_url": "fake://"}, "api": {"port": 0}}


@pytest.fixture(scope="module")
def exchange(host: str) -> Iterator[str]:
    with broker.exchange(deployments.TRANSPORT_URL, host, "control-2") as name:
        yield name


@pytest.fixture(scope="module")
def host(placement: PlacementService) -> str:
    """A compute that Placement knows."""
    name = fresh_host()
    placement.make_compute(name)
    return name


@pytest.fixture(scope="module")
def options(
    tmp_path_factory: pytest.TempPathFactory,
    database: str,
    exchange: str,
    host: str,
    placement: PlacementService,
    nova_api: SimulatedNova,
) -> dict[str, dict[str, object]]:
    """What the daemons of this module have in common."""
    return deployments.options(
        tmp_path_factory.mktemp("state"),
        database=database,
        exchange=exchange,
        host=host,
        placement=placement,
        nova=nova_api.url,
    )


@pytest.fixture
def deploy(options: Options, tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Make a deployment of the common options and others; its programs end with the test."""
    made: list[Deployment] = []

    def make(*more: Options) -> Deployment:
        directory = tmp_path / f"deployment-{len(made)}"
        directory.mkdir()
        made.append(Deployment(directory, deployments.merged(options, *more)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="module")
def service(
    options: Options, tmp_path_factory: pytest.TempPathFactory, host: str
) -> Iterator[Service]:
    """A conductor and an agent as processes, with the fake device in Placement."""
    with Deployment(tmp_path_factory.mktemp("service"), options) as deployment:
        yield start_service(deployment, host)

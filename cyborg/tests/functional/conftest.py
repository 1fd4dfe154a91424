# SPDX-License-Identifier: Apache-2.0
"""The environment of functional tests: one database, one bus, one conductor, one API.

Without environment variables it stands on SQLite and the in-process bus. A server URL in
``CYBORG_TEST_DATABASE_URL`` (ending in ``/``) and a bus in ``CYBORG_TEST_TRANSPORT_URL`` put the
same tests on real services.
"""

import os
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
import sqlalchemy as sa
import webtest
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.db.engine import Database, retried
from cyborg.db.models import METADATA
from cyborg.rpc.conductor import ConductorClient
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.broker import SweptBus
from cyborg.tests.fixtures.choice import FULL
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host, shared
from cyborg.tests.fixtures.real_nova import PYTHON as NOVA
from cyborg.tests.fixtures.stack import Peers, Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.schema.databases import SERVER, TEMPLATES, upgraded_database

#: What meets neither database nor bus, or brings its own.
_SERVERLESS = [
    "cli",
    "clients",
    "daemons/test_discover.py",
    "daemons/test_unconfigured.py",
    "deployed/test_files.py",
    "devstack/test_configuration.py",
    "devstack/test_documents.py",
    "devstack/test_pci_sim.py",
    "devstack/test_upgrade_hooks.py",
    "privileged",
    "rolling/test_page.py",
    "rolling/test_readers.py",
]
#: What is about dialects, locks, and how a transaction meets others: it runs on both servers.
_DIALECTS = ["api", "crash/test_dirty_units.py", "races", "rules", "schema"]
_IS_SERVERLESS_RUN = os.environ.get("CYBORG_TEST_SERVERLESS") == "1"
#: Minutes of suites of other projects: they run where they are named, and in a full run.
_LONG: Final = ["cluster", "keystone/long"]
#: It needs the real Nova, which is installed for a run of its own.
_NOVA: Final = ["nova"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what does not belong to this run."""
    place = collection_path.relative_to(Path(__file__).parent)
    if _is_in(place, _LONG) and not FULL:
        return True
    if _is_in(place, _NOVA) and not NOVA:
        return True
    if SERVER.startswith("postgresql"):
        belongs = _is_in(place, _DIALECTS) or _leads_to(place, _DIALECTS)
    elif SERVER:
        belongs = not _is_in(place, _SERVERLESS)
    elif _IS_SERVERLESS_RUN:
        belongs = _is_in(place, _SERVERLESS) or _leads_to(place, _SERVERLESS)
    else:
        # These are the tests of unit/api, which run on SQLite.
        belongs = not _is_in(place, ["api"])
    return None if belongs else True


def _is_in(place: Path, names: list[str]) -> bool:
    return any(place.is_relative_to(name) for name in names)


def _leads_to(place: Path, names: list[str]) -> bool:
    return any(Path(name).is_relative_to(place) for name in names)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any],
) -> Generator[None, object, object]:
    """Let connections of a fixture last as long as the fixture.

    pytest does not call this for a fixture of the session.
    """
    with SweptBus.made_in(test=fixturedef.scope == "function"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Let connections that a test makes end with it."""
    with SweptBus.made_in(test=True):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Close the connections of a test, whose fixtures have ended."""
    result = yield
    SweptBus.end_test()
    return result


def pytest_sessionfinish() -> None:
    """See pytest."""
    TEMPLATES.close()


@pytest.fixture(scope="session")
def conf() -> cfg.ConfigOpts:
    """The global configuration with nothing but defaults: oslo.messaging insists on it."""
    return configuration.prepare([], prog="tests", default_config_files=[])


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database at the newest revision, for the whole session."""
    with upgraded_database(tmp_path_factory.mktemp("database")) as db:
        yield db


@pytest.fixture
def own_database(tmp_path: Path) -> Iterator[Database]:
    """A database at the newest revision that no other test has."""
    with upgraded_database(tmp_path) as db:
        yield db


@pytest.fixture(scope="session")
def database_url(database: Database) -> str:
    """Where other processes' parts find the same database."""
    return database.engine.url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def nova_api() -> Iterator[SimulatedNova]:
    with SimulatedNova() as nova:
        yield nova


@pytest.fixture(scope="session")
def placement() -> PlacementService:
    return shared()


@pytest.fixture
def host(placement: PlacementService) -> str:
    """The name of a compute that nova-compute has registered."""
    name = fresh_host()
    placement.make_compute(name)
    return name


@pytest.fixture(scope="session")
def stack(
    conf: cfg.ConfigOpts,
    database_url: str,
    placement: PlacementService,
    nova_api: SimulatedNova,
) -> Iterator[Stack]:
    """The service with one conductor; agents and more conductors are for the tests to start."""
    stack = Stack(
        conf=conf,
        database_url=database_url,
        transport_url=TRANSPORT_URL,
        peers=Peers(placement=placement.adapter, nova=nova_api.adapter),
    )
    with SweptBus.made_in(test=False):
        stack.start_conductor()
    yield stack
    stack.stop()


@pytest.fixture(scope="session")
def conductor(stack: Stack) -> ConductorClient:
    """The conductor's verbs over the bus, as an API process has them."""
    with SweptBus.made_in(test=False):
        return stack.conductor_client()


@pytest.fixture(scope="session")
def app(stack: Stack) -> Any:
    """The API behind no filter that asks for a token: tests say who they are in headers."""
    with SweptBus.made_in(test=False):
        return webtest.TestApp(stack.make_open_api())


@pytest.fixture
@retried
def clean(database: Database) -> None:
    """Nothing of earlier tests is in the database; processes that run keep their rows."""
    with database.writer() as tx:
        for table in reversed(METADATA.sorted_tables):
            if table.name not in ("alembic_version", "services"):
                tx.execute(sa.delete(table))


@pytest.fixture
def admin(app: Any) -> Client:
    return Client(app, role="admin")


@pytest.fixture
def member(app: Any) -> Client:
    return Client(app, role="member")


@pytest.fixture
def operator(app: Any) -> Client:
    """Who looks after accelerators and is no administrator."""
    return Client(app, role="operator", version="2.100")


@pytest.fixture
def profile(admin: Client) -> Callable[..., str]:
    """Make a device profile with the given groups; gives its name."""
    return admin.make_profile


def offered(placement: PlacementService, provider: str) -> int:
    """How many units Placement would give out of a provider; 0 when it is not there."""
    try:
        _, inventories = Placement(placement.adapter()).inventories(provider)
    except exception.NotFound:
        return 0
    return sum(int(one["total"]) - int(one["reserved"]) for one in inventories.values())


@pytest.fixture
def beside(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Callable[..., Stack]]:
    """Make stacks beside that of the session (see ``Stack.beside``); each ends with the test."""
    if "own_database" in request.fixturenames:
        # It must outlive the stacks, in whatever order a test names the two.
        request.getfixturevalue("own_database")
    with ExitStack() as ending:
        yield lambda *database, **changes: ending.enter_context(stack.beside(*database, **changes))


@pytest.fixture
def compute(
    beside: Callable[..., Stack],
    placement: PlacementService,
    conf: cfg.ConfigOpts,
    tmp_path: Path,
) -> Iterator[Callable[..., ComputeHost]]:
    """Start computes with an agent; all are stopped at the end of the test."""
    own = beside()

    def start(
        *, machine: FakeHost | None = None, drivers: Any = ("fake_driver",), published: bool = True
    ) -> ComputeHost:
        host = compute_host(own, tmp_path, machine)
        conf.set_override("host", host.compute)
        host.start(*drivers)
        if published:
            eventually(lambda: offered(placement, host.fake_provider) > 0, f"{host.compute} offers")
        return host

    yield start
    conf.clear_override("host")


@pytest.fixture
def machine_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """Give this machine another name, after which some drivers call their providers."""
    name = f"machine-{uuid4().hex[:12]}"
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    return name

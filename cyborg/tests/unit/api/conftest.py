# SPDX-License-Identifier: Apache-2.0
"""The API in front of a database and a real conductor, with tokens for everybody."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keystonemiddleware.fixture
import pytest
import sqlalchemy as sa
import webtest
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg.api import app
from cyborg.db.engine import Database, Reader, Settings
from cyborg.db.models import METADATA
from cyborg.tests.fixtures.single_step import Environment, RunningClock
from cyborg.tests.unit.api import people, world
from cyborg.tests.unit.api.conductor import RecordedConductor

MakeConf = Callable[..., cfg.ConfigOpts]


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("api") / "cyborg.sqlite"
    db = Database(f"sqlite:///{path}", settings=Settings(sqlite_synchronous=False))
    METADATA.create_all(db.engine)
    yield db
    db.close()


@pytest.fixture
def db(database: Database) -> Database:
    """The database, with nothing of other tests in it."""
    with database.writer() as tx:
        for table in reversed(METADATA.sorted_tables):
            if table.name != "alembic_version":
                tx.execute(sa.delete(table))
    return database


@pytest.fixture
def facts(db: Database) -> Mapping[str, str]:
    """The small cloud, and what requests refer to as ``<name>``."""
    return world.populate(db)


@pytest.fixture(scope="session")
def reader(database: Database) -> Iterator[Reader]:
    """What the API is given of the database."""
    reader = Reader(database.engine.url.render_as_string(hide_password=False))
    yield reader
    reader.close()


@pytest.fixture(scope="session")
def process(database: Database) -> Iterator[RecordedConductor]:
    """A conductor that no agent answers, and that reaches neither Nova nor Placement."""
    url = database.engine.url.render_as_string(hide_password=False)
    environment = Environment(database_url=url, clock=RunningClock())
    conductor, client = environment.conductor(auto_enable=frozenset()), environment.client()
    conductor.renew()
    conductor.serve()
    yield RecordedConductor(client)
    for one in (client.close, conductor.stop, environment.close):
        one()


@pytest.fixture
def conductor(process: RecordedConductor) -> RecordedConductor:
    """What the API is given of the bus; it has recorded nothing yet."""
    process.reset()
    return process


@pytest.fixture
def tokens() -> Iterator[Any]:
    """keystonemiddleware without a Keystone."""
    with keystonemiddleware.fixture.AuthTokenFixture() as fixture:
        people.issue(fixture)
        yield fixture


def _configure(directory: Path, text: str) -> cfg.ConfigOpts:
    path = directory / "cyborg.conf"
    path.write_text(
        "[keystone_authtoken]\nwww_authenticate_uri = http://keystone.test:5000\n"
        "auth_type = password\nauth_url = http://keystone.test:5000\n" + text
    )
    return configuration.prepare(
        [], prog="cyborg-api", default_config_files=[str(path)], conf=cfg.ConfigOpts()
    )


@pytest.fixture(scope="session")
def make_session_conf() -> Callable[[Path, str], cfg.ConfigOpts]:
    """Make a configuration from text in a directory, for longer than one test."""
    return _configure


@pytest.fixture
def make_conf(tmp_path: Path) -> MakeConf:
    """Make a configuration from text, as a file would give it."""

    def make(text: str = "") -> cfg.ConfigOpts:
        return _configure(tmp_path, text)

    return make


@pytest.fixture
def make_client(
    make_conf: MakeConf,
    reader: Reader,
    conductor: RecordedConductor,
    tokens: Any,
    facts: Mapping[str, str],
) -> Callable[..., world.Client]:
    """Make a client of an API with the given configuration."""

    def make(text: str = "", reader: Reader = reader) -> world.Client:
        wsgi = app.build(make_conf(text), reader=reader, conductor=conductor)  # type: ignore[arg-type]
        return world.Client(webtest.TestApp(wsgi), facts, conductor.calls)

    return make


@pytest.fixture
def with_rules(
    make_client: Callable[..., world.Client], tmp_path: Path
) -> Callable[..., world.Client]:
    """Make a client of an API whose policy file has these rules, by name."""

    def make(rules: Mapping[str, str]) -> world.Client:
        file = tmp_path / "policy.yaml"
        file.write_text(json.dumps(dict(rules)))
        return make_client(f"[oslo_policy]\npolicy_file = {file}\n")

    return make


@pytest.fixture(scope="session")
def default_app(
    tmp_path_factory: pytest.TempPathFactory, reader: Reader, process: RecordedConductor
) -> webtest.TestApp:
    """The API with the default configuration; it takes longer to make than most tests."""
    conf = _configure(tmp_path_factory.mktemp("default"), "")
    return webtest.TestApp(app.build(conf, reader=reader, conductor=process))  # type: ignore[arg-type]


@pytest.fixture
def agent(db: Database, facts: Mapping[str, str]) -> None:
    """The agent of host-1 is up."""
    world.run_agent(db)


@pytest.fixture
def client(
    default_app: webtest.TestApp,
    conductor: RecordedConductor,
    tokens: Any,
    facts: Mapping[str, str],
) -> world.Client:
    """A client of the API with the default configuration."""
    return world.Client(default_app, facts, conductor.calls)


@pytest.fixture
def statements(reader: Reader) -> Iterator[list[str]]:
    """The SQL statements that the API sent, in order."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if not statement.startswith(("PRAGMA", "BEGIN")):
            seen.append(statement)

    engine = reader.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(engine, "before_cursor_execute", note)

# SPDX-License-Identifier: Apache-2.0
"""The API in front of a database file and a conductor that behaves, with tokens for everybody."""

import shutil
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
from cyborg.db.base import Base
from cyborg.db.engine import Database, Reader, Settings
from cyborg.tests.unit.api import people, world
from cyborg.tests.unit.api.conductor import FakeConductor

MakeConf = Callable[..., cfg.ConfigOpts]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """A database file with the small cloud in it, and the facts about it."""
    path = tmp_path_factory.mktemp("api") / "template.sqlite"
    db = Database(f"sqlite:///{path}")
    Base.metadata.create_all(db.engine)
    facts = world.populate(db)
    with db.engine.connect() as connection:
        connection.execute(sa.text("PRAGMA wal_checkpoint(TRUNCATE)"))
    db.close()
    return path, facts


@pytest.fixture
def facts(template: tuple[Path, Mapping[str, str]]) -> Mapping[str, str]:
    """What requests refer to as ``<name>``."""
    return template[1]


@pytest.fixture
def db(template: tuple[Path, Mapping[str, str]], tmp_path: Path) -> Iterator[Database]:
    """A database of the test's own."""
    path = tmp_path / "cyborg.sqlite"
    shutil.copy(template[0], path)
    db = Database(f"sqlite:///{path}", settings=Settings(sqlite_synchronous=False))
    yield db
    db.close()


@pytest.fixture
def reader(db: Database, tmp_path: Path) -> Iterator[Reader]:
    """What the API is given of the database."""
    reader = Reader(f"sqlite:///{tmp_path / 'cyborg.sqlite'}")
    yield reader
    reader.close()


@pytest.fixture
def conductor(db: Database) -> FakeConductor:
    """What the API is given of the bus."""
    return FakeConductor(db)


@pytest.fixture
def tokens() -> Iterator[Any]:
    """keystonemiddleware without a Keystone."""
    with keystonemiddleware.fixture.AuthTokenFixture() as fixture:
        people.issue(fixture)
        yield fixture


@pytest.fixture
def make_conf(tmp_path: Path) -> MakeConf:
    """Make a configuration from text, as a file would give it."""

    def make(text: str = "") -> cfg.ConfigOpts:
        path = tmp_path / "cyborg.conf"
        path.write_text(
            "[keystone_authtoken]\nwww_authenticate_uri = http://keystone.test:5000\n"
            "auth_type = password\nauth_url = http://keystone.test:5000\n" + text
        )
        return configuration.prepare(
            [], prog="cyborg-api", default_config_files=[str(path)], conf=cfg.ConfigOpts()
        )

    return make


@pytest.fixture
def make_client(
    make_conf: MakeConf,
    reader: Reader,
    conductor: FakeConductor,
    tokens: Any,
    facts: Mapping[str, str],
) -> Callable[..., world.Client]:
    """Make a client of an API with the given configuration."""

    def make(text: str = "") -> world.Client:
        wsgi = app.build(make_conf(text), reader=reader, conductor=conductor)  # type: ignore[arg-type]
        return world.Client(webtest.TestApp(wsgi), facts)

    return make


@pytest.fixture
def client(make_client: Callable[..., world.Client]) -> world.Client:
    """A client of an API with the default configuration."""
    return make_client()


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

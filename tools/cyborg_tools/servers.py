# SPDX-License-Identifier: Apache-2.0
"""The servers of a run: a new database, an exchange on the broker, and what daemons are told."""

import argparse
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from uuid import uuid4

import amqp
import sqlalchemy as sa
from kombu.exceptions import KombuError

from cyborg import exception
from cyborg.db import schema
from cyborg.db.engine import Database
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.authority import Certificate
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN, PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg_tools.program import Started

#: Seconds within which a server must answer.
_PATIENCE = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mysql-url",
        metavar="URL",
        default="mysql+pymysql://root@127.0.0.1:3306/",
        help="MariaDB or MySQL, on which a database is made and dropped (default: %(default)s)",
    )
    parser.add_argument(
        "--rabbit-url",
        metavar="URL",
        default="rabbit://guest:guest@127.0.0.1:5672/",
        help="RabbitMQ, from which all queues are removed in the end (default: %(default)s)",
    )


def daemon_options(
    *, host: str, transport: str, state_path: Path, database: str, placement: str, nova: str
) -> dict[str, dict[str, object]]:
    """The options of daemons without Keystone; ``placement`` and ``nova`` are URLs."""
    return {
        "DEFAULT": {"host": host, "transport_url": transport, "state_path": state_path},
        "api": {"auth_strategy": "noauth"},
        "agent": {},
        "database": {"connection": database},
        "placement": {"auth_type": "admin_token", "endpoint": placement, "token": TOKEN},
        "nova": {"auth_type": "none", "endpoint": nova},
    }


def deployed(directory: Path, options: Options, endings: ExitStack) -> Deployment:
    """Return programs on these options, which are stopped with all else."""
    return endings.enter_context(Deployment(directory, options))


def upgrade(deployment: Deployment) -> None:
    """Bring the database to the newest revision. Raises exception.ConfigError."""
    made = deployment.run("cyborg-dbsync", "upgrade")
    if made.returncode:
        raise exception.ConfigError(reason=f"cyborg-dbsync upgrade fails: {made.stderr}")


@contextmanager
def prepared(server: str | None, directory: Path, name: str = "cyborg_bench") -> Iterator[Database]:
    """A database at the newest revision, empty, and dropped in the end.

    ``server`` is a URL without a database, and ``name`` the beginning of the name there; without
    a server it is a SQLite file.
    """
    if server is None:
        with closing(Database(f"sqlite:///{directory}/cyborg.sqlite")) as db:
            schema.upgrade(db)
            yield db
        return
    name = f"{name}_{uuid4().hex[:12]}"
    root = sa.make_url(server)
    # PostgreSQL lets nobody in without a database; this one is always there.
    entry = (
        root if root.drivername.startswith(("mysql", "mariadb")) else root.set(database="postgres")
    )
    admin = sa.create_engine(entry, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        own = root.set(database=name).render_as_string(hide_password=False)
        with closing(Database(own)) as db:
            schema.upgrade(db)
            yield db
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name}")


@contextmanager
def database(server: str, directory: Path, name: str) -> Iterator[str]:
    """The URL of a new database on MariaDB at the newest revision, dropped in the end.

    Raises exception.ConfigError with a sentence when the server cannot be used.
    """
    check(server, "--mysql-url", "mysql+pymysql://")
    with prepared(server, directory, name) as db:
        yield db.engine.url.render_as_string(hide_password=False)


@contextmanager
def exchange(server: str, *hosts: str) -> Iterator[str]:
    """The name of an exchange on the broker, for daemons on these hosts; removed in the end.

    Raises exception.ConfigError with a sentence when the server cannot be used.
    """
    check(server, "--rabbit-url", "rabbit://")
    with broker.exchange(server, *hosts) as name:
        yield name


def check(url: str, option: str, scheme: str = "") -> None:
    """Log in to a server; raises exception.ConfigError, which advises the option, if that fails.

    Of an address nothing is shown but where it leads to, for it has a password.
    """
    try:
        if not url.startswith(scheme):
            raise OSError(f"its address must begin with {scheme}")
        if url.startswith("rabbit://"):
            with broker.connection(url, _PATIENCE) as one:
                one.ensure_connection(max_retries=1, timeout=_PATIENCE)
        else:
            arguments = {"connect_timeout": _PATIENCE}
            engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=arguments)
            engine.connect().close()
    except (KombuError, amqp.AMQPError, OSError, sa.exc.SQLAlchemyError) as fault:
        where = url.rpartition("@")[2] or "nowhere"
        reason = (str(fault).splitlines() or ["it gives no reason"])[0].rstrip(".")
        raise exception.ConfigError(
            reason=f"The server at {where} is required and cannot be used: {reason}. Another one "
            f"is named with {option}."
        ) from fault


class Cloud(Started):
    """Daemons on servers that others use as well; all that they make there is removed in the end.

    They have the real Placement, with a compute for each host, and a simulated Nova; both serve
    HTTPS if there is a ``certificate``.
    """

    certificate: Certificate | None = None

    #: The beginning of the database's name, the computes, and the host of the other daemons.
    name: str
    computes: tuple[str, ...]
    host: str

    def __init__(self, plan: argparse.Namespace, directory: Path) -> None:
        self.plan = plan
        self.directory = directory

    @property
    @abstractmethod
    def more(self) -> Options:
        """The options of all daemons that only this cloud has."""

    def start(self, endings: ExitStack) -> None:
        """See Started; starts no daemon. Raises ConfigError if a server cannot be used."""
        own = self.certificate
        place = self.directory / "placement"
        place.mkdir()
        self.placement = endings.enter_context(PlacementService(place, certificate=own))
        for one in self.computes:
            self.placement.make_compute(one)
        self.nova = endings.enter_context(SimulatedNova(certificate=own))
        options = self.options(endings)
        for group, values in self.more.items():
            options.setdefault(group, {}).update(values)
        self.deployment = deployed(self.directory, options, endings)

    def options(self, endings: ExitStack) -> dict[str, dict[str, object]]:
        """The options of all daemons, for a new database and an exchange on the broker."""
        plan, host = self.plan, self.host
        self.database = endings.enter_context(database(plan.mysql_url, self.directory, self.name))
        name = endings.enter_context(exchange(plan.rabbit_url, *self.computes, host))
        options = daemon_options(
            host=host,
            transport=plan.rabbit_url,
            state_path=self.directory / host,
            database=self.database,
            placement=self.placement.url,
            nova=self.nova.url,
        )
        options["DEFAULT"]["control_exchange"] = name
        # The broker removes objects of a connection soon after it closes.
        options["oslo_messaging_rabbit"] = {"rabbit_transient_queues_ttl": 60}
        return options

# SPDX-License-Identifier: Apache-2.0
"""The servers of a run: a new database, and an exchange on the broker."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import amqp
import sqlalchemy as sa
from kombu.exceptions import KombuError

from cyborg import exception
from cyborg.tests.fixtures import broker
from cyborg_tools.bench import databases

#: Seconds within which a server must answer.
_PATIENCE = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that name the servers."""
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


@contextmanager
def database(server: str, directory: Path, name: str) -> Iterator[str]:
    """The URL of a new database at the newest revision, dropped in the end; ``name`` begins its.

    Raises exception.ConfigError with a sentence when the server cannot be used.
    """
    if not server.startswith("mysql+pymysql://"):
        raise _unusable(server, "its address must begin with mysql+pymysql://", "--mysql-url")
    try:
        arguments = {"connect_timeout": _PATIENCE}
        engine = sa.create_engine(server, poolclass=sa.NullPool, connect_args=arguments)
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
    except sa.exc.SQLAlchemyError as fault:
        raise _unusable(server, str(fault), "--mysql-url") from fault
    with databases.prepared(server, directory, name) as db:
        yield db.engine.url.render_as_string(hide_password=False)


@contextmanager
def exchange(server: str, *hosts: str) -> Iterator[str]:
    """The name of an exchange on the broker, for daemons on these hosts; removed in the end.

    Raises exception.ConfigError with a sentence when the server cannot be used.
    """
    if not server.startswith("rabbit://"):
        raise _unusable(server, "its address must begin with rabbit://", "--rabbit-url")
    try:
        with broker.connection(server, _PATIENCE) as one:
            one.ensure_connection(max_retries=1, timeout=_PATIENCE)
    except (KombuError, amqp.AMQPError, OSError) as fault:
        raise _unusable(server, str(fault), "--rabbit-url") from fault
    with broker.exchange(server, *hosts) as name:
        yield name


def _unusable(url: str, reason: str, option: str) -> exception.ConfigError:
    """The sentence; of an address nothing is shown but where it leads to, for it has a password."""
    where = url.rpartition("@")[2] or "nowhere"
    first = (reason.splitlines() or ["it gives no reason"])[0].rstrip(".")
    return exception.ConfigError(
        reason=f"The server at {where} is required and cannot be used: {first}. Another one is "
        f"named with {option}."
    )

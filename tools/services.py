# SPDX-License-Identifier: Apache-2.0
"""Check that the servers for the functional tests answer; tools/test runs it in its environment.

Usage: services.py URL... At the first server that does not answer it prints one sentence and ends
with status 1.
"""

import sys

import kombu
import sqlalchemy
from sqlalchemy.engine import make_url

TIMEOUT = 5  # seconds


def database(url: str) -> None:
    """Log in and run a trivial query; raises ``sqlalchemy.exc.SQLAlchemyError``."""
    engine = sqlalchemy.create_engine(
        url, poolclass=sqlalchemy.NullPool, connect_args={"connect_timeout": TIMEOUT}
    )
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT 1"))


def broker(url: str) -> None:
    """Log in; raises ``kombu.exceptions.OperationalError`` or an error of the AMQP library."""
    amqp = url.replace("rabbit://", "amqp://", 1)
    with kombu.Connection(amqp, connect_timeout=TIMEOUT) as connection:
        connection.ensure_connection(max_retries=1, timeout=TIMEOUT)


def describe(url: str) -> str:
    """Return a description of the server at ``url`` without its password."""
    try:
        return "The server " + make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return "A server, whose URL is invalid,"


def main(urls: list[str]) -> int:
    """Connect to each server once and return the exit status."""
    for url in urls:
        try:
            (broker if url.startswith("rabbit://") else database)(url)
        except Exception as fault:  # noqa: BLE001 - any error means that the server is not usable
            reason = " ".join(str(fault).splitlines()[:1]) or type(fault).__name__
            print(f"{describe(url)} is required but cannot be used: {reason}", file=sys.stderr)
            return 1
    return 0


sys.exit(main(sys.argv[1:]))

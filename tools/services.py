# SPDX-License-Identifier: Apache-2.0
"""Tell whether the servers for the functional tests answer; run by tools/test in its environment.

Usage: services.py URL...; ends with one sentence and status 1 at the first one that does not.
"""

import sys

import kombu
import sqlalchemy
from sqlalchemy.engine import make_url

PATIENCE = 5  # seconds


def database(url: str) -> None:
    """Log in and ask for nothing; raises ``sqlalchemy.exc.SQLAlchemyError``."""
    engine = sqlalchemy.create_engine(
        url, poolclass=sqlalchemy.NullPool, connect_args={"connect_timeout": PATIENCE}
    )
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT 1"))


def broker(url: str) -> None:
    """Log in; raises ``kombu.exceptions.OperationalError`` or an error of the AMQP library."""
    amqp = url.replace("rabbit://", "amqp://", 1)
    with kombu.Connection(amqp, connect_timeout=PATIENCE) as connection:
        connection.ensure_connection(max_retries=1, timeout=PATIENCE)


def shown(url: str) -> str:
    """Return ``url`` without its password."""
    try:
        return "The server " + make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return "The address of a server"


def main(urls: list[str]) -> int:
    """Try each server once and return the exit status."""
    for url in urls:
        try:
            (broker if url.startswith("rabbit://") else database)(url)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the server is not usable
            reason = " ".join(str(fault).splitlines()[:1]) or type(fault).__name__
            print(f"{shown(url)} is needed and cannot be used: {reason}", file=sys.stderr)
            return 1
    return 0


sys.exit(main(sys.argv[1:]))

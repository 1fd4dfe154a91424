# SPDX-License-Identifier: Apache-2.0
"""A database for one run: a SQLite file, or one made on a server and dropped afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import schema
from cyborg.db.engine import Database


@contextmanager
def prepared(server: str | None, directory: Path, name: str = "cyborg_bench") -> Iterator[Database]:
    """A database at the newest revision, empty; ``server`` is a URL that ends in a slash.

    On a server its name begins with ``name``.
    """
    if server is None:
        yield from _upgraded(f"sqlite:///{directory}/cyborg.sqlite")
        return
    name = f"{name}_{uuid4().hex[:12]}"
    root = server.rstrip("/") + "/"
    # PostgreSQL lets nobody in without a database; this one is always there.
    entry = root if root.startswith(("mysql", "mariadb")) else f"{root}postgres"
    admin = sa.create_engine(entry, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield from _upgraded(root + name)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name}")
        admin.dispose()


def _upgraded(url: str) -> Iterator[Database]:
    db = Database(url)
    try:
        schema.upgrade(db)
        yield db
    finally:
        db.close()

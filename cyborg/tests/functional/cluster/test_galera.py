# SPDX-License-Identifier: Apache-2.0
"""Two nodes of MariaDB Galera: upgrades through both, and a conductor on an isolated one."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import revisions, schema
from cyborg.db.engine import Database
from cyborg.db.schema_lock import LOCK
from cyborg.model.process import CONDUCTOR
from cyborg.tests.fixtures.galera import Cluster
from cyborg.tests.fixtures.processes import Deployment
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually, result
from cyborg.tests.functional.life.http import open_client
from cyborg.tests.functional.schema.commands import run
from cyborg.tests.functional.schema.databases import differences


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # The servers run as another user, who must reach their files.
    with TemporaryDirectory(prefix="cyborg-galera-") as directory:
        Path(directory).chmod(0o755)
        with Cluster(Path(directory)) as cluster:
            yield cluster


@pytest.fixture
def databases(cluster: Cluster) -> Iterator[list[Database]]:
    """A new database, through the first and the second node."""
    name = f"cyborg_{uuid4().hex[:12]}"
    cluster.first.execute(f"CREATE DATABASE {name}")
    with ExitStack() as ending:
        yield [
            ending.enter_context(closing(Database(f"{node.url}{name}")))
            for node in (cluster.first, cluster.second)
        ]
    cluster.first.execute(f"DROP DATABASE {name}")


def _upgrade(db: Database, directory: Path, delay: float) -> tuple[int, str]:
    directory.mkdir()
    threading.Event().wait(delay)
    status, _, err = run(db, directory, "dbsync", "upgrade")
    return status, err


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.5, 3.0])
def test_upgrades_through_two_nodes_take_turns(
    databases: list[Database], tmp_path: Path, delay: float
) -> None:
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(_upgrade, db, tmp_path / str(number), number * delay)
            for number, db in enumerate(databases)
        ]
        for end in ends:
            status, err = result(end)
            assert (status, "Traceback" in err) == (0, False), err
    for db in databases:
        assert revisions.version(db) == revisions.HEAD
        assert differences(db) == []


def test_upgrade_continues_what_a_killed_one_began_on_another_node(
    databases: list[Database], tmp_path: Path
) -> None:
    first, second = databases
    url = first.engine.url.render_as_string(hide_password=False)
    with Deployment(tmp_path, {"database": {"connection": url}}) as deployment:
        conf = ("--config-file", str(deployment.conf))
        killed = deployment.start("cyborg-dbsync", *conf, "upgrade")
        eventually(lambda: _has_owner(second), lambda: killed.output)
        killed.kill()
    status, err = _upgrade(second, tmp_path / "second", 0.0)
    assert status == 0, err
    assert "Waiting for another process that changes the schema" in err
    assert "counts as dead" in err
    assert differences(second) == []


def _has_owner(db: Database) -> bool:
    with db.reader() as tx:
        if not sa.inspect(tx.connection).has_table(LOCK.name):
            return False
        return tx.scalar(sa.select(LOCK.c.owner)) is not None


def test_no_change_fails_while_the_node_of_one_conductor_is_isolated(
    cluster: Cluster,
    databases: list[Database],
    beside: Callable[..., Stack],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    first, second = databases
    schema.upgrade(first)
    healthy = beside(first)
    healthy.start_conductor("control-1")
    url = second.engine.url.render_as_string(hide_password=False)
    beside(database_url=url, exchange=healthy.exchange).start_conductor("control-2")
    eventually(lambda: _conductors(first) == 2, "both conductors have a row")
    admin = open_client(healthy, "admin")
    cluster.second.isolate()
    try:
        for _ in range(18):
            admin.make_profile({"resources:FPGA": "1"})
        eventually(lambda: "receives only requests" in caplog.text, lambda: caplog.text)
    finally:
        cluster.second.rejoin()
    eventually(lambda: "its share of requests again" in caplog.text, lambda: caplog.text)
    for _ in range(18):
        admin.make_profile({"resources:FPGA": "1"})
    assert "Traceback" not in caplog.text


def _conductors(db: Database) -> int:
    query = "SELECT count(*) FROM services WHERE `binary` = :program"
    with db.reader() as tx:
        return int(tx.execute(sa.text(query), {"program": CONDUCTOR}).scalar_one())

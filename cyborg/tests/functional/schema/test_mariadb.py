# SPDX-License-Identifier: Apache-2.0
"""Only on MariaDB, where the existing service's own schema can stand beside ours."""

import re

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg.db import schema
from cyborg.db.engine import Database, Reader, Retry
from cyborg.db.models import METADATA, Host
from cyborg.tests.fixtures.proxy import Proxy, mysql_error
from cyborg.tests.functional.schema.databases import DUMP


def test_first_revision_is_the_existing_schema(empty: Database) -> None:
    schema.upgrade(empty, schema.EXISTING)
    wanted = dict(
        re.findall(r"^(CREATE TABLE `\w+`) \((.*?)^\) ", DUMP.read_text(), re.DOTALL | re.MULTILINE)
    )
    assert len(wanted) == 10
    with empty.reader() as tx:
        for head, body in wanted.items():
            name = head.split("`")[1]
            made = tx.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()[1]
            assert _lines(made.split("\n", 1)[1].rpartition("\n)")[0]) == _lines(body)
            assert "CHARSET=utf8mb3" in made
            assert "ENGINE=InnoDB" in made


def test_text_is_utf8mb4_and_compares_by_code_point(existing: Database) -> None:
    schema.upgrade(existing)
    ours = {table.name for table in METADATA.sorted_tables}
    with existing.reader() as tx:
        rows = tx.exec_driver_sql(
            "SELECT table_name, collation_name, data_type FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND collation_name IS NOT NULL"
        ).all()
        odd = [row for row in rows if row[0] in ours and row[1] != "utf8mb4_bin"]
        assert odd == []
        assert {row[2] for row in rows if row[0] in ours} == {"varchar", "text", "longtext"}


def _sync_waits(db: Reader) -> list[int]:
    """What three connections at once are set to, and then a new one in the place of one of them."""
    query = sa.text("SELECT @@SESSION.wsrep_sync_wait")
    with db.reader() as one, db.reader() as two, db.reader() as three:
        found = [tx.execute(query).scalar_one() for tx in (one, two, three)]
        three.connection.invalidate()
    with db.reader() as four:
        return [*found, four.execute(query).scalar_one()]


@pytest.mark.parametrize("kind", [Reader, Database])
def test_reads_wait_for_galera_when_configured(
    conf: cfg.ConfigOpts, empty: Database, kind: type[Reader]
) -> None:
    url = empty.engine.url.render_as_string(hide_password=False)
    conf.set_override("connection", url, group="database")
    for asked, expected in ((None, 0), (0, 0), (1, 1), (7, 7)):
        conf.set_override("mysql_wsrep_sync_wait", asked, group="database")
        db = kind.from_conf(conf)
        assert _sync_waits(db) == [expected] * 4
        db.close()
    for name in ("connection", "mysql_wsrep_sync_wait"):
        conf.clear_override(name, group="database")


def _lines(text: str) -> list[str]:
    # Foreign keys are numbered in the order of their creation, which says nothing.
    plain = re.sub(r"`\w+_ibfk_\d+`", "`fk`", text)
    return sorted(line.strip().rstrip(",") for line in plain.splitlines() if line.strip())


def test_connection_to_a_read_only_node_is_replaced(current: Database) -> None:
    """After a failover the address of the database may lead to another node."""
    with current.writer() as tx:
        tx.execute(sa.insert(Host).values(name="a", updated_ms=1))
    url = current.engine.url
    answer = mysql_error(1290, b"HY000", b"The MariaDB server is running with --read-only")
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        there = url.set(host="127.0.0.1", port=proxy.port)
        db = Database(there.render_as_string(hide_password=False))
        sessions: list[int] = []

        def fail_over(_seconds: float) -> None:
            assert proxy.refusals == 1
            proxy.heal()

        @Retry(sleep=fail_over)
        def touch() -> None:
            with db.writer() as tx:
                sessions.append(tx.exec_driver_sql("SELECT connection_id()").scalar_one())
                tx.execute(sa.update(Host).values(generation=7))

        proxy.refuse(answer, b"UPDATE")
        touch()
        assert len(set(sessions)) == 2
        db.close()
    with current.reader() as tx:
        assert tx.scalar(sa.select(Host.generation)) == 7


def test_refused_reset_leaves_no_traceback_in_the_log(
    current: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A node may leave its cluster between a COMMIT and the return of the connection."""
    url = current.engine.url
    answer = mysql_error(1047, b"08S01", b"WSREP has not yet prepared node for application use")
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        there = url.set(host="127.0.0.1", port=proxy.port)
        db = Database(there.render_as_string(hide_password=False))
        with db.writer() as tx:
            tx.execute(sa.insert(Host).values(name="a", updated_ms=1))
            proxy.refuse(answer, b"ROLLBACK")
        assert proxy.refusals == 1
        db.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []

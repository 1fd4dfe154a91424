# SPDX-License-Identifier: Apache-2.0
"""One of two conductors has no working database: the other one does the work, and nobody waits."""

import logging
from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.transport import AGENT_TOPIC
from cyborg.rpc.verbs import Heartbeat
from cyborg.service import Daemon
from cyborg.tests.fixtures.proxy import Proxy, mysql_error
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import open_client

_STATEMENTS: Final = (b"SELECT", b"INSERT", b"UPDATE", b"DELETE")
_WRITES: Final = _STATEMENTS[1:]
_NOT_READY: Final = mysql_error(
    1047, b"08S01", b"WSREP has not yet prepared node for application use"
)


def _rotate_password(proxy: Proxy) -> None:
    denied = b"Access denied for user 'cyborg'@'control-2' (using password: YES)"
    proxy.refuse(mysql_error(1045, b"28000", denied, number=2), b"mysql_native_password")
    proxy.disconnect()


def _leave_cluster(proxy: Proxy) -> None:
    proxy.refuse(
        mysql_error(
            1180,
            b"HY000",
            b"Error while appending streaming replication fragment"
            b"(provider status: Not connected to Primary Component)",
        ),
        b"COMMIT",
    )
    proxy.refuse(_NOT_READY, b"ROLLBACK")


#: What happens to the database of the second conductor.
FAULTS: Final[dict[str, Callable[[Proxy], None]]] = {
    "refuses connections": Proxy.cut,
    "password is rotated": _rotate_password,
    "node leaves its cluster": _leave_cluster,
    "node left its cluster": lambda proxy: proxy.refuse(_NOT_READY, *_STATEMENTS, b"ROLLBACK"),
    "replica is read-only": lambda proxy: proxy.refuse(
        mysql_error(
            1290,
            b"HY000",
            b"The MariaDB server is running with the --read-only option so it cannot execute this "
            b"statement",
        ),
        *_WRITES,
    ),
    "disk is full": lambda proxy: proxy.refuse(
        mysql_error(1114, b"HY000", b"The table 'device_profiles' is full"), *_WRITES
    ),
}


@pytest.fixture
def proxy(own_database: Database) -> Iterator[Proxy]:
    """The way of the second conductor to the database."""
    url = own_database.engine.url
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        yield proxy


@pytest.fixture
def healthy(own_database: Database, beside: Callable[..., Stack]) -> Stack:
    """A conductor with a working database."""
    stack = beside(own_database)
    stack.start_conductor("control-1")
    return stack


@pytest.fixture
def second(
    own_database: Database, healthy: Stack, proxy: Proxy, beside: Callable[..., Stack]
) -> Daemon:
    """A conductor on the same bus whose database is behind the proxy; it has been used."""
    url = own_database.engine.url.set(host="127.0.0.1", port=proxy.port)
    stack = beside(
        database_url=url.render_as_string(hide_password=False), exchange=healthy.exchange
    )
    conductor = stack.start_conductor("control-2")
    eventually(lambda: _conductors(own_database) == 2, "both conductors have a row")
    return conductor


def _conductors(db: Database) -> int:
    with db.reader() as tx:
        query = sa.text("SELECT count(*) FROM services WHERE `binary` = 'cyborg-conductor'")
        return int(tx.execute(query).scalar_one())


@pytest.mark.parametrize("fault", FAULTS)
def test_no_change_fails_when_one_conductor_has_no_database(
    healthy: Stack,
    second: Daemon,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    admin = open_client(healthy, "admin")
    host = f"host-{uuid4().hex[:8]}"
    sender = f"{AGENT_TOPIC}@{host}"
    agent = healthy.conductor_client(sender)
    caplog.set_level(logging.INFO)
    FAULTS[fault](proxy)
    for _ in range(18):
        admin.make_profile({"resources:FPGA": "1"})
        agent.request(Heartbeat(AgentHeartbeat(host, (host,), "0", sender, None)))
    eventually(lambda: "receives only requests" in caplog.text, lambda: caplog.text)
    proxy.heal()
    eventually(lambda: "receives its share of requests again" in caplog.text, lambda: caplog.text)
    assert "Traceback" not in caplog.text
    assert not second.bus_error

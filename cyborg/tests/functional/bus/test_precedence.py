# SPDX-License-Identifier: Apache-2.0
"""A broker gives requests to the servers that go first, and to the others if there are none."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus, RPCClient
from cyborg.tests.fixtures.stack import Stack, fresh_exchange, reach
from cyborg.tests.fixtures.waiting import PATIENCE, eventually

#: So many calls in a row go to one of two equal servers by chance once in a million.
_CALLS: Final = 20


class Server:
    """A server that answers with its name."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.bus: Bus = stack.bus()
        self.name = name
        self.server = self.bus.server(CONDUCTOR_TOPIC, name, self)

    def ping(self, _context: object) -> str:
        return "pong"

    def who(self, _context: object) -> object:
        return {"ok": self.name}


@pytest.fixture
def own(beside: Callable[..., Stack]) -> Stack:
    """A bus of its own."""
    return beside(exchange=fresh_exchange())


@pytest.fixture
def servers(own: Stack) -> Iterator[list[Server]]:
    with ExitStack() as ending:
        made = [Server(own, name) for name in ("control-1", "control-2")]
        for one in made:
            ending.callback(one.bus.close)
            ending.callback(one.server.wait)
            ending.callback(one.server.stop)
            one.server.start()
        yield made


def test_requests_go_to_the_servers_that_go_first(own: Stack, servers: list[Server]) -> None:
    client = reach(RPCClient(own.bus(), CONDUCTOR_TOPIC, peer="conductor", timeout=PATIENCE))

    def answering() -> set[str]:
        return {client.call("who") for _ in range(_CALLS)}

    first, second = servers
    eventually(lambda: answering() == {first.name, second.name}, "both servers answer")
    second.bus.precedence.is_last = True
    eventually(lambda: answering() == {first.name}, "the first server answers alone")
    assert answering() == {first.name}
    first.bus.precedence.is_last = True
    eventually(lambda: answering() == {first.name, second.name}, "nobody goes first")
    second.bus.precedence.is_last = False
    eventually(lambda: answering() == {second.name}, "the second server answers alone")
    first.bus.precedence.is_last = False
    eventually(lambda: answering() == {first.name, second.name}, "both servers answer again")
    client.close()

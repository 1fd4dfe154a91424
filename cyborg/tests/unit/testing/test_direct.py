# SPDX-License-Identifier: Apache-2.0
"""The bus without a wire behaves as one with a wire, and loses what it is told to lose."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import oslo_messaging
import pytest

from cyborg import exception
from cyborg.rpc.faults import answering
from cyborg.rpc.transport import RPCClient
from cyborg.rpc.versions import FIRST
from cyborg.service import wait_until
from cyborg.testing.direct import Died, DirectBus, Exchange

TOPIC = "topic"


class Endpoint:
    """Counts what it is asked."""

    target = oslo_messaging.Target(version=FIRST)

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @answering("conductor")
    def ping(self, context: Any) -> str:
        return "pong"

    @answering("conductor")
    def bind(self, context: Any, *, what: Any) -> Any:
        self.calls.append((context, what))
        if what == "taken":
            raise exception.Conflict(reason="taken")
        return what

    @answering("conductor")
    def odd(self, context: Any) -> Any:
        return object()


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def conductor(exchange: Exchange, endpoint: Endpoint) -> DirectBus:
    """A process that answers as host-1."""
    bus = DirectBus(exchange)
    bus.server(TOPIC, "host-1", endpoint).start()
    return bus


@pytest.fixture
def line(exchange: Exchange, conductor: DirectBus) -> Iterator[RPCClient]:
    made = RPCClient(DirectBus(exchange), TOPIC, peer="conductor", timeout=5.0)
    yield made
    made.close()


def test_a_call(line: RPCClient, endpoint: Endpoint) -> None:
    sent = {"tuple": (1, "zwei"), "none": None}
    assert line.call("bind", request_id="req-1", what=sent) == {"tuple": [1, "zwei"], "none": None}
    assert endpoint.calls == [({"request_id": "req-1"}, {"tuple": [1, "zwei"], "none": None})]
    assert line.up


def test_an_error_is_raised_here(line: RPCClient) -> None:
    with pytest.raises(exception.Conflict, match="taken"):
        line.call("bind", what="taken")


@pytest.mark.parametrize("verb", ["nothing", "_private"])
def test_a_verb_that_is_not_there(line: RPCClient, verb: str) -> None:
    with pytest.raises(exception.UnknownVerb, match=verb):
        line.call(verb)


def test_an_answer_that_is_no_json(line: RPCClient) -> None:
    with pytest.raises(exception.PeerFault):
        line.call("odd")


def test_arguments_that_are_no_json_are_not_sent(line: RPCClient, endpoint: Endpoint) -> None:
    with pytest.raises(exception.Unavailable):
        line.call("bind", what=object())
    assert endpoint.calls == []


def test_one_server_by_its_name(line: RPCClient, exchange: Exchange) -> None:
    other = Endpoint()
    DirectBus(exchange).server(TOPIC, "host-2", other).start()
    assert [line.call_server("host-2", "bind", what=one) for one in (1, 2)] == [1, 2]
    assert [what for _, what in other.calls] == [1, 2]
    with pytest.raises(exception.Unavailable, match="no answer"):
        line.call_server("host-3", "bind", what=3)


def test_servers_take_turns(line: RPCClient, exchange: Exchange, endpoint: Endpoint) -> None:
    other = Endpoint()
    line.call("ping")
    DirectBus(exchange).server(TOPIC, "host-2", other).start()
    for one in range(4):
        line.call("bind", what=one)
    assert (len(endpoint.calls), len(other.calls)) == (2, 2)


def test_a_lost_request_is_repeated(
    line: RPCClient, exchange: Exchange, endpoint: Endpoint
) -> None:
    exchange.lose_request("bind")
    assert line.call("bind", what=1) == 1
    assert len(endpoint.calls) == 1


def test_a_lost_answer_is_asked_for_again(
    line: RPCClient, exchange: Exchange, endpoint: Endpoint
) -> None:
    exchange.lose_answer("bind")
    assert line.call("bind", what=1) == 1
    assert len(endpoint.calls) == 2


def test_two_lost_answers_leave_the_outcome_unknown(line: RPCClient, exchange: Exchange) -> None:
    exchange.lose_answer("bind", times=2)
    with pytest.raises(exception.OutcomeUnknown):
        line.call("bind", what=1)


def test_a_hint(line: RPCClient, endpoint: Endpoint) -> None:
    line.tell_server("host-1", "bind", what=1)
    assert wait_until(lambda: len(endpoint.calls) == 1, timeout=5)


def test_a_closed_bus(line: RPCClient, conductor: DirectBus, exchange: Exchange) -> None:
    line.call("ping")
    conductor.close()
    with pytest.raises(exception.Unavailable, match="no answer"):
        line.call_server("host-1", "bind", what=1)
    closed = DirectBus(exchange)
    closed.close()
    gone = RPCClient(closed, TOPIC, peer="conductor", timeout=5.0)
    with pytest.raises(exception.Unavailable, match="closed"):
        gone.call_server("host-1", "bind", what=1)
    gone.close()


@pytest.mark.parametrize(("where", "carried_out"), [("arrival of bind", 0), ("answer to bind", 1)])
def test_a_server_that_dies_was_never_heard(
    exchange: Exchange, where: str, carried_out: int
) -> None:
    @contextmanager
    def crossing(message: str) -> Iterator[None]:
        if message == where:
            raise Died
        yield

    endpoint = Endpoint()
    DirectBus(exchange, crossing=crossing).server(TOPIC, "host-1", endpoint).start()
    line = RPCClient(DirectBus(exchange), TOPIC, peer="conductor", timeout=5.0)
    with pytest.raises(exception.Unavailable, match="no answer"):
        line.call_server("host-1", "bind", what=1)
    line.close()
    assert len(endpoint.calls) == carried_out


def test_a_server_that_dies_after_its_answer_has_left_was_heard(exchange: Exchange) -> None:
    @contextmanager
    def crossing(message: str) -> Iterator[None]:
        yield
        if message == "answer to bind":
            raise Died

    DirectBus(exchange, crossing=crossing).server(TOPIC, "host-1", Endpoint()).start()
    line = RPCClient(DirectBus(exchange), TOPIC, peer="conductor", timeout=5.0)
    assert line.call_server("host-1", "bind", what=1) == 1
    line.close()

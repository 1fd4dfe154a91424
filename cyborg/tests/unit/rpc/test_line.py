# SPDX-License-Identifier: Apache-2.0
"""Calls over the bus are bounded, repeated once, and end as one of our errors."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import oslo_messaging
import pytest

from cyborg import exception
from cyborg.rpc.rabbit import BrokerFailure
from cyborg.rpc.transport import Bus, RPCClient
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually, happened, joined

Behaviour = Callable[..., Any]


def fine(**_arguments: Any) -> Any:
    return {"ok": "fine"}


def silent(**_arguments: Any) -> Any:
    raise oslo_messaging.MessagingTimeout


def refused(**_arguments: Any) -> Any:
    raise oslo_messaging.MessageDeliveryFailure("nobody home")


def nobody_listens(**_arguments: Any) -> Any:
    raise oslo_messaging.MessageUndeliverable(None, None, None, None)


def lost_connection(**_arguments: Any) -> Any:
    raise BrokerFailure("the message bus cannot be reached: reset by peer", refused=False)


def refused_by_broker(**_arguments: Any) -> Any:
    raise BrokerFailure("the message bus refuses a request: 403 ACCESS_REFUSED", refused=True)


def failing(kind: str) -> Behaviour:
    def fail(**_arguments: Any) -> Any:
        raise oslo_messaging.RemoteError(kind, "at line 7")

    return fail


def conflicting(**_arguments: Any) -> Any:
    return {"error": {"type": "Conflict", "fields": {"reason": "taken"}}}


def without_database(**_arguments: Any) -> Any:
    fields = {"peer": "The database", "reason": "it is read-only"}
    return {"error": {"type": "DatabaseUnavailable", "fields": fields}}


ALWAYS = {"topic": "topic", "call_monitor_timeout": 5.0, "version": "1.0"}


class FakeClient:
    """An oslo.messaging client and, at once, the call context that it prepares."""

    def __init__(self, bus: "FakeBus", **prepared: Any) -> None:
        self._bus = bus
        self._prepared = prepared

    def prepare(self, **more: Any) -> "FakeClient":
        return FakeClient(self._bus, **{**self._prepared, **more})

    def call(self, context: Any, verb: str, **arguments: Any) -> Any:
        if verb == "ping":
            return self._bus.ping()
        self._bus.calls.append((verb, self._prepared, context, arguments))
        behaviour = self._bus.behaviours.pop(0) if self._bus.behaviours else fine
        return behaviour(**arguments)

    def cast(self, context: Any, verb: str, **arguments: Any) -> None:
        self._bus.casts.append((verb, self._prepared, arguments))
        refused()


class FakeBus:
    """A bus whose answers a test writes."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.calls: list[Any] = []
        self.casts: list[Any] = []
        self.ping: Behaviour = lambda: {"ok": "pong"}

    def client(self, topic: str) -> FakeClient:
        return FakeClient(self, topic=topic)


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus()


def connected(up: threading.Event, _seconds: float) -> bool:
    """Wait for the first connection as long as it takes."""
    happened(up, "the first connection")
    return True


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def line(bus: FakeBus, clock: FakeClock) -> Iterator[RPCClient]:
    made = RPCClient(
        *(cast(Bus, bus), "topic"), peer="conductor", timeout=PATIENCE, clock=clock, wait=connected
    )
    yield made
    made.close()


def verbs(bus: FakeBus) -> list[str]:
    return [verb for verb, *_ in bus.calls]


@pytest.mark.parametrize("sender", ["", "agent@host-1"])
def test_call_returns_the_answer(bus: FakeBus, sender: str) -> None:
    line = RPCClient(
        *(cast(Bus, bus), "topic"),
        peer="conductor",
        timeout=PATIENCE,
        sender=sender,
        wait=connected,
    )
    assert line.call("show", request_id="req-1", uuid="u") == "fine"
    context = {"request_id": "req-1"} | ({"sender": sender} if sender else {})
    assert bus.calls == [("show", ALWAYS | {"timeout": PATIENCE}, context, {"uuid": "u"})]
    assert line.up
    line.close()


def test_call_without_answer_is_repeated_once(bus: FakeBus, line: RPCClient) -> None:
    bus.behaviours = [silent, fine]
    assert line.call("bind", request_key="o") == "fine"
    first, second = bus.calls
    assert first == second


Ask = Callable[[RPCClient], Any]
ASKS: list[Ask] = [
    lambda line: line.call("bind", request_key="o"),
    lambda line: line.call_until("bind", within=PATIENCE, request_key="o"),
]


@pytest.mark.parametrize("ask", ASKS)
def test_call_is_repeated_when_a_server_has_no_database(
    bus: FakeBus, line: RPCClient, ask: Ask
) -> None:
    bus.behaviours = [without_database, without_database, without_database, fine]
    assert ask(line) == "fine"
    assert verbs(bus) == ["bind"] * 4
    assert {str(arguments) for *_, arguments in bus.calls} == {"{'request_key': 'o'}"}


@pytest.mark.parametrize("ask", ASKS)
def test_call_is_not_repeated_while_no_server_has_a_database(
    bus: FakeBus, clock: FakeClock, line: RPCClient, ask: Ask
) -> None:
    def at_the_deadline(**arguments: Any) -> Any:
        clock.now += PATIENCE
        return without_database(**arguments)

    def ended_without_database() -> bool:
        with pytest.raises(exception.DatabaseUnavailable, match="read-only"):
            ask(line)
        return not bus.behaviours

    bus.behaviours = [without_database, at_the_deadline]
    assert ended_without_database()
    bus.behaviours = [without_database]
    assert ended_without_database()
    # An error that only a server with a database finds counts as a success, too.
    bus.behaviours = [conflicting]
    with pytest.raises(exception.Conflict):
        ask(line)
    bus.behaviours = [without_database, fine]
    assert ask(line) == "fine"


def test_outcome_is_unknown_after_two_calls_without_answer(bus: FakeBus, line: RPCClient) -> None:
    bus.behaviours = [silent, silent]
    with pytest.raises(exception.OutcomeUnknown, match="repeating is safe"):
        line.call("bind")
    assert verbs(bus) == ["bind", "bind"]
    # The peer answers pings, so that the next one is tried again.
    assert line.call("bind") == "fine"


def test_write_is_repeated_until_its_deadline(
    bus: FakeBus, line: RPCClient, clock: FakeClock
) -> None:
    def silent_for_a_second(**_arguments: Any) -> Any:
        clock.now += 1.0
        silent()

    bus.behaviours = [*[silent_for_a_second] * 3, fine]
    assert line.call_until("bind", within=PATIENCE, request_key="o") == "fine"
    assert verbs(bus) == ["bind"] * 4
    assert {str(arguments) for *_, arguments in bus.calls} == {"{'request_key': 'o'}"}
    times = [prepared["timeout"] for _, prepared, *_ in bus.calls]
    assert times == [PATIENCE - seconds for seconds in range(4)]


@pytest.mark.parametrize("within", [None, 60.0])
def test_call_is_given_up_when_no_server_listens(
    bus: FakeBus, clock: FakeClock, within: float | None
) -> None:
    """The request that finds out waits for a server that starts; those after it do not."""

    def wait(up: threading.Event, seconds: float) -> bool:
        if is_reached:
            return connected(up, seconds)
        eventually(lambda: line.trouble)
        waits.append(seconds)
        clock.now += seconds
        return up.is_set()

    def ask() -> Any:
        return line.call("bind") if within is None else line.call_until("bind", within=within)

    line = RPCClient(
        *(cast(Bus, bus), "topic"), peer="conductor", timeout=PATIENCE, clock=clock, wait=wait
    )
    is_reached, waits = True, list[float]()
    assert ask() == "fine"
    is_reached, bus.ping, bus.behaviours = False, nobody_listens, [nobody_listens]
    for _ in range(2):
        with pytest.raises(exception.Unavailable, match="no process listens") as caught:
            ask()
        assert type(caught.value) is exception.Unavailable
    assert (waits, verbs(bus)) == ([3.0, 0.0], ["bind", "bind"])
    line.close()


@pytest.mark.parametrize("within", [None, PATIENCE])
def test_call_is_repeated_when_a_server_starts_to_listen(
    bus: FakeBus, line: RPCClient, within: float | None
) -> None:
    bus.behaviours = [nobody_listens, fine]
    answer = line.call("bind") if within is None else line.call_until("bind", within=within)
    assert (answer, verbs(bus)) == ("fine", ["bind", "bind"])


def test_write_that_was_sent_waits_for_a_server_that_starts(bus: FakeBus, line: RPCClient) -> None:
    """Its message is on the queue: a server that starts may take it until it expires."""
    assert line.call("show") == "fine"
    bus.behaviours, bus.ping = [silent, nobody_listens, fine], nobody_listens
    assert line.call_until("bind", within=PATIENCE) == "fine"
    assert verbs(bus) == ["show", *["bind"] * 3]


@pytest.mark.parametrize("broken", [silent, lost_connection])
def test_outcome_of_write_is_unknown_after_its_deadline(
    bus: FakeBus, clock: FakeClock, broken: Behaviour
) -> None:
    def broken_for_long(**_arguments: Any) -> Any:
        clock.now += PATIENCE
        broken()

    line = RPCClient(
        *(cast(Bus, bus), "topic"), peer="conductor", timeout=PATIENCE, clock=clock, wait=connected
    )
    bus.behaviours = [broken_for_long] * 3
    with pytest.raises(exception.OutcomeUnknown, match="repeating is safe"):
        line.call_until("bind", within=2 * PATIENCE)
    assert len(bus.calls) == 2
    line.close()


def test_write_refused_by_broker_is_given_up(bus: FakeBus, line: RPCClient) -> None:
    bus.behaviours = [refused_by_broker]
    with pytest.raises(exception.Unavailable, match="403 ACCESS_REFUSED") as caught:
        line.call_until("bind", within=60.0)
    assert type(caught.value) is exception.Unavailable
    assert verbs(bus) == ["bind"]


def test_hanging_bus_is_given_up_at_the_deadline(bus: FakeBus) -> None:
    line = RPCClient(cast(Bus, bus), "topic", peer="conductor", timeout=0.1, wait=connected)
    gate = Gate()
    bus.behaviours = [lambda **_: gate.hold()]
    with pytest.raises(exception.OutcomeUnknown):
        line.call("bind")
    gate.set()
    line.close()


def test_first_check_of_a_peer_waits(bus: FakeBus, line: RPCClient) -> None:
    gate = Gate()
    bus.ping = gate.hold
    threading.Timer(0.2, gate.set).start()
    assert line.reached()


def test_calls_fail_at_once_while_broker_is_away(bus: FakeBus, clock: FakeClock) -> None:
    """One call finds out; those after it are refused at once, until a ping gets through."""
    away = threading.Event()
    away.set()

    def ping() -> Any:
        if away.is_set():
            raise oslo_messaging.MessageDeliveryFailure("away")
        return {"ok": "pong"}

    def wait(up: threading.Event, seconds: float) -> bool:
        eventually(lambda: line.trouble)
        waits.append(seconds)
        clock.now += seconds
        return up.is_set()

    bus.ping = ping
    waits: list[float] = []
    line = RPCClient(
        *(cast(Bus, bus), "topic"), peer="conductor", timeout=PATIENCE, clock=clock, wait=wait
    )
    for _ in range(3):
        with pytest.raises(exception.Unavailable, match="cannot be used: away"):
            line.call("bind")
    assert waits == [3.0, 0.0, 0.0]
    assert verbs(bus) == []
    away.clear()
    eventually(lambda: line.up)
    assert line.call("bind") == "fine"
    line.close()


def test_missing_peer_is_unavailable(
    bus: FakeBus, line: RPCClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker's own word for it is empty."""
    gone = [oslo_messaging.MessageUndeliverable(None, None, None, None)] * 2

    def ping() -> Any:
        if gone:
            raise gone.pop()
        return {"ok": "pong"}

    bus.ping = ping
    with caplog.at_level("INFO"):
        assert line.call("bind") == "fine"
    assert caplog.messages == [
        "conductor cannot be reached over the message bus: no process listens on its queue",
        "conductor answers over the message bus",
    ]


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (failing("NoSuchMethod"), exception.UnknownVerb, "another release and does not know bind"),
        (failing("UnsupportedVersion"), exception.UnknownVerb, "another release"),
        (refused, exception.Unavailable, "nobody home"),
        (failing("TypeError"), exception.PeerFault, "req-9"),
        (conflicting, exception.Conflict, "taken"),
    ],
)
def test_failed_call_is_an_error_of_its_kind(
    bus: FakeBus, line: RPCClient, behaviour: Behaviour, kind: type[Exception], words: str
) -> None:
    bus.behaviours = [behaviour]
    with pytest.raises(exception.CyborgError, match=words) as caught:
        line.call("bind", request_id="req-9")
    assert type(caught.value) is kind
    assert verbs(bus) == ["bind"]
    assert line.up or kind is exception.Unavailable


@pytest.mark.parametrize(
    ("within", "patience"),
    [(None, PATIENCE), (0.2, 0.2), (PATIENCE + 1, PATIENCE), (-1.0, 0.1)],
)
def test_call_to_a_server_is_sent_once(
    bus: FakeBus, line: RPCClient, within: float | None, patience: float
) -> None:
    bus.behaviours = [silent]
    with pytest.raises(exception.Unavailable, match="conductor on host-1"):
        line.call_server("host-1", "prepare", within=within, task=1)
    (call,) = bus.calls
    assert call[1] == ALWAYS | {"server": "host-1", "timeout": patience}
    assert call[3] == {"task": 1}
    assert line.call_server("host-1", "prepare") == "fine"


def test_cast_never_raises_and_requires_no_newer_peer_than_needed(bus: FakeBus) -> None:
    line = RPCClient(
        cast(Bus, bus),
        "topic",
        peer="agent",
        timeout=PATIENCE,
        later={"desired_changed.why": "1.1"},
    )
    line.cast_server("host-1", "desired_changed", why=None)
    eventually(lambda: bus.casts)
    line.cast_server("host-1", "desired_changed", why="news")
    eventually(lambda: len(bus.casts) > 1)
    line.close()
    place = {"topic": "topic", "server": "host-1"}
    assert bus.casts == [
        ("desired_changed", {**place, "version": "1.0"}, {}),
        ("desired_changed", {**place, "version": "1.1"}, {"why": "news"}),
    ]


def test_close_ends_calls_in_progress(bus: FakeBus, line: RPCClient) -> None:
    slow = RPCClient(cast(Bus, bus), "topic", peer="agent", timeout=PATIENCE)
    gate, answers = Gate(), []
    bus.behaviours = [lambda **_: gate.hold()]

    def ask() -> None:
        with pytest.raises(exception.Unavailable) as caught:
            slow.call_server("host-1", "release")
        answers.append(caught.value)

    thread = threading.Thread(target=ask)
    thread.start()
    gate.reached()
    slow.close()
    slow.close()
    joined(thread)
    assert len(answers) == 1
    with pytest.raises(exception.Unavailable, match="ending"):
        slow.call_server("host-1", "release")
    gate.set()

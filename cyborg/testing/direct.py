# SPDX-License-Identifier: Apache-2.0
"""A bus without a wire: calls go straight to their endpoint, in the thread that asks.

What passes is turned into JSON and back, so that an endpoint sees nothing that a wire would not
carry. A server that is not there, a request or an answer that is lost: MessagingTimeout, at once
instead of after the time-out. Nothing here waits.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import oslo_messaging

from cyborg.rpc.transport import Bus
from cyborg.rpc.versions import FIRST

#: A wall around the passing of one message, told which: it may raise what ends the process.
Crossing = Callable[[str], AbstractContextManager[None]]
#: With this verb a process looks for its peer, in a thread of its own and as often as it likes.
PING = "ping"


@contextmanager
def freely(_message: str) -> Iterator[None]:
    """A crossing at which nothing happens."""
    yield


class Died(BaseException):
    """A simulated process ends here; no ``except Exception`` of what runs in it stops that."""


class Exchange:
    """Where the buses of one cloud meet: the servers by topic, and what is going to be lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: list[DirectServer] = []
        self._requests: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()

    def lose_request(self, verb: str, times: int = 1) -> None:
        """Have the next calls of a verb never arrive."""
        with self._lock:
            self._requests[verb] += times

    def lose_answer(self, verb: str, times: int = 1) -> None:
        """Have the next calls of a verb be carried out, and their answers never arrive."""
        with self._lock:
            self._answers[verb] += times

    def loses_request(self, verb: str) -> bool:
        """Whether this one is lost; asking uses it up."""
        return self._loses(self._requests, verb)

    def loses_answer(self, verb: str) -> bool:
        """Whether this one is lost; asking uses it up."""
        return self._loses(self._answers, verb)

    def find(self, topic: str, server: str | None) -> "DirectServer | None":
        """The server of this name, or any of a topic, each in its turn."""
        with self._lock:
            for one in self._servers:
                if one.topic == topic and server in (None, one.name):
                    self._servers.remove(one)
                    self._servers.append(one)
                    return one
        return None

    def add(self, server: "DirectServer") -> None:
        """It answers from now on; once is enough."""
        with self._lock:
            if server not in self._servers:
                self._servers.append(server)

    def remove(self, server: "DirectServer") -> None:
        """It answers no more; once is enough."""
        with self._lock:
            self._servers = [one for one in self._servers if one is not server]

    def _loses(self, due: Counter[str], verb: str) -> bool:
        with self._lock:
            lost = due[verb] > 0
            due[verb] -= lost
        return lost


class DirectBus(Bus):
    """One process's connection to an exchange.

    ``crossing`` is entered for each message but pings and casts: around a request until its answer
    is here, on the side that asks; at its arrival and around its answer, on the side that answers.
    """

    def __init__(self, exchange: Exchange, *, crossing: Crossing = freely) -> None:
        # Not the parent's: it would connect to a broker.
        self._meeting = exchange
        self._crossing = crossing
        self._made: list[DirectServer] = []
        self.closed = False

    def server(self, topic: str, server: str, endpoint: object) -> "DirectServer":
        """See Bus."""
        made = DirectServer(self._meeting, f"{topic}/{server}", endpoint, self._crossing)
        self._made.append(made)
        return made

    def client(self, topic: str) -> "DirectClient":
        """See Bus."""
        return DirectClient(self, topic)

    def close(self) -> None:
        """Take all servers of this process away, and refuse what it sends from now on."""
        self.closed = True
        for one in self._made:
            one.stop()

    def send(self, topic: str, server: str | None, verb: str, message: str) -> str:
        """Have a request carried out and its answer brought, both as JSON."""
        if self.closed:
            raise oslo_messaging.MessageDeliveryFailure("this connection is closed")
        found = self._meeting.find(topic, server)
        if found is None or self._meeting.loses_request(verb):
            raise oslo_messaging.MessagingTimeout(f"no answer to {verb}")
        if verb == PING:
            return found.answer(verb, message)
        with self._crossing(f"request {verb}"):
            answer = found.take(verb, message)
        if self._meeting.loses_answer(verb):
            raise oslo_messaging.MessagingTimeout(f"no answer to {verb}")
        return answer

    def tell(self, topic: str, server: str | None, verb: str, message: str) -> None:
        """Have a cast carried out, if somebody is there."""
        found = None if self.closed else self._meeting.find(topic, server)
        if found is not None and not self._meeting.loses_request(verb):
            found.answer(verb, message)


class DirectServer:
    """What stands for an RPC server of oslo.messaging; it has no thread of its own."""

    def __init__(
        self, exchange: Exchange, address: str, endpoint: object, crossing: Crossing
    ) -> None:
        self.topic, _, self.name = address.partition("/")
        self._exchange = exchange
        self._crossing = crossing
        self._dispatcher = oslo_messaging.RPCDispatcher(
            [endpoint], None, oslo_messaging.DefaultRPCAccessPolicy
        )

    def start(self) -> None:
        """Answer from now on."""
        self._exchange.add(self)

    def stop(self) -> None:
        """Answer no more."""
        self._exchange.remove(self)

    def wait(self) -> None:
        """Nothing: calls end in the threads of those who ask."""

    def take(self, verb: str, message: str) -> str:
        """Carry a request out; a process that ends before its answer has left was never heard."""
        sent: list[str] = []
        try:
            with self._crossing(f"arrival of {verb}"):
                pass
            answer = self.answer(verb, message)
            with self._crossing(f"answer to {verb}"):
                sent.append(answer)
        except Died:
            if not sent:
                raise oslo_messaging.MessagingTimeout(f"no answer to {verb}") from None
        return sent[0]

    def answer(self, verb: str, message: str) -> str:
        """The endpoint's answer; what it cannot take is an error of the bus."""
        context, arguments = json.loads(message)
        body = {"method": verb, "args": arguments, "version": FIRST}
        try:
            incoming = SimpleNamespace(ctxt=context, message=body, client_timeout=None)
            return json.dumps(self._dispatcher.dispatch(incoming))
        except Exception as error:  # noqa: BLE001 - who asked is told, as over a wire
            raise oslo_messaging.RemoteError(type(error).__name__, str(error)) from None


class DirectClient:
    """What stands for an RPC client of oslo.messaging, and for what its ``prepare`` answers."""

    def __init__(self, bus: DirectBus, topic: str, server: str | None = None) -> None:
        self._bus = bus
        self._topic = topic
        self._server = server

    def prepare(self, *, server: str | None = None, **_times: float) -> "DirectClient":
        """The same, for one server; times do not matter where nothing waits."""
        return DirectClient(self._bus, self._topic, server or self._server)

    def call(self, context: dict[str, Any], verb: str, **arguments: Any) -> Any:
        """Ask, and bring the answer; raises what oslo.messaging raises."""
        try:
            message = json.dumps([context, arguments])
            return json.loads(self._bus.send(self._topic, self._server, verb, message))
        except Died:
            # This thread is not the one that must end: it learns from its next step.
            raise oslo_messaging.MessageDeliveryFailure("this process has ended") from None

    def cast(self, context: dict[str, Any], verb: str, **arguments: Any) -> None:
        """Tell, if somebody is there."""
        self._bus.tell(self._topic, self._server, verb, json.dumps([context, arguments]))

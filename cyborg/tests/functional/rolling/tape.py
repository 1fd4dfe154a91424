# SPDX-License-Identifier: Apache-2.0
"""What crosses the bus, heard where it is asked and answered as it arrives there.

What ``[upgrade_levels]`` holds back does not cross it.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from oslo_messaging import RPCVersionCapError

from cyborg.rpc.command import FIRST
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_AGENTS_TOPIC, CONDUCTOR_TOPIC, Bus
from cyborg.tests.fixtures.stack import Stack

#: Makes of a message (topic, verb, arguments or reply) what the other side gets.
Passing = Callable[[str, str, Any], Any]


def _as_it_is(_topic: str, _verb: str, message: Any) -> Any:
    return message


@dataclass(frozen=True)
class Exchange:
    """A request and its answer, which is None for a hint."""

    topic: str
    verb: str
    context: dict[str, Any]
    args: dict[str, Any]
    answer: Any

    @property
    def refusal(self) -> str | None:
        """The type of the error that was answered."""
        return self.answer["error"]["type"] if self.answer and "error" in self.answer else None


@dataclass
class Tape:
    """Everything that passed, in its order; ``request`` and ``reply`` may change it on its way."""

    request: Passing = _as_it_is
    reply: Passing = _as_it_is
    exchanges: list[Exchange] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, one: Exchange) -> None:
        """Keep it."""
        with self._lock:
            self.exchanges.append(one)

    def verbs(self, topic: str) -> set[str]:
        """What has been asked over a topic."""
        with self._lock:
            return {one.verb for one in self.exchanges if one.topic == topic}


class TapedStack(Stack):
    """The same, all of whose processes are heard; ``tape`` is set before anything starts."""

    tape: Tape

    def bus(self) -> Bus:
        """See Stack."""
        levels = self.conf.upgrade_levels
        limits = {CONDUCTOR_TOPIC: levels.conductor, AGENT_TOPIC: levels.agent}
        return _TapedBus(super().bus(), self.tape, limits)


class _TapedBus(Bus):
    def __init__(self, bus: Bus, tape: Tape, limits: Mapping[str, str | None]) -> None:
        # Not the parent's: it would connect once more.
        self._bus = bus
        self._tape = tape
        self._limits = limits

    def server(self, topic: str, server: str, endpoint: object, **more: Any) -> Any:
        return self._bus.server(topic, server, endpoint, **more)

    def client(self, topic: str) -> Any:
        # Records and pages show the verbs of conductors together, as they were on one topic.
        of_conductor = topic == CONDUCTOR_AGENTS_TOPIC
        shown = CONDUCTOR_TOPIC if of_conductor else topic
        return _TapedClient(self._bus.client(topic), shown, self._tape, limit=self._limits[shown])

    def topic_of_agents(self) -> str:
        return self._bus.topic_of_agents()

    def close(self) -> None:
        self._bus.close()


class _TapedClient:
    """Stands for an oslo.messaging client, and for what its ``prepare`` answers.

    ``limit`` is the newest version that it sends, None for any; ``version`` is that of a message.
    """

    def __init__(
        self, client: Any, topic: str, tape: Tape, *, limit: str | None, version: str = FIRST
    ) -> None:
        self._client = client
        self._topic = topic
        self._tape = tape
        self._limit = limit
        self._version = version

    def prepare(self, **more: Any) -> "_TapedClient":
        return _TapedClient(
            self._client.prepare(**more),
            self._topic,
            self._tape,
            limit=self._limit,
            version=more.get("version", self._version),
        )

    def call(self, context: dict[str, Any], verb: str, **arguments: Any) -> Any:
        if self._limit is not None and _order(self._version) > _order(self._limit):
            with pytest.raises(RPCVersionCapError) as caught:
                self._client.call(context, verb, **arguments)
            raise caught.value
        sent = _plain(self._tape.request(self._topic, verb, arguments))
        got = self._client.call(context, verb, **sent)
        self._tape.note(Exchange(self._topic, verb, _plain(context), sent, _plain(got)))
        return self._tape.reply(self._topic, verb, got)

    def cast(self, context: dict[str, Any], verb: str, **arguments: Any) -> None:
        sent = _plain(self._tape.request(self._topic, verb, arguments))
        self._tape.note(Exchange(self._topic, verb, _plain(context), sent, None))
        self._client.cast(context, verb, **sent)


def _order(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _plain(message: Any) -> Any:
    """As JSON brings it."""
    return json.loads(json.dumps(message))

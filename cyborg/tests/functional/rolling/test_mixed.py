# SPDX-License-Identifier: Apache-2.0
"""This release beside the next one: added verbs, arguments and fields, and [upgrade_levels].

The next release is made up: its version is 1.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.model.work import Outcome
from cyborg.rpc.command import Command, added, history
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus, RPCClient
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.deployments import TRANSPORT_URL

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class NextOutcome(Outcome):
    """The shape with one more field."""

    colour: str | None = None


class OlderBind(Command[list[str | None]], verb="bind"):
    """A verb of 1.0."""

    uuid: str


class OlderPaint(Command[Outcome], verb="paint"):
    """Another one."""

    outcome: Outcome


class Newer(Command[Answer]):
    """What a service has that speaks 1.1: one more verb, argument and field."""


class Bind(Newer[list[str | None]], verb="bind"):
    """The verb of 1.0 with the argument."""

    uuid: str
    note: str | None = added("1.1")


class Paint(Newer[NextOutcome], verb="paint"):
    """The verb of 1.0 with the field."""

    outcome: NextOutcome


class Dance(Newer[str], verb="dance", since="1.1"):
    """The verb."""


LATER = history(Newer)
OLDER = Endpoint(
    "conductor",
    {},
    OlderBind.handled(lambda c: [c.uuid, None]),
    OlderPaint.handled(lambda c: c.outcome),
)
NEWER = Endpoint(
    "conductor",
    LATER,
    Bind.handled(lambda c: [c.uuid, c.note]),
    Paint.handled(lambda c: replace(c.outcome, colour=c.outcome.colour or "red")),
    Dance.handled(lambda _: "danced"),
)


@pytest.fixture
def level(conf: cfg.ConfigOpts) -> Iterator[Any]:
    """Pin what is sent to conductors."""
    yield lambda version: conf.set_override("conductor", version, "upgrade_levels")
    conf.clear_override("conductor", "upgrade_levels")


@pytest.fixture
def talk(conf: cfg.ConfigOpts) -> Iterator[Any]:
    """A line of a sender of 1.1 to a service."""
    endings: list[Any] = []

    def connect(service: object) -> RPCClient:
        bus = Bus(conf, url=TRANSPORT_URL, exchange=f"cyborg-{uuid4().hex[:12]}")
        server = bus.server(CONDUCTOR_TOPIC, "control", service)
        server.start()
        line = RPCClient(bus, CONDUCTOR_TOPIC, peer="conductor", timeout=PATIENCE, later=LATER)
        endings.extend([bus.close, server.wait, server.stop, line.close])
        eventually(line.reached)
        return line

    yield connect
    while endings:
        endings.pop()()


def test_unpinned_service_sends_what_older_service_accepts(talk: Any) -> None:
    line = talk(OLDER)
    assert line.call("bind", uuid="u", note=None) == ["u", None]
    with pytest.raises(exception.UnknownVerb, match="another release and does not know dance"):
        line.call("dance")
    with pytest.raises(exception.UnknownVerb, match="does not know bind"):
        line.call("bind", uuid="u", note="n")


def test_unpinned_service_sends_everything_to_newer_service(talk: Any) -> None:
    line = talk(NEWER)
    assert line.call("bind", uuid="u", note="n") == ["u", "n"]
    assert line.call("dance") == "danced"


def test_older_service_gets_an_answer_of_a_newer_one(talk: Any) -> None:
    """It knows neither the argument nor the field."""
    line = talk(NEWER)
    assert line.call("bind", **OlderBind("u").dump()) == ["u", None]
    painting = OlderPaint(Outcome("key", note="n"))
    answer = painting.read(line.call("paint", **painting.dump()))
    assert answer == Outcome("key", note="n")


def test_unknown_field_is_ignored_and_a_missing_one_has_its_default(talk: Any) -> None:
    painting = Paint(NextOutcome("key", note="n", colour="blue"))
    answers = [painting.read(talk(one).call("paint", **painting.dump())) for one in (OLDER, NEWER)]
    assert [answer.colour for answer in answers] == [None, "blue"]
    assert {answer.note for answer in answers} == {"n"}


def test_pin_restricts_messages_to_its_version(talk: Any, level: Any) -> None:
    """Even where a newer one would answer: which of them does is chance."""
    level("1.0")
    line = talk(NEWER)
    assert line.call("bind", uuid="u", note=None) == ["u", None]
    with pytest.raises(exception.PinnedVersion) as caught:
        line.call("bind", uuid="u", note="n")
    assert str(caught.value) == (
        "bind needs RPC version 1.1 of the conductor, but the option [upgrade_levels] conductor "
        "limits this process to 1.0. Upgrade every conductor, then remove that option."
    )
    assert caught.value.status == 503
    with pytest.raises(exception.PinnedVersion):
        line.call("dance")
    assert line.up


@pytest.mark.parametrize("value", ["0.9", "1.1", "2.0", "auto", "18.0.0", ""])
def test_unknown_pin_prevents_the_start(conf: cfg.ConfigOpts, level: Any, value: str) -> None:
    level(value)
    with pytest.raises(exception.ConfigError) as caught:
        Bus(conf, url="fake://")
    assert str(caught.value) == (
        f"Option [upgrade_levels] conductor cannot be {value!r}: this release can send 1.0."
    )

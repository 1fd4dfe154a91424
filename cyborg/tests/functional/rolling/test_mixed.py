# SPDX-License-Identifier: Apache-2.0
"""This release beside the one before it, and what [upgrade_levels] holds back.

``CYBORG_TEST_RECORD=18.0.0`` writes what passed the bus to ``recorded/18.0.0``; see "Releasing" in
the documents for developers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.rpc.command import FIRST, Command, added, history
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.transport import (
    AGENT_TOPIC,
    CONDUCTOR_AGENTS_TOPIC,
    CONDUCTOR_TOPIC,
    Bus,
    RPCClient,
)
from cyborg.tests import committed
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.rolling.middle import Middle
from cyborg.tests.functional.rolling.play import GUEST, UNIT, Play
from cyborg.tests.functional.rolling.records import RECORDED, RELEASE, Record
from cyborg.tests.unit.api.test_frozen import FROZEN, is_frozen
from cyborg.tests.unit.rpc.endpoints import COMMANDS, verbs

#: The keys of what the API answers, by microversion.
SHOWN = Path(__file__).with_name("shown.txt")
Answer = TypeVar("Answer")


class OlderBind(Command[list[str | None]], verb="bind"):
    """A verb of 1.0."""

    uuid: str


class Newer(Command[Answer]):
    """What a service has that speaks 1.1: one more verb, and one more argument."""


class Bind(Newer[list[str | None]], verb="bind"):
    """The verb of 1.0 with the argument."""

    uuid: str
    note: str | None = added("1.1")


class Dance(Newer[str], verb="dance", since="1.1"):
    """The verb."""


LATER = history(Newer)
OLDER = Endpoint("conductor", {}, OlderBind.handled(lambda c: [c.uuid, None]))
NEWER = Endpoint(
    "conductor",
    LATER,
    Bind.handled(lambda c: [c.uuid, c.note]),
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
        endings.extend([server.wait, server.stop, line.close])
        eventually(line.reached)
        return line

    yield connect
    while endings:
        endings.pop()()


def test_every_verb_is_exchanged(played: Play) -> None:
    mixed, alone = played.mixed, played.alone
    later = {verb for verb, command in COMMANDS[CONDUCTOR_TOPIC].items() if command.since != FIRST}
    assert mixed.verbs(CONDUCTOR_TOPIC) == verbs(CONDUCTOR_TOPIC) - later
    assert alone.verbs(CONDUCTOR_TOPIC) >= later
    # The line to agents is not pinged.
    assert mixed.verbs(AGENT_TOPIC) | {"ping"} == verbs(AGENT_TOPIC)
    if RELEASE:
        exchanges = [*mixed.exchanges, *alone.exchanges]
        Record(RECORDED / RELEASE).write(exchanges, played.names)


def test_releases_work_together(played: Play, middle: Middle) -> None:
    assert middle.flaws == []
    assert len(played.mixed.exchanges) > 100


def test_upgraded_agent_sends_what_was_held_back(played: Play) -> None:
    """Its guests with their units, and what Placement has of its cards."""
    sent = [one for one in played.alone.exchanges if one.args.get("host") == played.upgraded]
    guests = next(one for one in sent if one.verb == "guests")
    assert guests.answer == {"ok": None}
    unit = {"deployable": f"{played.upgraded}_{CARD}", "handle_key": UNIT}
    (process,) = guests.args["guests"]["body"]["processes"]
    assert (process["instance_uuid"], process["units"]) == (GUEST, [unit])
    published = next(one for one in sent if one.verb == "published")
    assert published.answer == {"ok": None}
    assert published.args["published"] == {f"{played.upgraded}_{CARD}": [1, 0]}


def test_microversions_return_recorded_keys(played: Play) -> None:
    lines = [f"{where}: {keys}" for where, keys in sorted(played.shown.items())]
    frozen = committed.lines_of(SHOWN, lines)
    assert list(filter(is_frozen, lines)) == list(filter(is_frozen, frozen)), FROZEN


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


def test_pinned_agent_uses_the_topic_of_older_conductors(conf: cfg.ConfigOpts, level: Any) -> None:
    level("1.0")
    assert Bus(conf, url="fake://").topic_of_agents() == CONDUCTOR_TOPIC
    level("1.1")
    assert Bus(conf, url="fake://").topic_of_agents() == CONDUCTOR_AGENTS_TOPIC


@pytest.mark.parametrize("value", ["0.9", "1.2", "2.0", "auto", "18.0.0", ""])
def test_unknown_pin_prevents_the_start(conf: cfg.ConfigOpts, level: Any, value: str) -> None:
    level(value)
    with pytest.raises(exception.ConfigError) as caught:
        Bus(conf, url="fake://")
    assert str(caught.value) == (
        f"Option [upgrade_levels] conductor cannot be {value!r}: this release can send 1.0, 1.1."
    )


def test_intermediary_knows_only_its_release(middle: Middle) -> None:
    own = Middle(Record(middle.record.place))
    outcome = {"request_key": "o", "done": True, "fault": None, "note": None}
    said = {"kind": "Outcome", "version": 1, "body": {**outcome, "later": 1}}
    assert own.reply("cyborg-agent", "install", {"ok": said})["ok"]["body"] == outcome
    assert own.flaws == []
    own.reply("cyborg-agent", "install", {"ok": {**said, "body": {"done": True}}})
    own.reply("cyborg-agent", "install", {"error": {"type": "Odd", "fields": {}}})
    own.request("cyborg-agent", "desired_changed", {"why": "x"})
    own.request("cyborg-agent", "dance", {})
    assert own.flaws == [
        "install: Outcome: work.Outcome.request_key is missing",
        "install: a Odd with [] is not on record",
        "desired_changed with ['why'] is not on record",
        "dance with [] is not on record",
    ]

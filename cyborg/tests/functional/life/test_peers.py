# SPDX-License-Identifier: Apache-2.0
"""Peers that are wrong, older, or odd: refused in words on both ends of the bus, never a traceback.

What each of the agents' verbs says is taken and spoilt, field by field.
"""

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.model import wire
from cyborg.model.device import Hardware
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, InstalledDriver, Report
from cyborg.model.work import Discovered, DiscoveryTask
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.command import Command, Handler
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_AGENTS_TOPIC, CONDUCTOR_TOPIC, RPCClient
from cyborg.rpc.verbs import AgentRequest, Discover, Heartbeat, SendReport
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ended, everything, work_left
from cyborg.tests.functional.life.test_discovery import card
from cyborg.tests.unit.rpc.endpoints import COMMANDS

HOST = "strange"
SENDER = f"cyborg-agent@{HOST}"
#: What no field of text, number or list is.
ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    2**70,
    1.5,
    "",
    "x" * 70_000,
    "nul\0",
    "\ud800",
    [],
    [[1]],
    {},
    {"a": {}},
)
HEARTBEAT = AgentHeartbeat(
    HOST, (HOST,), "1", SENDER, None, drivers=(InstalledDriver("card_driver", DriverState.READY),)
)
KNOWN = Hardware("0000:91:00.0", "CRYPTO", "v", "m", offered=False, num=4)
REPORT = Report((DriverReport("card_driver", DriverState.READY, (card(HOST),), hardware=(KNOWN,)),))

Ask = Callable[..., Any]


@pytest.fixture
def epoch(stack: Stack) -> int:
    """The host has sent a heartbeat and reported; its epoch."""
    client = reach(ConductorClient(stack.bus(), timeout=PATIENCE, sender=SENDER))
    begun = client.request(Heartbeat(HEARTBEAT)).epoch
    client.request(SendReport(HOST, begun, REPORT))
    client.close()
    return begun


@pytest.fixture
def ask(stack: Stack) -> Iterator[Ask]:
    """Say anything to a conductor, as anybody."""
    lines: dict[tuple[str, str], RPCClient] = {}

    def ask(verb: str, *, sender: str = SENDER, **words: Any) -> Any:
        topic = topic_of(verb)
        if (topic, sender) not in lines:
            line = RPCClient(stack.bus(), topic, peer="conductor", timeout=PATIENCE, sender=sender)
            lines[topic, sender] = line
            reach(line)
        return lines[topic, sender].call(verb, **words)

    yield ask
    for line in lines.values():
        line.close()


def topic_of(verb: str) -> str:
    """The topic of conductors that has a verb."""
    is_of_agents = issubclass(COMMANDS[CONDUCTOR_TOPIC][verb], AgentRequest)
    return CONDUCTOR_AGENTS_TOPIC if is_of_agents else CONDUCTOR_TOPIC


def spoilt(value: Any, odds: Iterator[Any]) -> Iterator[Any]:
    """A value that in one place is gone, or odd; each place has its turn."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield {key: kept for key, kept in value.items() if key != name}
            for odd in (next(odds), next(odds), *spoilt(one, odds)):
                yield {**value, name: odd}
    if isinstance(value, list) and value:
        for odd in (next(odds), *spoilt(value[0], odds)):
            yield [odd, *value[1:]]


def said(ask: Ask, verb: str, **words: Any) -> str:
    """How it was refused; empty when it was taken in."""
    try:
        ask(verb, **words)
    except (exception.Invalid, exception.Forbidden, exception.StaleEpoch) as refusal:
        return str(refusal)
    return ""


def no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was logged as a fault of ours."""
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("verb", "name", "value"), [("heartbeat", "heartbeat", HEARTBEAT), ("report", "report", REPORT)]
)
def test_agent_messages_with_wrong_types_are_refused(
    ask: Ask, epoch: int, caplog: pytest.LogCaptureFixture, *, verb: str, name: str, value: Any
) -> None:
    place = {} if verb == "heartbeat" else {"host": HOST, "epoch": epoch}
    refused = 0
    for odd in spoilt(wire.dump(value), itertools.cycle(ODD)):
        sentence = said(ask, verb, **place, **{name: odd})
        refused += bool(sentence)
    # Some oddities are words like others: a version, the model of a card.
    assert refused > 20
    no_fault(caplog)


@pytest.mark.parametrize(
    "verb", ["report", "desired", "unit_uses", "published", "providers_removed"]
)
def test_host_and_epoch_with_wrong_types_are_refused(
    ask: Ask, epoch: int, database: Database, caplog: pytest.LogCaptureFixture, *, verb: str
) -> None:
    more: dict[str, dict[str, Any]] = {
        "report": {"report": wire.dump(REPORT)},
        "published": {"refused": {}, "published": {}},
        "providers_removed": {"names": []},
    }
    before = everything(database)
    odd: Any
    for odd in (None, True, 1.5, "", [], {"a": 1}, 2**70):
        assert said(ask, verb, host=odd, epoch=epoch, **more.get(verb, {})), odd
        assert said(ask, verb, host=HOST, epoch=odd, **more.get(verb, {})), odd
    for words in ({"host": HOST}, {"epoch": epoch}, {"host": HOST, "epoch": epoch, "new": 1}):
        sentence = said(ask, verb, **words, **more.get(verb, {}))
        assert "Invalid value for arguments" in sentence
    assert everything(database) == before
    no_fault(caplog)


def test_other_host_and_older_epoch_are_refused(
    ask: Ask, epoch: int, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    before = everything(database)
    words: dict[str, dict[str, Any]] = {
        "report": {"report": wire.dump(REPORT)},
        "desired": {},
        "unit_uses": {},
        "published": {"refused": {}, "published": {}},
        "providers_removed": {"names": []},
    }
    for verb, more in words.items():
        foreign = said(ask, verb, sender="cyborg-agent@thief", host=HOST, epoch=epoch, **more)
        assert f"cannot speak for host {HOST}" in foreign
        for wrong in (epoch - 1, epoch + 1):
            assert "is replaced" in said(ask, verb, host=HOST, epoch=wrong, **more)
    assert everything(database) == before
    refusals = [one for one in caplog.records if one.name == "cyborg.conductor.endpoint"]
    assert len(refusals) >= 2 * len(words)
    no_fault(caplog)


def test_request_without_sender_is_refused_and_logged_once(
    stack: Stack, epoch: int, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    before = everything(database)
    lines = {
        topic: reach(RPCClient(stack.bus(), topic, peer="conductor", timeout=PATIENCE))
        for topic in (CONDUCTOR_TOPIC, CONDUCTOR_AGENTS_TOPIC)
    }
    requests = COMMANDS[CONDUCTOR_TOPIC]
    # Other tests of this process may have been refused before.
    for _ in range(2):
        caplog.clear()
        for verb in requests:
            with pytest.raises(exception.Forbidden, match=f"{verb} names no sender"):
                lines[topic_of(verb)].call(verb)
    assert [one for one in caplog.records if one.name == "cyborg.conductor.endpoint"] == []
    assert len(requests) > 25
    assert everything(database) == before
    for line in lines.values():
        line.close()


class StrangeDiscovery(Command[Any], verb="discovery"):
    """A discovery whose task is something else."""

    drivers: Any


class AnyDiscovery(Command[Any], verb="discovery"):
    """A discovery that may have any answer."""

    task: Any


def older(*handlers: Handler) -> Endpoint:
    """The endpoint of an agent of another release."""
    return Endpoint("cyborg-agent", {}, *handlers)


def babbler(answer: Any) -> Endpoint:
    """One that answers ``answer``."""
    return older(AnyDiscovery.handled(lambda _: answer))


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (older(), "does not know discovery"),
        (older(StrangeDiscovery.handled(lambda c: c.drivers)), "Invalid value for arguments"),
        (babbler(7), "a Discovered is needed"),
        (babbler({"kind": "Discovered", "version": 2, "body": {}}), "version 2 is not 1"),
        (babbler(wire.dump(Discovered(str(uuid4())))), "Invalid value for request_key"),
        (
            babbler({"kind": "Discovered", "version": 1, "body": {"request_key": 7}}),
            "Discovered.request_key",
        ),
    ],
    ids=["older", "stranger", "babbler", "newer", "of another task", "of wrong types"],
)
def test_unknown_verb_at_agent_fails_its_part_of_an_operation(
    stack: Stack,
    operator: Client,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    *,
    subject: Any,
    words: str,
) -> None:
    host = fresh_host("older")
    stack.report(host, Report(()))
    server = stack.bus().server(AGENT_TOPIC, host, subject)
    server.start()
    try:
        body = {"hosts": [host]}
        over = ended(operator, operator.post("/services/discover", body, status=202))
    finally:
        server.stop()
        server.wait()
    (result,) = over["results"]
    assert (over["state"], result["state"]) == ("failed", "failed")
    assert words in result["error"]
    assert "another release" in result["error"]
    assert work_left(database) == []
    no_fault(caplog)


def test_agents_refuse_a_conductor_of_another_release(
    stack: Stack, compute: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    host = compute().compute
    line = RPCClient(stack.bus(), AGENT_TOPIC, peer="agent", timeout=PATIENCE)
    task = wire.dump(DiscoveryTask(str(uuid4()), "fake_driver"))
    for verb in ("discovery", "prepare", "release", "program", "install"):
        for odd in (
            None,
            7,
            "x",
            [[1]],
            {},
            {**task, "version": 2},
            {**task, "body": {"request_key": 7}},
        ):
            with pytest.raises(exception.Invalid):
                line.call_server(host, verb, task=odd)
        with pytest.raises(exception.Invalid, match="arguments"):
            line.call_server(host, verb, tasks=task)
    later = wire.dump(DiscoveryTask(str(uuid4()), agent_epoch=10**6))
    with pytest.raises(exception.StaleEpoch):
        line.call_server(host, "discovery", task=later)
    with pytest.raises(exception.UnknownVerb, match="does not know dance"):
        line.call_server(host, "dance")
    line.close()
    client = AgentClient(stack.bus(), timeout=PATIENCE)
    found = client.request(host, Discover(DiscoveryTask(str(uuid4()), "fake_driver")))
    assert [one.name for one in found.drivers] == ["fake_driver"]
    client.close()
    no_fault(caplog)

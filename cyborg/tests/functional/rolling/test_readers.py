# SPDX-License-Identifier: Apache-2.0
"""What the release before this one sent is read today, and what is sent today it reads.

Here envelope by envelope, as they are on record; ``test_mixed`` has the whole service talk so.
"""

import logging
from dataclasses import fields
from types import NoneType
from typing import Any, get_type_hints

import pytest

from cyborg import exception
from cyborg.model import wire
from cyborg.model.process import API
from cyborg.model.report import Report
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.endpoint import unwrap
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import AGENT, CONDUCTOR, Write
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.rolling.records import LEVELS, TOPICS, before
from cyborg.tests.unit.model.shapes import (
    ENVELOPES,
    errors,
    everything,
    named,
    parts_of,
    shapes,
    validate,
)
from cyborg.tests.unit.rpc.endpoints import COMMANDS, endpoint, verbs
from cyborg.tests.unit.rpc.test_line import FakeBus

LATER = {CONDUCTOR_TOPIC: CONDUCTOR, AGENT_TOPIC: AGENT}
BEFORE = before()
VERBS = [(topic, verb) for topic in TOPICS for verb in BEFORE.verbs[topic] if verb != "ping"]
REFUSALS = [
    pytest.param(verb, said["answer"], id=f"{verb}-{kind}")
    for topic in TOPICS
    for verb, one in BEFORE.verbs[topic].items()
    for kind, said in one["refusals"].items()
]
#: What the release before this one made of the report that is on record. Another digest would have
#: each agent of it hand its report in again at every heartbeat: a field that is added to a report
#: must not count while it has its default.
DIGEST = "c2fef7dc303ee46bc39dde64a255377fba62ec4c0c95cb98f4f7095265ddedb8"


def holds(whole: Any, part: Any) -> bool:
    """Whether everything of the one stands in the other, which may have more keys."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            name in whole and holds(whole[name], one) for name, one in part.items()
        )
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize(("topic", "verb"), VERBS)
def test_current_services_accept_recorded_requests(topic: str, verb: str) -> None:
    said, answer = BEFORE.verbs[topic][verb], COMMANDS[topic][verb].answer
    body = (said["answer"] or {}).get("ok")
    subject = endpoint(topic, None if answer is NoneType else wire.unpack(answer, body, verb))
    # The pre-release on record sent API requests without a sender, which conductors refuse now.
    reply = getattr(subject, verb)({"sender": API, **said["context"]}, **said["args"])
    assert "error" not in reply
    assert holds(reply["ok"], body)


@pytest.mark.parametrize(("topic", "verb"), VERBS)
def test_current_clients_send_known_arguments(topic: str, verb: str) -> None:
    """And what it answers is read."""
    said = BEFORE.verbs[topic][verb]
    bus: Any = FakeBus()
    bus.behaviours = [lambda **_: said["answer"]]
    command: Any = COMMANDS[topic][verb].load(said["args"])
    if said["answer"] is None:  # a hint, of which nobody hears
        return
    if topic == AGENT_TOPIC:
        agents = AgentClient(bus, timeout=PATIENCE)
        answer: Any = agents.request("compute-1", command, within=PATIENCE)
        agents.close()
    else:
        conductor = ConductorClient(bus, timeout=PATIENCE, sender=f"{AGENT_TOPIC}@compute-1")
        ask: Any = conductor.write if isinstance(command, Write) else conductor.request
        answer = ask(command)
        conductor.close()
    (asked,) = [one for one in bus.calls if one[0] == verb]
    assert asked[1]["version"] == LEVELS[topic.removeprefix("cyborg-")]
    assert asked[3].keys() == said["args"].keys()
    assert holds(asked[3], said["args"])
    assert holds(wire.pack(answer), said["answer"]["ok"])


@pytest.mark.parametrize(("topic", "verb"), VERBS)
def test_new_arguments_are_optional(topic: str, verb: str) -> None:
    assert verb in verbs(topic), "a verb of the release before is gone"
    now = {one.name: one for one in fields(COMMANDS[topic][verb])}
    was = BEFORE.verbs[topic][verb]["args"]
    assert was.keys() <= now.keys()
    for name in now.keys() - was.keys():
        assert now[name].default is None
        assert f"{verb}.{name}" in LATER[topic], f"{verb}.{name} does not say when it was added"


@pytest.mark.parametrize("topic", TOPICS)
def test_new_verbs_have_a_new_version(topic: str) -> None:
    new = verbs(topic) - BEFORE.verbs[topic].keys() - {"ping"}
    assert new <= LATER[topic].keys(), "a new verb says since which version there is one"


@pytest.mark.parametrize("name", BEFORE.shapes)
def test_new_fields_have_defaults(name: str) -> None:
    how = "whatever else changes raises cyborg.model.wire.VERSION, and ends rolling upgrades"
    was, now = BEFORE.shapes[name].split(), shapes()[name].split()
    assert set(was) <= set(now), how
    if ":" in BEFORE.shapes[name]:
        assert all(one.endswith("?") for one in set(now) - set(was)), how


def spoken_downwards() -> set[str]:
    """The names of all that conductors say: they are upgraded first, those who hear it later."""
    hints = [
        hint
        for verb in BEFORE.verbs[AGENT_TOPIC]
        if verb != "ping"
        for hint in get_type_hints(COMMANDS[AGENT_TOPIC][verb]).values()
    ]
    hints += [one.answer for one in COMMANDS[CONDUCTOR_TOPIC].values()]
    names = {named(part) for hint in hints for part in parts_of(hint) if isinstance(part, type)}
    known = shapes()
    while True:
        more = {one for one in known for name in names if one in known.get(name, "")} - names
        if not more:
            return names & known.keys()
        names |= more


def test_conductors_send_no_unknown_words() -> None:
    said = spoken_downwards()
    words = {one for one in said if one in BEFORE.shapes and ":" not in BEFORE.shapes[one]}
    assert {"arq.State", "operation.OperationState"} <= words
    now = shapes()
    assert {one: now[one] for one in words} == {one: BEFORE.shapes[one] for one in words}


def test_recorded_messages_fit_recorded_shapes() -> None:
    def look(value: Any) -> int:
        if isinstance(value, list):
            return sum(map(look, value))
        if not isinstance(value, dict):
            return 0
        if value.keys() != {"kind", "version", "body"}:
            return sum(map(look, value.values()))
        assert validate(BEFORE.shapes, ENVELOPES[value["kind"]], value["body"]) is None
        return 1

    assert look(list(BEFORE.verbs.values())) > 40
    assert set(shapes()) >= {named(one) for one in everything()}


@pytest.mark.parametrize(("verb", "reply"), REFUSALS)
def test_recorded_errors_are_read(verb: str, reply: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(exception.CyborgError) as caught:
        unwrap(reply, "conductor", "req-1")
    assert caught.value.kind == reply["error"]["type"]
    assert caplog.text == ""


@pytest.mark.parametrize("name", BEFORE.errors)
def test_errors_keep_their_required_fields(name: str) -> None:
    """With more, today's readers could not read an older error; with less, the reverse."""
    assert errors()[name] == BEFORE.errors[name]


def test_recorded_report_keeps_its_digest() -> None:
    said = BEFORE.verbs[CONDUCTOR_TOPIC]["report"]["args"]["report"]
    assert wire.load(Report, said).digest() == DIGEST

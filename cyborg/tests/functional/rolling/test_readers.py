# SPDX-License-Identifier: Apache-2.0
"""What the release before this one sent is read today, and what is sent today it reads.

Here envelope by envelope, as they are on record; ``test_mixed`` has the whole service talk so.
"""

import logging
from typing import Any, cast

import pytest

from cyborg import exception
from cyborg.agent.endpoint import Endpoint as AgentEndpoint
from cyborg.conductor.endpoint import Endpoint as ConductorEndpoint
from cyborg.conductor.endpoint import UseCases
from cyborg.model import wire
from cyborg.model.process import API
from cyborg.model.report import Report
from cyborg.rpc import faults, versions
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.tests.functional.rolling.records import LEVELS, TOPICS, before
from cyborg.tests.functional.rolling.surfaces import (
    answer_type,
    argument_types,
    client_of,
    flat,
    rebuilt,
)
from cyborg.tests.unit.model.shapes import (
    ENVELOPES,
    errors,
    everything,
    named,
    parts_of,
    shapes,
    validate,
)
from cyborg.tests.unit.rpc.endpoints import arguments, verbs
from cyborg.tests.unit.rpc.test_line import FakeBus

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


class Deaf:
    """Use cases that answer what is on record, whatever they are asked."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_arguments: Any, **_more: Any) -> Any:
        return self._answer


def endpoint(topic: str, answer: Any) -> Any:
    """Today's door before such use cases."""
    deaf = Deaf(answer)
    if topic == CONDUCTOR_TOPIC:
        return ConductorEndpoint(cast(UseCases, deaf))
    parts: Any = deaf
    return AgentEndpoint(
        parts, discoveries=parts, on_desired_changed=parts, check=lambda epoch: None, reload=parts
    )


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
    said = BEFORE.verbs[topic][verb]
    body = (said["answer"] or {}).get("ok")
    subject = endpoint(topic, rebuilt(answer_type(topic, verb), body))
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
    kind = client_of(topic, verb)
    named = {"sender": f"{AGENT_TOPIC}@compute-1"} if kind is ReportClient else {}
    client: Any = kind(bus, timeout=1.0, **named)
    types = argument_types(topic, verb)
    known = {"host": "compute-1", "within": 10.0} if topic == AGENT_TOPIC else {}
    wanted = {
        name: rebuilt(types[name], (said["args"] | known)[name])
        for name in types
        if name in said["args"] or name in known
    }
    answer = getattr(client, verb)(**wanted)
    client.close()
    if said["answer"] is None:  # a hint, of which nobody hears
        return
    (asked,) = [one for one in bus.calls if one[0] == verb]
    assert asked[1]["version"] == LEVELS[topic.removeprefix("cyborg-")]
    assert asked[3].keys() == said["args"].keys()
    assert holds(asked[3], said["args"])
    assert holds(flat(answer), said["answer"]["ok"])


@pytest.mark.parametrize(("topic", "verb"), VERBS)
def test_new_arguments_are_optional(topic: str, verb: str) -> None:
    assert verb in verbs(topic), "a verb of the release before is gone"
    later = versions.CONDUCTOR if topic == CONDUCTOR_TOPIC else versions.AGENT
    now = arguments(topic, verb)
    was = BEFORE.verbs[topic][verb]["args"]
    assert was.keys() <= now.keys()
    for name in now.keys() - was.keys():
        assert now[name].default is None
        assert f"{verb}.{name}" in later, f"{verb}.{name} is not in cyborg.rpc.versions"


@pytest.mark.parametrize("topic", TOPICS)
def test_new_verbs_have_a_new_version(topic: str) -> None:
    later = versions.CONDUCTOR if topic == CONDUCTOR_TOPIC else versions.AGENT
    new = verbs(topic).keys() - BEFORE.verbs[topic].keys() - {"ping"}
    assert new <= later.keys(), "name it in cyborg.rpc.versions"


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
        for hint in argument_types(AGENT_TOPIC, verb).values()
    ]
    hints += [answer_type(CONDUCTOR_TOPIC, one) for topic, one in VERBS if topic == CONDUCTOR_TOPIC]
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
        faults.unwrap(reply, "conductor", "req-1")
    assert caught.value.kind == reply["error"]["type"]
    assert caplog.text == ""


@pytest.mark.parametrize("name", BEFORE.errors)
def test_errors_keep_their_required_fields(name: str) -> None:
    """With more, today's readers could not read an older error; with less, the reverse."""
    assert errors()[name] == BEFORE.errors[name]


def test_recorded_report_keeps_its_digest() -> None:
    said = BEFORE.verbs[CONDUCTOR_TOPIC]["report"]["args"]["report"]
    assert wire.load(Report, said).digest() == DIGEST

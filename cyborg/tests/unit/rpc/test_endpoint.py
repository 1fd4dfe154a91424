# SPDX-License-Identifier: Apache-2.0
"""Errors cross the bus as data and come out as the classes that went in."""

import json
import logging
from string import Formatter
from typing import Any

import pytest

from cyborg import exception
from cyborg.model.process import API
from cyborg.rpc.command import Command
from cyborg.rpc.endpoint import Endpoint, unwrap
from cyborg.tests.unit.model.kinds import ERRORS, declared
from cyborg.tests.unit.rpc import samples
from cyborg.tests.unit.rpc.endpoints import COMMANDS, endpoint


def _all(root: type[exception.CyborgError]) -> list[type[exception.CyborgError]]:
    return [root, *(one for child in root.__subclasses__() for one in _all(child))]


_LINE = (
    "Request {verb} over the message bus was answered with an error that it does not declare: "
    "CannotAttach: {error}"
)
CLASSES = _all(exception.CyborgError)


def example(kind: type[exception.CyborgError]) -> exception.CyborgError:
    names = {name for _, name, _, _ in Formatter().parse(kind.sentence) if name}
    return kind(**{name: f"{name} with {{braces}} and ☃" for name in names}, extra=7)


class Good(Command[Any], verb="good"):
    """Answer the value."""

    value: Any


class Bad(Command[None], verb="bad", raises=(exception.CyborgError,)):
    """Fail."""


def answered(verb: str, context: Any, error: Exception | None = None, **arguments: Any) -> Any:
    """Return the reply of an endpoint, as JSON brings it; ``error`` is that of ``bad``."""

    def fail(_command: Bad) -> None:
        assert error is not None
        raise error

    endpoint = Endpoint("peer", {}, Good.handled(lambda c: c.value), Bad.handled(fail))
    return json.loads(json.dumps(getattr(endpoint, verb)(context, **arguments)))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_round_trip(kind: type[exception.CyborgError]) -> None:
    error = example(kind)
    reply = answered("bad", {}, error)
    with pytest.raises(exception.CyborgError) as caught:
        unwrap(reply, "peer", "req-1")
    assert type(caught.value) is kind
    assert caught.value.fields == error.fields
    assert str(caught.value) == str(error)
    assert caught.value.status == error.status


def test_kinds_are_unique_literals() -> None:
    kinds = [declared(error_class, "kind") for error_class in CLASSES]
    assert sorted(map(str, kinds)) == sorted(ERRORS)


def test_values_survive_a_round_trip() -> None:
    values: list[Any] = [None, 0, [], {}, {"error": 1}, "text", False]
    for value in values:
        assert unwrap(answered("good", {}, value=value), "peer", "") == value


def test_unexpected_error_is_hidden_from_caller_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        reply = answered("bad", {"request_id": "req-7"}, KeyError("password"))
    assert "password" not in str(reply)
    assert "req-7" in caplog.text
    assert "password" in caplog.text
    with pytest.raises(exception.PeerFault, match=r"peer failed unexpectedly.*req-7"):
        unwrap(reply, "peer", "req-7")


@pytest.mark.parametrize("arguments", [{}, {"value": None, "later": 1}, {"later": 1}])
def test_unknown_arguments_are_refused(
    arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    reply = answered("good", {}, **arguments)
    with pytest.raises(exception.Invalid, match=r"argument.*(later|value)"):
        unwrap(reply, "peer", "req-1")
    assert "Traceback" not in caplog.text


def test_invalid_replies_are_peer_faults() -> None:
    kinds = ("NotFound", "SystemExit", None)
    replies: list[Any] = [
        *(None, "text", [], {}, {"error": None}, {"error": {"type": "NotFound"}}),
        {"error": {"type": "NotFound", "fields": []}},
        *({"error": {"type": kind, "fields": {}}} for kind in kinds),
    ]
    for reply in replies:
        with pytest.raises(exception.PeerFault) as caught:
            unwrap(reply, "peer", "req-1")
        assert caught.value.fields == {"peer": "peer", "request_id": "req-1"}


@pytest.mark.parametrize("topic", COMMANDS)
def test_only_undeclared_errors_are_logged_and_all_are_answered(
    topic: str, undeclared_errors: list[str]
) -> None:
    error = exception.CannotAttach(instance="i", reason="taken")
    for verb in COMMANDS[topic]:
        command = COMMANDS[topic][verb]
        context = {"sender": f"{API}@{samples.HOST}"}
        reply = getattr(endpoint(topic, error), verb)(context, **samples.arguments(command))
        assert reply == {"error": {"type": "CannotAttach", "fields": error.fields}}
        is_declared = issubclass(exception.CannotAttach, command.raises)
        assert undeclared_errors == ([] if is_declared else [_LINE.format(verb=verb, error=error)])
        undeclared_errors.clear()

# SPDX-License-Identifier: Apache-2.0
"""Errors cross the bus as data and come out as the classes that went in."""

import json
import logging
from string import Formatter
from typing import Any

import pytest

from cyborg import exception
from cyborg.rpc.faults import answering, unwrap
from cyborg.tests.unit.model.kinds import ERRORS, declared


def _all(root: type[exception.CyborgError]) -> list[type[exception.CyborgError]]:
    return [root, *(one for child in root.__subclasses__() for one in _all(child))]


CLASSES = _all(exception.CyborgError)


def example(kind: type[exception.CyborgError]) -> exception.CyborgError:
    names = {name for _, name, _, _ in Formatter().parse(kind.sentence) if name}
    return kind(**{name: f"{name} with {{braces}} and ☃" for name in names}, extra=7)


class Endpoint:
    """What an endpoint is, as far as answers go."""

    @answering("peer")
    def good(self, context: Any, *, value: Any) -> Any:
        return value

    @answering("peer")
    def bad(self, context: Any, *, error: Exception) -> Any:
        raise error


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_round_trip(kind: type[exception.CyborgError]) -> None:
    error = example(kind)
    reply = json.loads(json.dumps(Endpoint().bad({}, error=error)))
    with pytest.raises(exception.CyborgError) as caught:
        unwrap(reply, "peer", "req-1")
    assert type(caught.value) is kind
    assert caught.value.fields == error.fields
    assert str(caught.value) == str(error)
    assert caught.value.status == error.status


def test_kinds_are_unique_literals_as_recorded() -> None:
    kinds = [declared(error_class, "kind") for error_class in CLASSES]
    assert sorted(map(str, kinds)) == sorted(ERRORS)


@pytest.mark.parametrize("value", [None, 0, [], {}, {"error": 1}, "text", False])
def test_values_survive_a_round_trip(value: Any) -> None:
    reply = json.loads(json.dumps(Endpoint().good({}, value=value)))
    assert unwrap(reply, "peer", "") == value


def test_unexpected_error_is_hidden_from_caller_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        reply = Endpoint().bad({"request_id": "req-7"}, error=KeyError("password"))
    assert "password" not in str(reply)
    assert "req-7" in caplog.text
    assert "password" in caplog.text
    with pytest.raises(exception.PeerFault, match=r"peer failed unexpectedly.*req-7"):
        unwrap(reply, "peer", "req-7")


@pytest.mark.parametrize("arguments", [{}, {"error": None, "later": 1}, {"later": 1}])
def test_unknown_arguments_are_refused(
    arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    reply = Endpoint().bad({}, **arguments)
    with pytest.raises(exception.Invalid, match=r"argument.*(later|error)"):
        unwrap(reply, "peer", "req-1")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "text",
        [],
        {},
        {"error": None},
        {"error": {"type": "NotFound"}},
        {"error": {"type": "NotFound", "fields": []}},
        {"error": {"type": "NotFound", "fields": {}}},
        {"error": {"type": "SystemExit", "fields": {}}},
        {"error": {"type": None, "fields": {}}},
    ],
)
def test_invalid_replies_are_peer_faults(reply: Any) -> None:
    with pytest.raises(exception.PeerFault) as caught:
        unwrap(reply, "peer", "req-1")
    assert caught.value.fields == {"peer": "peer", "request_id": "req-1"}

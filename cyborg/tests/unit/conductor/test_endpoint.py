# SPDX-License-Identifier: Apache-2.0
"""Requests to the conductor that name no sender."""

from collections.abc import Mapping
from typing import Any

import pytest

from cyborg import exception
from cyborg.conductor.endpoint import require_sender


class Endpoint:
    """An endpoint with two methods."""

    _required = staticmethod(require_sender())

    @_required
    def first(self, context: Mapping[str, Any], *, host: str) -> str:
        """Return the host."""
        return host

    @_required
    def second(self, context: Mapping[str, Any]) -> str:
        """Return a word."""
        return "second"


@pytest.mark.parametrize("context", [{}, {"sender": ""}, {"sender": None}, {"sender": ["x"]}])
def test_a_request_without_a_sender_is_refused_and_logged_once(
    context: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = Endpoint()
    caplog.clear()
    for _ in range(3):
        with pytest.raises(exception.Forbidden, match="The request first names no sender"):
            endpoint.first(context, host="compute-1")
    assert len(caplog.records) <= 1
    assert endpoint.first({"sender": "cyborg-agent@compute-1"}, host="compute-1") == "compute-1"
    assert endpoint.second({"sender": "cyborg-api"}) == "second"


def test_the_first_refusal_of_each_verb_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    refuse = require_sender()

    def verb(self: object, context: Mapping[str, Any]) -> None:
        """Do nothing."""

    for _ in range(3):
        with pytest.raises(exception.Forbidden):
            refuse(verb)(None, {})
    (record,) = caplog.records
    assert "Request verb over the message bus refused: it names no sender." in record.getMessage()

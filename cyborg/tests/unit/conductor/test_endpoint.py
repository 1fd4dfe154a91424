# SPDX-License-Identifier: Apache-2.0
"""Requests to the conductor that name no sender."""

from collections.abc import Mapping
from typing import Any

import pytest

from cyborg.rpc.transport import CONDUCTOR_TOPIC
from cyborg.tests.unit.rpc.endpoints import endpoint

HOST = {"host": "compute-1", "epoch": 1}


@pytest.mark.parametrize("context", [{}, {"sender": ""}, {"sender": None}, {"sender": ["x"]}])
def test_first_request_without_a_sender_of_each_verb_is_logged(
    context: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    conductor: Any = endpoint(CONDUCTOR_TOPIC)
    for _ in range(3):
        for verb in ("desired", "unit_uses"):
            error = getattr(conductor, verb)(context, **HOST)["error"]
            assert error["type"] == "Forbidden"
            assert error["fields"] == {"reason": f"The request {verb} names no sender."}
    assert [record.getMessage().partition(" over")[0] for record in caplog.records] == [
        "Request desired",
        "Request unit_uses",
    ]
    assert conductor.desired({"sender": "cyborg-agent@compute-1"}, **HOST) == {"ok": None}


def test_refusal_of_an_agent_is_logged_again_after_an_accepted_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conductor: Any = endpoint(CONDUCTOR_TOPIC)
    context = {"sender": "cyborg-agent@compute-2"}
    own = HOST | {"host": "compute-2"}
    for arguments in (HOST, HOST, own, HOST):
        conductor.desired(context, **arguments)
    line = (
        "Sender cyborg-agent@compute-2: request desired over the message bus refused: "
        "cyborg-agent@compute-2 cannot speak for host compute-1."
    )
    assert [record.getMessage() for record in caplog.records] == [line, line]

# SPDX-License-Identifier: Apache-2.0
"""A conductor lets others go first after some failures of its database, until it works again."""

import logging

import pytest

from cyborg import exception
from cyborg.conductor.standby import Standby
from cyborg.rpc.rabbit import Precedence

FAILURE = exception.DatabaseUnavailable(peer="The database", reason="WSREP is not ready (1047)")


def test_others_go_first_after_three_failures_until_a_heartbeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    precedence = Precedence()
    standby = Standby(precedence)

    def is_last() -> bool:
        return precedence.is_last

    def fail() -> None:
        raise FAILURE

    def succeed() -> None:
        standby.heartbeat(lambda: None)

    for _ in range(2):
        standby.failed(FAILURE)
        with pytest.raises(exception.DatabaseUnavailable):
            standby.heartbeat(fail)
        assert not is_last()
        succeed()
    assert caplog.messages == []
    for _ in range(5):
        standby.failed(FAILURE)
    assert is_last()
    (warning,) = caplog.messages
    assert "WSREP is not ready (1047)" in warning
    succeed()
    assert not is_last()
    succeed()
    assert len(caplog.messages) == 2

# SPDX-License-Identifier: Apache-2.0
"""The states of a device: every event in every state."""

from itertools import product

import pytest

from cyborg.model.device import DEVICE_STATES, MOVES, DeviceEvent, DeviceStatus

S, E = DeviceStatus, DeviceEvent
#: Where each event leads; what is not here cannot happen.
LEADS = {
    (S.INACTIVE, E.ENABLE): S.ENABLED,
    (S.ENABLED, E.ENABLE): S.ENABLED,
    (S.MAINTAINING, E.ENABLE): S.ENABLED,
    (S.FAILED, E.ENABLE): S.ENABLED,
    (S.INACTIVE, E.INSTALL): S.INSTALLING,
    (S.MAINTAINING, E.INSTALL): S.INSTALLING,
    (S.FAILED, E.INSTALL): S.INSTALLING,
    (S.ENABLED, E.REINSTALL): S.INSTALLING,
    (S.INSTALLING, E.FINISH): S.ENABLED,
    (S.INSTALLING, E.FAIL): S.FAILED,
    (S.INACTIVE, E.DISABLE): S.MAINTAINING,
    (S.INSTALLING, E.DISABLE): S.MAINTAINING,
    (S.ENABLED, E.DISABLE): S.MAINTAINING,
    (S.MAINTAINING, E.DISABLE): S.MAINTAINING,
    (S.FAILED, E.DISABLE): S.MAINTAINING,
    (S.ENABLED, E.DRAIN): S.DRAINING,
    (S.MAINTAINING, E.DRAIN): S.DRAINING,
    (S.DRAINING, E.DRAIN): S.DRAINING,
    (S.DRAINING, E.ENABLE): S.ENABLED,
    (S.DRAINING, E.INSTALL): S.INSTALLING,
    (S.DRAINING, E.DISABLE): S.MAINTAINING,
}


@pytest.mark.parametrize(("status", "event"), list(product(S, E)))
def test_every_status_and_event_pair_has_the_listed_target(
    status: DeviceStatus, event: DeviceEvent
) -> None:
    move = MOVES[event]
    leads = move.target if status in move.sources else None
    assert leads is LEADS.get((status, event))


def test_status_words_are_those_of_the_api() -> None:
    words = ("inactive", "installing", "enabled", "maintaining", "draining", "failed")
    assert (*words, "drained", "lost") == DEVICE_STATES

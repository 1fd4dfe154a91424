# SPDX-License-Identifier: Apache-2.0
"""What agents answer is taken for an answer only if it is one to what was asked."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cyborg import exception
from cyborg.model import wire
from cyborg.model.work import Discovered, DiscoveryTask, InstallTask, Outcome
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.transport import Bus
from cyborg.rpc.verbs import Discover, Install
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.rpc.test_line import FakeBus

ASKED = DiscoveryTask("mine")
SETTING_UP = InstallTask("mine", "driver", "key")


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus()


@pytest.fixture
def agents(bus: FakeBus) -> Iterator[AgentClient]:
    made = AgentClient(cast(Bus, bus), timeout=PATIENCE)
    yield made
    made.close()


def says(answer: Any) -> Callable[..., Any]:
    return lambda **_arguments: {"ok": answer}


def test_answer_of_agent_is_read(agents: AgentClient, bus: FakeBus) -> None:
    answer = Discovered("mine", done=False)
    bus.behaviours = [says(wire.dump(answer)), says(wire.dump(Outcome("mine")))]
    assert agents.request("host-1", Discover(ASKED)) == answer
    assert agents.request("host-1", Install(SETTING_UP)) == Outcome("mine")


MINE = wire.dump(Discovered("mine"))
INVALID = [
    *(wire.dump(Discovered("another")), wire.dump(Outcome("mine")), {**MINE, "version": 2}),
    {**MINE, "body": {"request_key": "mine", "done": "yes"}},
    {**MINE, "body": {"request_key": "mine", "drivers": [{"name": 7}]}},
    *("READY", None),
]


@pytest.mark.parametrize("answer", INVALID)
def test_invalid_answer_of_agent_is_refused(
    agents: AgentClient, bus: FakeBus, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus.behaviours = [says(answer)]
    with caplog.at_level(logging.WARNING), pytest.raises(exception.Invalid):
        agents.request("host-1", Discover(ASKED))
    assert "Answer of the agent on host host-1 to discovery refused" in caplog.text


@pytest.mark.parametrize(
    ("within", "timeout"), [(None, PATIENCE), (2 * PATIENCE, PATIENCE), (0.5, 0.5)]
)
def test_agent_is_waited_for_no_longer_than_its_caller_can(
    agents: AgentClient, bus: FakeBus, within: float | None, timeout: float
) -> None:
    bus.behaviours = [says(wire.dump(Discovered("mine")))]
    agents.request("host-1", Discover(ASKED), within=within)
    ((_, prepared, *_),) = bus.calls
    assert prepared["timeout"] == timeout

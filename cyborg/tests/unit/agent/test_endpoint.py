# SPDX-License-Identifier: Apache-2.0
"""The agent's door: who has been superseded touches no hardware."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.endpoint import Endpoint
from cyborg.agent.operations import Operations
from cyborg.agent.state_store import OperationJournal, StateFiles
from cyborg.clients.glance import Glance
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Outcome, ProgramTask
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.transport import AGENT_TOPIC
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.direct import DirectBus, Exchange
from cyborg.tests.unit.agent.world import World

HANDLE = HandleTask("o1", "noting", "0", "unit", "k", "h")
IMAGE = ProgramTask("o2", "noting", "0", "unit", "image")


class NotingDriver(Driver):
    """Notes what it is asked to do."""

    name = "noting"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.calls: list[str] = []

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return []

    def prepare(self, task: HandleTask) -> None:
        self.calls.append("prepare")

    def release(self, task: HandleTask) -> None:
        self.calls.append("release")


@pytest.fixture
def driver() -> NotingDriver:
    return NotingDriver()


@pytest.fixture
def world() -> World:
    return World(epoch=2)


@pytest.fixture
def agent(driver: NotingDriver, world: World, tmp_path: Path) -> Iterator[AgentClient]:
    """The verbs of an agent whose first round is over: it is of epoch 2."""

    def no_glance() -> Glance:
        raise exception.Unavailable(peer="Glance", reason="nobody has it here")

    operations = Operations(
        drivers={driver.name: driver},
        journal=OperationJournal(StateFiles(tmp_path), "host"),
        glance=no_glance,
        images=tmp_path,
        patience=10.0,
        look_again=lambda: None,
    )
    loop = world.loop()
    exchange = Exchange()
    endpoint = Endpoint(
        operations, discoveries=world.discoveries, on_poke=loop.run_once, check=loop.check
    )
    DirectBus(exchange).server(AGENT_TOPIC, "host", endpoint).start()
    client = AgentClient(DirectBus(exchange), timeout=10.0)
    client.poke("host")
    assert client.prepare("host", HANDLE, within=5.0) == Outcome("o1")
    driver.calls.clear()
    yield client
    client.close()
    operations.stop()


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_its_own_work_is_done(agent: AgentClient, driver: NotingDriver, epoch: int) -> None:
    task = replace(HANDLE, operation="o3", agent_epoch=epoch)
    assert agent.release("host", task) == Outcome("o3")
    assert driver.calls == ["release"]


def test_that_of_its_successor_is_refused(
    agent: AgentClient, driver: NotingDriver, world: World
) -> None:
    assert world.hellos
    later = replace(HANDLE, operation="o3", agent_epoch=3)
    with pytest.raises(
        exception.StaleEpoch, match=r"\(epoch 3\); the process with epoch 2 is replaced"
    ):
        agent.prepare("host", later, within=5.0)
    with pytest.raises(exception.StaleEpoch):
        agent.release("host", later)
    with pytest.raises(exception.StaleEpoch):
        agent.program("host", replace(IMAGE, agent_epoch=3))
    assert driver.calls == []

# SPDX-License-Identifier: Apache-2.0
"""The agent's RPC endpoint: an agent that was superseded does not call its drivers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.endpoint import Endpoint
from cyborg.agent.state_store import StateStore, TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver, ImageFile, Progress, no_progress
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Outcome, ProgramTask
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.transport import AGENT_TOPIC
from cyborg.rpc.verbs import DesiredChanged, Prepare, Program, Release
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.agent.fake_peers import FakePeers

HANDLE = HandleTask("o1", "recording", "0", "unit", "k", "h")
IMAGE = ProgramTask("o2", "recording", "0", "unit", "image")


class RecordingDriver(Driver):
    """A driver that records its calls."""

    name = "recording"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.calls: list[str] = []

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.calls.append("prepare")

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self.calls.append("release")


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver()


@pytest.fixture
def agent(driver: RecordingDriver, tmp_path: Path) -> Iterator[AgentClient]:
    """A client of an agent with epoch 2."""
    peers = FakePeers(epoch=2)

    def no_glance() -> Glance:
        raise exception.Unavailable(peer="Glance", reason="not available here")

    tasks = DeviceTasks(
        drivers={driver.name: driver},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=no_glance,
        images=tmp_path,
        timeout=PATIENCE,
        request_scan=lambda: None,
        worker=Worker(),
    )
    agent = peers.agent()
    exchange = Exchange()
    endpoint = Endpoint(
        tasks,
        discoveries=peers.discoveries,
        on_desired_changed=agent.run_once,
        check=agent.heartbeats.check,
    )
    DirectBus(exchange).server(AGENT_TOPIC, "host", endpoint).start()
    client = AgentClient(DirectBus(exchange), timeout=PATIENCE)
    client.cast("host", DesiredChanged())
    assert client.request("host", Prepare(HANDLE), within=5.0) == Outcome("o1")
    assert peers.heartbeats
    driver.calls.clear()
    yield client
    client.close()
    tasks.stop()


def test_only_a_task_of_a_later_agent_is_refused(
    agent: AgentClient, driver: RecordingDriver
) -> None:
    later = replace(HANDLE, request_key="later", agent_epoch=3)
    refused = r"\(epoch 3\); the process with epoch 2 is replaced"
    with pytest.raises(exception.StaleEpoch, match=refused):
        agent.request("host", Prepare(later), within=5.0)
    with pytest.raises(exception.StaleEpoch):
        agent.request("host", Release(later))
    with pytest.raises(exception.StaleEpoch):
        agent.request("host", Program(replace(IMAGE, agent_epoch=3)))
    assert driver.calls == []
    for epoch in (0, 1, 2):
        task = replace(HANDLE, request_key=f"r{epoch}", agent_epoch=epoch)
        assert agent.request("host", Release(task)) == Outcome(f"r{epoch}")
    assert driver.calls == ["release"] * 3

# SPDX-License-Identifier: Apache-2.0
"""The daemons as a service manager has them: ready, alive, at an end, and where their lines go."""

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cyborg
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.service_manager import SimulatedManager

NOWHERE = "rabbit://guest:guest@127.0.0.1:1/"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[SimulatedManager]:
    with SimulatedManager(tmp_path, watchdog=0.9) as listening:
        yield listening


@pytest.mark.parametrize("name", [API, CONDUCTOR, AGENT])
def test_daemon_notifies_ready_watchdog_and_stopping(
    deploy: Callable[..., Deployment], alone: Options, manager: SimulatedManager, name: str
):
    program = deploy(alone).begin(name, **manager.environment)
    assert manager.hears("READY=1"), program.output
    assert manager.told[0].startswith("STATUS=Running")
    assert manager.hears("WATCHDOG=1", times=3)
    program.signal(signal.SIGHUP)
    assert manager.hears("WATCHDOG=1", times=manager.signs + 2)
    assert program.stop() == 0
    assert manager.hears("STATUS=Finishing")
    assert manager.told[-2:] == ["STOPPING=1", "STATUS=Finishing the current work"]


def test_agent_without_broker_is_ready_and_states_its_reason(
    deploy: Callable[..., Deployment], alone: Options, manager: SimulatedManager
):
    nowhere = {"DEFAULT": {"transport_url": NOWHERE}}
    program = deploy(alone, nowhere).begin(AGENT, **manager.environment)
    assert manager.hears("READY=1"), program.output
    status, ready = manager.told[:2]
    assert status.startswith("STATUS=Receives no requests: the message bus at 127.0.0.1:1 cannot")
    assert ready == "READY=1"
    assert manager.hears("WATCHDOG=1", times=2)
    assert program.stop() == 0


def test_daemon_starts_with_logging_sample(deploy: Callable[..., Deployment], alone: Options):
    sample = Path(cyborg.__file__).parents[1] / "etc" / "cyborg" / "logging.conf.sample"
    deployment = deploy(alone)
    program = deployment.start(
        API, "--config-file", str(deployment.conf), "--log-config-append", str(sample)
    )
    line = program.wait_for(r"(?m)^.* cyborg-api is running$")[0]
    assert re.match(r"\d{4}-\d\d-\d\d [\d:.]+ \d+ INFO cyborg\.service \[-\] ", line)
    assert program.stop() == 0

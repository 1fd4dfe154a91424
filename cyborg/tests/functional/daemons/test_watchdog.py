# SPDX-License-Identifier: Apache-2.0
"""What a service manager hears of a real agent that begins anew, and of one that is stuck."""

from collections.abc import Callable
from pathlib import Path

import cyborg
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.processes import Deployment
from cyborg.tests.fixtures.service_manager import SimulatedManager
from cyborg.tests.functional.daemons.service import Http

#: A driver whose maker thought of a program of his own: it ends whoever asks it.
RUDE = """
import pathlib, sys
from cyborg.drivers.fake import FakeDriver

class RudeDriver(FakeDriver):
    name = "rude"

    def discover(self, context):
        if pathlib.Path(__file__).with_name("rude").exists():
            sys.exit("no card, no work")
        return super().discover(context)
"""


def test_agent_sends_no_watchdog_after_its_loop_ends(
    deploy: Callable[..., Deployment], tmp_path: Path
):
    package = tmp_path / "rude-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    entry = "[cyborg.accelerator.driver]\nrude = rude_driver:RudeDriver\n"
    (package / "entry_points.txt").write_text(entry)
    (tmp_path / "rude_driver.py").write_text(RUDE)
    deployment = deploy({"agent": {"enabled_drivers": "rude"}})
    deployment.conductor()
    path = f"{tmp_path}:{Path(cyborg.__file__).parents[1]}"
    with SimulatedManager(watchdog=0.9) as manager:
        program = deployment.begin(AGENT, PYTHONPATH=path, **manager.environment)
        assert manager.hears("WATCHDOG=1"), program.output
        program.wait_for(r"Reported 1 device")
        (tmp_path / "rude").touch()
        assert manager.hears("STATUS=Stuck: inventory has ended"), program.output
        assert manager.silent(2.0)
        assert program.running
    assert "Only a restart helps" in program.output


def test_restarted_agent_notifies_ready_again(deploy: Callable[..., Deployment]):
    deployment = deploy()
    deployment.conductor()
    _, url = deployment.api()
    with SimulatedManager(watchdog=3) as manager:
        program = deployment.begin(AGENT, **manager.environment)
        program.wait_for(r"Reported 1 device")
        over = Http(url, version="2.4").ended("PATCH", "/drivers/fake_driver", {})
        assert over["state"] == "succeeded"
        assert manager.hears("READY=1", times=2), program.output
        assert manager.told.index("RELOADING=1") > manager.told.index("READY=1")
        assert "STOPPING=1" not in manager.told
        assert program.running

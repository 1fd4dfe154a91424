# SPDX-License-Identifier: Apache-2.0
"""A real agent under a service manager: it needs no privilege, begins anew, and shows when stuck.

Check 124 of a drop-in replacement: no privilege, whatever the options say. Run by root, the test
gives all of root's rights away for it; run by somebody else, it has none.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cyborg
from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options, Program, script
from cyborg.tests.fixtures.service_manager import SimulatedManager
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import Http
from cyborg.tests.unit import test_packaging

NOBODY = 65534
PAPER = "0000:3b:00.0"
OWN: Options = {
    "agent": {"enabled_drivers": "rude,pci_driver,generic_driver"},
    "pci": {"passthrough_whitelist": '{"vendor_id": "10de", "product_id": "20b5"}'},
    "generic_driver": {"backends": "paper"},
    "generic_driver:paper": {
        "devices": PAPER,
        "attach_type": "TEST_PCI",
        "resource_class": "CUSTOM_PAPER",
    },
    # What the existing service had for its helper.
    "cyborg_sys_admin": {
        "helper_command": "sudo privsep-helper --config-file /etc/cyborg/cyborg.conf",
        "user": "root",
        "capabilities": "CAP_SYS_ADMIN,CAP_DAC_OVERRIDE",
    },
}
#: A driver whose author takes the interrupt of a terminal for an error: it ends the thread that
#: constructs it. Other errors of drivers, and their exits, end nothing.
RUDE = """
import pathlib
from cyborg.drivers.fake import FakeDriver

class RudeDriver(FakeDriver):
    name = "rude"

    def __init__(self, host, conf):
        if pathlib.Path(__file__).with_name("rude").exists():
            raise KeyboardInterrupt("no card, no work")
        super().__init__(host, conf)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with the driver, and a state directory of nobody."""
    directory = Path(tempfile.mkdtemp(prefix="cyborg-unprivileged-"))
    directory.chmod(0o755)
    state, package = directory / "state", directory / "rude-1.0.dist-info"
    for one in (state, package):
        one.mkdir()
    if os.geteuid() == 0:
        os.chown(state, NOBODY, NOBODY)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    entry = "[cyborg.accelerator.driver]\nrude = rude_driver:RudeDriver\n"
    (package / "entry_points.txt").write_text(entry)
    (directory / "rude_driver.py").write_text(RUDE)
    yield directory
    shutil.rmtree(directory)


def without_privileges(command: list[str]) -> list[str]:
    """The command as a user who is nobody, without capabilities and ways to new ones."""
    if os.geteuid() != 0:
        return command
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *user, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", *command]


def rights(pid: int) -> dict[str, str]:
    """What the kernel says about a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def all_up(http: Http, host: str) -> bool:
    services = http.get(f"/services?kind=process&host={host}")["services"]
    return all(one["state"] == "up" for one in services)


@pytest.fixture
def deployment(options: Options, place: Path) -> Iterator[Deployment]:
    own = deployments.merged(options, OWN, {"DEFAULT": {"state_path": place / "state"}})
    with Deployment(place, own) as made:
        yield made


def test_agent_without_privileges_reports_and_one_that_is_stuck_says_so(
    deployment: Deployment, host: str, placement: PlacementService, place: Path
):
    deployment.conductor()
    http = Http(deployment.api()[1], version="2.100")
    path = {"PYTHONPATH": f"{place}:{Path(cyborg.__file__).parents[1]}"}
    with SimulatedManager(watchdog=0.9) as manager:
        agent = Program(
            without_privileges([script(AGENT), "--config-file", str(deployment.conf)]),
            log=place / "agent.out",
            environment={**deployment.environment, **manager.environment, **path},
        )
        try:
            assert manager.hears("READY=1"), agent.output
            has = rights(agent.pid)
            assert has["Uid"].split()[1] == str(os.geteuid() or NOBODY)
            assert int(has["CapEff"], 16) == 0
            provider = provider_uuid(f"{host.replace('.', '_')}_FakeDevice")
            eventually(lambda: offered(placement, provider) == 16, lambda: agent.output)
            devices = http.get(f"/devices?hostname={host}")["devices"]
            assert len(devices) == 2, agent.output
            drivers = http.get("/drivers")["drivers"]
            assert {one["name"]: one["state"] for one in drivers} == {
                # They are installed, as their hardware shows, and not enabled.
                **dict.fromkeys(test_packaging.DRIVERS, "STOPPED"),
                "rude": "READY",
                "generic_driver": "READY",
                "pci_driver": "READY",
            }
            assert sorted(one.name for one in (place / "state").iterdir())
        finally:
            assert agent.stop() == 0, agent.output
    assert "no longer has any effect" in agent.output

    # The next one has its rights: nobody may not enter where the interpreters of some tests are.
    with SimulatedManager(watchdog=0.9) as manager:
        agent = deployment.begin(AGENT, **manager.environment, **path)
        assert manager.hears("READY=1"), agent.output
        eventually(lambda: all_up(http, host), lambda: agent.output)
        over = http.ended("PATCH", "/drivers/rude", {})
        assert (over["state"], over["steps"][1]["name"]) == ("succeeded", "reloaded"), over
        assert manager.hears("READY=1", times=2), agent.output
        assert manager.told.index("RELOADING=1") > manager.told.index("READY=1")
        assert "STOPPING=1" not in manager.told
        # It has the same pid.
        assert agent.running
        assert agent.output.count("cyborg-agent is running") == 2
        assert http.get(f"/devices?hostname={host}")["devices"] == devices

        assert manager.hears("WATCHDOG=1"), agent.output
        (place / "rude").touch()
        os.kill(agent.pid, signal.SIGHUP)
        assert manager.hears("STATUS=Stuck: inventory has ended"), agent.output
        assert manager.silent(2.0)
        assert agent.running
        # It is told the manager first, and logged then.
        agent.wait_for("Only a restart helps")

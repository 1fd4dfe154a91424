# SPDX-License-Identifier: Apache-2.0
"""Check 124 of a drop-in replacement: the agent needs no privilege, whatever the options say.

Run by root, the tests give all of root's rights away for it; run by somebody else, they have none.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg import service as runner
from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options, Program, script
from cyborg.tests.fixtures.service_manager import SimulatedManager
from cyborg.tests.functional import deployments
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import Http

NOBODY = 65534
PAPER = "0000:3b:00.0"
OWN: Options = {
    "agent": {"enabled_drivers": "fake_driver,pci_driver,generic_driver"},
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


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with a state directory that is nobody's."""
    directory = Path(tempfile.mkdtemp(prefix="cyborg-unprivileged-"))
    directory.chmod(0o755)
    state = directory / "state"
    state.mkdir()
    if os.geteuid() == 0:
        os.chown(state, NOBODY, NOBODY)
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


def test_agent_without_privileges_discovers_and_reports(
    options: Options, host: str, placement: PlacementService, place: Path
):
    own = deployments.merged(options, OWN, {"DEFAULT": {"state_path": place / "state"}})
    with Deployment(place, own) as deployment, SimulatedManager() as manager:
        deployment.conductor()
        http = Http(deployment.api()[1], version="2.4")
        agent = Program(
            without_privileges([script(AGENT), "--config-file", str(deployment.conf)]),
            log=place / "agent.out",
            environment={**deployment.environment, **manager.environment},
        )
        try:
            assert manager.hears("READY=1"), agent.output
            has = rights(agent.pid)
            assert has["Uid"].split()[1] == str(os.geteuid() or NOBODY)
            assert int(has["CapEff"], 16) == 0
            provider = provider_uuid(f"{host.replace('.', '_')}_FakeDevice")
            assert runner.wait_until(lambda: offered(placement, provider) == 16, timeout=30)
            devices = http.get(f"/devices?hostname={host}")["devices"]
            assert len(devices) == 2, agent.output
            drivers = http.get("/drivers")["drivers"]
            assert {one["name"]: one["state"] for one in drivers} == {
                "fake_driver": "READY",
                "generic_driver": "READY",
                "pci_driver": "READY",
            }
            assert sorted(one.name for one in (place / "state").iterdir())
        finally:
            assert agent.stop() == 0, agent.output
    assert "no longer has any effect" in agent.output

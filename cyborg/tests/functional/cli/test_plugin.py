# SPDX-License-Identifier: Apache-2.0
"""The commands inside the ``openstack`` client: the same requests, the same ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cyborg
from cyborg.cli.catalogue import COMMANDS
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.functional.keystone.shell import Shell
from cyborg.tests.unit.cli.service import Answer, Service, fault, operation, result
from cyborg.tests.unit.cli.test_requests import SENT

ROOT = str(Path(cyborg.__file__).resolve().parent.parent)
#: The command lines of the other program that this one has, too, with their names here.
LINES = {
    line: f"{COMMANDS[name].plugin} {rest}"
    for line, (name, _, rest) in ((line, line.partition(" ")) for line in SENT)
    if COMMANDS[name].plugin
}


@pytest.fixture(scope="module")
def service() -> Service:
    """What the commands talk to."""
    return Service()


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    """Where it listens."""
    with Loopback(service) as loopback:
        yield f"{loopback.url}/v2"


@pytest.fixture(scope="module")
def openstack(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell whose client finds the package that is tested."""
    options = ["--os-auth-type", "none", "--os-endpoint", url]
    home = tmp_path_factory.mktemp("home")
    with Shell(home, options, overlook="cyborgclient", PYTHONPATH=ROOT) as shell:
        yield shell


@pytest.mark.parametrize("line", LINES)
def test_it_sends_what_the_program_sends(line: str, openstack: Shell, service: Service):
    service.asked.clear()
    status, out, err = openstack.run(LINES[line])
    assert status == 0, out + err
    (asked,) = service.asked
    assert (asked.method, asked.path, asked.query, asked.body) == SENT[line]
    assert asked.version == "accelerator 2.5"


def test_every_command_of_the_issue_is_there():
    assert {entry.plugin for entry in COMMANDS.values() if entry.plugin} >= {
        "accelerator service list",
        "accelerator driver install",
        "accelerator discover",
        "accelerator hardware list",
        "accelerator attach",
        "accelerator detach",
    }


def test_a_host_that_failed_fails_the_command(openstack: Shell, service: Service):
    usual = service.course
    service.course = [operation("failed", result("b", "failed", error="not installed"))]
    complaint = openstack.fails("accelerator driver install fake_driver")
    service.course = usual
    assert "b: not installed" in complaint


def test_the_service_and_the_command_say_what_is_wrong(openstack: Shell, service: Service):
    service.answers["/drivers"] = [Answer(403, fault("Not yours."))]
    complaint = openstack.fails("accelerator driver list")
    assert "Not yours (HTTP 403)." in complaint
    assert "accelerator_operator" in complaint


def test_lists_are_lists(openstack: Shell):
    (one,) = openstack.show("accelerator driver list")
    assert one["name"] == "fake_driver"


def test_both_programs_start_from_a_real_shell(url: str, tmp_path: Path):
    options = ["--os-auth-type", "none", "--os-endpoint", url]
    bare = {"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": ROOT, "LC_ALL": "C.UTF-8"}
    shown = []
    for module, command in (
        ("cyborg.cli.shell", "driver-list"),
        ("openstackclient.shell", "accelerator driver list"),
    ):
        ran = subprocess.run(
            [sys.executable, "-P", "-m", module, *options, *command.split(), "-f", "json"],
            env=bare,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        shown.append(json.loads(ran.stdout))
    assert shown[0] == shown[1]

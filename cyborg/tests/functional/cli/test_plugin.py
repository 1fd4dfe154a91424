# SPDX-License-Identifier: Apache-2.0
"""The commands in the ``openstack`` client: same requests, results and errors as the program."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cyborg_cli
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.waiting import ran
from cyborg.tests.functional.keystone.shell import Shell
from cyborg.tests.unit.cli.service import Answer, Service, error_body, operation, result
from cyborg.tests.unit.cli.test_requests import SENT
from cyborg_cli.shell import COMMANDS

ROOT = str(Path(cyborg_cli.__file__).resolve().parent.parent)
#: The command line in the ``openstack`` client for each line of the program that has one.
LINES = {
    line: f"{COMMANDS[name].openstack_name} {rest}"
    for line, (name, _, rest) in ((line, line.partition(" ")) for line in SENT)
    if COMMANDS[name].openstack_name
}


@pytest.fixture(scope="module")
def service() -> Service:
    return Service()


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with Loopback(service) as loopback:
        yield f"{loopback.url}/v2"


@pytest.fixture(scope="module")
def openstack(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell whose ``openstack`` client uses the package under test."""
    options = ["--os-auth-type", "none", "--os-endpoint", url]
    home = tmp_path_factory.mktemp("home")
    with Shell(home, options, overlook="cyborgclient", PYTHONPATH=ROOT) as shell:
        yield shell


@pytest.mark.parametrize("line", LINES)
def test_plugin_sends_the_same_request_as_the_program(
    line: str, openstack: Shell, service: Service
):
    service.requests.clear()
    status, out, err = openstack.run(LINES[line])
    assert status == 0, out + err
    (request,) = service.requests
    assert (request.method, request.path, request.query, request.body) == SENT[line]
    assert request.version == "accelerator 2.100"


def test_plugin_command_fails_when_one_host_failed(openstack: Shell, service: Service):
    default_states = service.operation_states
    service.operation_states = [operation("failed", result("b", "failed", error="not installed"))]
    message = openstack.fails("accelerator driver install fake_driver")
    service.operation_states = default_states
    assert "b: not installed" in message


def test_plugin_error_shows_service_message_and_advice(openstack: Shell, service: Service):
    service.answers["/drivers"] = [Answer(403, error_body("Not yours."))]
    message = openstack.fails("accelerator driver list")
    assert "Not yours (HTTP 403)." in message
    assert "accelerator_operator" in message


def test_both_programs_start_as_processes_with_equal_output(url: str, tmp_path: Path):
    options = ["--os-auth-type", "none", "--os-endpoint", url]
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.defpath,
        "PYTHONPATH": ROOT,
        "LC_ALL": "C.UTF-8",
    }
    outputs = []
    for module, command in (
        ("cyborg_cli.shell", "driver-list"),
        ("openstackclient.shell", "accelerator driver list"),
    ):
        outcome = ran(
            [sys.executable, "-P", "-m", module, *options, *command.split(), "-f", "json"],
            env=environment,
        )
        assert (outcome.returncode, outcome.stderr) == (0, "")
        outputs.append(json.loads(outcome.stdout))
    assert outputs[0] == outputs[1]

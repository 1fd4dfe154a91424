# SPDX-License-Identifier: Apache-2.0
"""The microversion of requests: the newest common one, or the one that the user selects."""

from pathlib import Path

import pytest

from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import DEVICE, Answer, Service, error_body

OPTION = "--os-accelerator-api-version"
REASON = f"accelerator-update {DEVICE} --status maintaining --reason fans"


def _unsupported(maximum: str) -> Answer:
    headers = {"OpenStack-API-Maximum-Version": maximum}
    return Answer(406, error_body("Version 2.100 is not supported."), headers)


@pytest.mark.parametrize(
    ("maximum", "version"),
    # The existing service may give 2.4 to 2.99 any meaning.
    [("2.0", "2.0"), ("2.3", "2.3"), ("2.4", "2.3"), ("2.99", "2.3")],
)
def test_request_is_repeated_with_newest_microversion_of_service_without_2_100(
    maximum: str, version: str, cyborg: Run, service: Service
):
    service.answers["/devices"] = [_unsupported(maximum)]
    outcome = cyborg("accelerator-list")
    assert outcome.status == 0, outcome.err
    assert [request.version for request in service.requests] == [
        "accelerator 2.100",
        f"accelerator {version}",
    ]


@pytest.mark.parametrize(
    ("path", "command", "newest", "needed"),
    [
        ("/services", "service-list", "2.3", "2.100"),
        ("/services", "service-list", "2.9", "2.100"),
        ("/devices", "accelerator-list --label rack=7", "2.99", "2.100"),
        (f"/devices/{DEVICE}", REASON, "2.3", "2.100"),
        ("/drivers", f"{OPTION} 2.101 driver-list", "2.100", "2.101"),
    ],
)
def test_command_fails_when_service_lacks_the_needed_microversion(
    path: str, command: str, newest: str, needed: str, cyborg: Run, service: Service
):
    service.answers[path] = [_unsupported(newest)]
    outcome = cyborg(command)
    assert (outcome.status, len(service.requests)) == (1, 1)
    assert f"up to {newest}, and the command needs {needed}. Upgrade cyborg-api" in outcome.err


@pytest.mark.parametrize(
    ("word", "sent"),
    [("2.100", "2.100"), ("2.117", "2.117"), ("2", "2.100"), ("latest", "latest")],
)
def test_selected_microversion_is_sent(word: str, sent: str, cyborg: Run, service: Service):
    outcome = cyborg(f"{OPTION} {word} driver-list")
    assert outcome.status == 0, outcome.err
    assert [request.version for request in service.requests] == [f"accelerator {sent}"]


def test_microversion_is_read_from_variable_and_clouds_yaml(
    program: Run,
    cyborg: Run,
    url: str,
    service: Service,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "clouds.yaml").write_text(
        f"clouds: {{test: {{auth_type: none, auth: {{endpoint: '{url}'}}, "
        "accelerator_default_microversion: '2.100'}}"
    )
    program("--os-cloud", "test", "driver-list")
    assert service.last.version == "accelerator 2.100"
    monkeypatch.setenv("OS_ACCELERATOR_API_VERSION", "2.3")
    cyborg("accelerator-list")
    assert service.last.version == "accelerator 2.3"


@pytest.mark.parametrize(
    ("command", "selected"),
    [
        ("driver-list", "2.3"),
        ("driver-list", "2.9"),
        ("driver-list", "2.99"),
        ("accelerator-list --label rack=7", "2.3"),
        (f"accelerator-update {DEVICE} --status ready", "2.3"),
        (REASON, "2.3"),
        ("discover-services --driver fake_driver --setup", "2.3"),
    ],
)
def test_command_fails_when_selected_microversion_is_too_old(
    command: str, selected: str, cyborg: Run, service: Service
):
    outcome = cyborg(f"{OPTION} {selected} {command}")
    assert (outcome.status, service.requests) == (1, [])
    assert outcome.err.endswith(
        f"needs microversion 2.100, and {OPTION} is {selected}. Set it to 2.100 or later, or "
        "remove the option.\n"
    )


def test_invalid_microversion_is_rejected(cyborg: Run, service: Service):
    for word in ("1", "3.0", "2.05", "newest"):
        outcome = cyborg(f"{OPTION} {word} driver-list")
        assert (outcome.status, service.requests) == (1, [])
        assert f"'{word}' is not a microversion" in outcome.err

# SPDX-License-Identifier: Apache-2.0
"""The microversion of the requests: the newest in common, or the one that the user names."""

from pathlib import Path

import pytest

from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import DEVICE, Answer, Service, fault

OPTION = "--os-accelerator-api-version"


def _older(maximum: str) -> Answer:
    headers = {"OpenStack-API-Maximum-Version": maximum}
    return Answer(406, fault("Version 2.5 is not supported."), headers)


def _options(url: str) -> tuple[str, ...]:
    return ("--os-auth-type", "none", "--os-endpoint", url)


def test_an_older_service_is_asked_again_with_its_newest_version(cyborg: Run, service: Service):
    service.answers["/drivers"] = [_older("2.4")]
    ran = cyborg("install-driver fake_driver --no-wait")
    assert ran.status == 0, ran.err
    assert [one.version for one in service.asked] == ["accelerator 2.5", "accelerator 2.4"]
    assert service.asked[0].operation == service.asked[1].operation


def test_a_command_that_needs_more_than_the_service_has_says_so(cyborg: Run, service: Service):
    service.answers[f"/devices/{DEVICE}"] = [_older("2.4")]
    ran = cyborg(f"accelerator-update {DEVICE} --status maintaining --reason fans")
    assert (ran.status, len(service.asked)) == (1, 1)
    assert "up to 2.4, and the command needs 2.5: upgrade cyborg-api first" in ran.err


@pytest.mark.parametrize(
    ("word", "sent"),
    [("2.4", "2.4"), ("2.5", "2.5"), ("2.17", "2.17"), ("2", "2.5"), ("latest", "latest")],
)
def test_the_version_that_is_named_is_sent(
    word: str, sent: str, program: Run, url: str, service: Service
):
    ran = program(*_options(url), OPTION, word, "driver-list")
    assert ran.status == 0, ran.err
    assert [one.version for one in service.asked] == [f"accelerator {sent}"]


def test_a_variable_and_a_file_name_the_version_too(
    program: Run, url: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "clouds.yaml").write_text(
        f"clouds: {{test: {{auth_type: none, auth: {{endpoint: '{url}'}}, "
        "accelerator_default_microversion: '2.4'}}"
    )
    program("--os-cloud", "test", "driver-list")
    assert service.last.version == "accelerator 2.4"
    monkeypatch.setenv("OS_ACCELERATOR_API_VERSION", "2.3")
    program(*_options(url), "accelerator-list")
    assert service.last.version == "accelerator 2.3"


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("driver-list", "2.4"),
        (f"accelerator-update {DEVICE} --status ready", "2.4"),
        (f"accelerator-update {DEVICE} --status maintaining --reason fans", "2.5"),
        ("discover-services --driver fake_driver --setup", "2.5"),
    ],
)
def test_what_needs_a_later_version_than_the_one_named_is_refused(
    command: str, needed: str, program: Run, url: str, service: Service
):
    chosen = "2.3" if needed == "2.4" else "2.4"
    ran = program(*_options(url), OPTION, chosen, *command.split())
    assert (ran.status, service.asked) == (1, [])
    assert ran.err.endswith(
        f"needs microversion {needed}, and {OPTION} is {chosen}: give {needed} or later, or leave "
        "the option out.\n"
    )


@pytest.mark.parametrize("word", ["1", "3.0", "2.05", "newest"])
def test_a_word_that_is_not_a_version_is_refused(
    word: str, program: Run, url: str, service: Service
):
    ran = program(*_options(url), OPTION, word, "driver-list")
    assert (ran.status, service.asked) == (1, [])
    assert f"{word} is not a microversion" in ran.err


def test_a_version_that_the_service_does_not_speak_is_named(
    program: Run, url: str, service: Service
):
    service.answers["/drivers"] = [_older("2.5")]
    ran = program(*_options(url), OPTION, "2.9", "driver-list")
    assert (ran.status, len(service.asked)) == (1, 1)
    assert "up to 2.5, and the command needs 2.9" in ran.err

# SPDX-License-Identifier: Apache-2.0
"""Errors of commands: exit status 1, a message, and what to do next."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from keystoneauth1 import fixture as keystone

from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.unit.cli.conftest import CommandResult, Run, TerminalStream
from cyborg.tests.unit.cli.service import (
    AGENT,
    BACKEND,
    DEVICE,
    PROCESS,
    Answer,
    Service,
    error_body,
)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        *((400, ""), (401, "--os-cloud"), (403, "accelerator_operator"), (404, ""), (409, "")),
        *((503, "safe"), (500, "req-42")),
    ],
)
def test_error_shows_service_message_and_advice(
    status: int, advice: str, cyborg: Run, service: Service
):
    headers = {"x-openstack-request-id": "req-42"}
    body = error_body("The agent on compute-1 is down.")
    service.answers["/drivers"] = [Answer(status, body, headers)]
    outcome = cyborg("driver-list")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith(f"The agent on compute-1 is down (HTTP {status}).")
    assert outcome.err.count("\n") == 1
    assert advice in outcome.err


def test_error_shows_the_command_option_that_the_service_names(cyborg: Run, service: Service):
    message = (
        "It is down. Repeat it when the agent is back, or ask with wait=true (--no-wait on the "
        "command line) to have it done then."
    )
    service.answers["/services/discover"] = [Answer(503, error_body(message))]
    outcome = cyborg("discover-services --host compute-1")
    assert "(--no-wait on the command line) to have it done then (HTTP 503)." in outcome.err


def test_not_acceptable_for_another_reason_shows_service_message(cyborg: Run, service: Service):
    headers = {"OpenStack-API-Maximum-Version": "2.100"}
    service.answers["/services"] = [Answer(406, error_body("Only JSON."), headers)]
    assert cyborg("service-list").err.startswith("Only JSON (HTTP 406).")


FOREIGN = [
    (404, b"<html>nginx</html>"),
    (404, {"message": "no route"}),
    (500, b""),
    (200, b"<html>Welcome</html>"),
    (200, {"cards": []}),
    (200, []),
]


def test_answer_of_another_program_is_reported_as_unexpected(
    cyborg: Run, service: Service, url: str
):
    for status, body in FOREIGN:
        service.answers["/drivers"] = [Answer(status, body)]
        outcome = cyborg("driver-list")
        assert outcome.status == 1, body
        assert f"{url}/v2/drivers does not answer like the accelerator service" in outcome.err
        assert "--os-endpoint-override" in outcome.err
    service.answers["/services/discover"] = [Answer(202, {"ok": True})]
    outcome = cyborg("discover-services")
    assert (outcome.status, "does not answer like" in outcome.err) == (1, True)


def test_error_shows_message_of_keystone_middleware(cyborg: Run, service: Service):
    body = {"error": {"code": 401, "title": "Unauthorized", "message": "Authenticate first."}}
    service.answers["/drivers"] = [Answer(401, body)]
    assert cyborg("driver-list").err.startswith("Authenticate first (HTTP 401).")


def _closed_port(service: Service) -> str:
    with Loopback(service) as loopback:
        return loopback.url


def test_refused_connection_names_url_and_endpoint_option(program: Run, service: Service):
    url = _closed_port(service)
    for command in ("driver-list", "discover-services"):
        outcome = program("--os-auth-type", "none", "--os-endpoint", url, command)
        assert outcome.status == 1
        assert outcome.err == (
            f"No connection to {url}/v2: Connection refused. Check that cyborg-api runs there, or "
            "set another URL with --os-endpoint-override URL.\n"
        )


def test_broken_connection_names_operation_id_for_repeating(program: Run):
    def hangs_up(environ: Any, start_response: Any) -> list[bytes]:
        environ["wsgi.input"].raw._sock.shutdown(2)
        raise ConnectionResetError

    with Loopback(hangs_up) as loopback:
        options = ("--os-auth-type", "none", "--os-endpoint", loopback.url)
        outcome = program(*options, "discover-services")
    assert outcome.status == 1
    assert "--operation-id" in outcome.err


def test_missing_credentials_name_all_ways_to_give_them(program: Run):
    outcome = program("service-list")
    assert outcome.status == 1
    for option in ("--os-cloud", "OS_AUTH_URL", "--os-auth-type none --os-endpoint"):
        assert option in outcome.err
    outcome = program("--os-cloud", "cumulus", "service-list")
    assert outcome.status == 1
    assert "Cloud cumulus was not found" in outcome.err


def test_unreachable_keystone_is_named(program: Run, service: Service):
    away = _closed_port(service)
    options = ("--os-auth-url", away, "--os-username", "u", "--os-password", "p")
    for more in ((), ("--os-endpoint-override", "http://override.test")):
        outcome = program(*options, *more, "service-list")
        assert outcome.status == 1
        assert f"Keystone at {away} does not answer" in outcome.err
        assert "cyborg-api" not in outcome.err
        assert "override.test" not in outcome.err


def _keystone(endpoint: str | None, *, accepts: bool) -> Any:
    """Return a Keystone that gives a token with this endpoint to every user, or to none."""
    token = keystone.V3Token()
    token.set_project_scope()
    if endpoint is not None:
        service = token.add_service("accelerator")
        service.add_standard_endpoints(public=endpoint, region="RegionOne")
    refusal = {"error": {"code": 401, "message": "Wrong password."}}

    def application(environ: Any, start_response: Any) -> list[bytes]:
        body: Any
        url = f"http://{environ['HTTP_HOST']}/v3/"
        status, body = "200 OK", {"version": keystone.V3Discovery(url)}
        if environ["PATH_INFO"].endswith("/auth/tokens"):
            status, body = ("201 Created", token) if accepts else ("401 Unauthorized", refusal)
        headers = [("Content-Type", "application/json"), ("X-Subject-Token", "t")]
        start_response(status, headers)
        return [json.dumps(body).encode()]

    return application


@pytest.fixture
def in_cloud(program: Run, tmp_path: Path) -> Run:
    """Return a function that runs a command with a catalog of a Keystone."""

    def run(endpoint: str | None, *arguments: str, accepts: bool = True) -> CommandResult:
        with Loopback(_keystone(endpoint, accepts=accepts)) as loopback:
            auth = {"auth_url": f"{loopback.url}/v3", "username": "u", "password": "p"}
            auth |= {"project_name": "p", "user_domain_id": "d", "project_domain_id": "d"}
            clouds = {"clouds": {"test": {"auth": auth, "region_name": "RegionOne"}}}
            (tmp_path / "clouds.yaml").write_text(yaml.safe_dump(clouds))
            return program("--os-cloud", "test", *arguments)

    return run


def test_endpoint_from_catalog_works_with_and_without_version_suffix(
    in_cloud: Run, url: str, service: Service
):
    for suffix in ("", "/", "/v2", "/v2/"):
        outcome = in_cloud(url + suffix, "driver-list", "-f", "value", "-c", "name")
        assert (outcome.status, outcome.out) == (0, "fake_driver\n")
        assert service.last.path == "/drivers"


def test_endpoint_override_takes_precedence_over_catalog(in_cloud: Run, url: str):
    for option in ("--os-endpoint-override", "--os-accelerator-endpoint-override"):
        outcome = in_cloud("http://127.0.0.1:9", option, url, "driver-list")
        assert outcome.status == 0, outcome.err


def test_faults_of_catalog_and_password_are_told_apart(in_cloud: Run):
    outcome = in_cloud("http://127.0.0.1:9", "driver-list")
    assert outcome.status == 1
    assert "No connection to http://127.0.0.1:9/v2" in outcome.err
    assert "Check that cyborg-api runs there" in outcome.err
    assert "Keystone" not in outcome.err
    outcome = in_cloud(None, "driver-list")
    assert outcome.status == 1
    assert "The service catalog has no matching accelerator endpoint" in outcome.err
    outcome = in_cloud(None, "driver-list", accepts=False)
    assert outcome.status == 1
    assert "Keystone rejects the credentials: Wrong password" in outcome.err


def test_delete_continues_after_one_object_fails(cyborg: Run, service: Service):
    service.answers[f"/devices/{DEVICE}"] = [Answer(409, error_body("ARQ 1 is bound to it."))]
    outcome = cyborg("accelerator-delete", DEVICE, "another")
    assert outcome.status == 1
    assert outcome.err == f"{DEVICE}: ARQ 1 is bound to it (HTTP 409).\n"
    assert [request.path for request in service.requests] == [
        f"/devices/{DEVICE}",
        "/devices/another",
    ]


def test_service_disable_accepts_a_host_name(cyborg: Run, service: Service):
    outcome = cyborg("service-disable compute-1 --reason fans -f json")
    assert [row["status"] for row in outcome.json] == ["disabled"]
    assert service.last.path == f"/services/{AGENT}"
    assert service.requests[0].query == {"kind": "process", "host": "compute-1"}


@pytest.mark.parametrize("command", ["service-show", "service-delete"])
def test_service_command_fails_for_host_without_or_with_several_services(
    command: str, cyborg: Run, service: Service
):
    outcome = cyborg(f"{command} elsewhere")
    assert outcome.status == 1
    assert "Host elsewhere has no services" in outcome.err
    other = PROCESS | {"uuid": DEVICE, "binary": "cyborg-api"}
    service.answers["/services"] = [Answer(200, {"services": [PROCESS, other]})]
    outcome = cyborg(f"{command} compute-1")
    assert outcome.status == 1
    assert f"cyborg-agent is {AGENT}, cyborg-api is {DEVICE}" in outcome.err
    assert {request.path for request in service.requests} == {"/services"}


@pytest.mark.parametrize("command", ["service-enable", "service-disable"])
def test_service_enable_and_disable_select_the_agent_of_a_host(
    command: str, cyborg: Run, service: Service
):
    other = PROCESS | {"uuid": DEVICE, "binary": "cyborg-api"}
    service.answers["/services"] = [Answer(200, {"services": [other, PROCESS]})]
    assert cyborg(f"{command} compute-1").status == 0
    assert service.last.path == f"/services/{AGENT}"
    service.answers["/services"] = [Answer(200, {"services": [other]})]
    outcome = cyborg(f"{command} compute-1")
    assert outcome.status == 1
    assert outcome.err.startswith("Host compute-1 has no cyborg-agent")


def test_service_disable_reports_each_failed_host(cyborg: Run, service: Service):
    outcome = cyborg("service-disable compute-1 elsewhere -f json")
    rows = [(row["uuid"], row["status"]) for row in json.loads(outcome.out)]
    assert (outcome.status, rows) == (1, [(AGENT, "disabled")])
    assert outcome.err.startswith("elsewhere: Host elsewhere has no services")


def test_accelerator_update_reports_each_failed_accelerator(cyborg: Run, service: Service):
    missing = Answer(404, error_body("Device other could not be found."))
    service.answers["/devices/other"] = [missing]
    outcome = cyborg(f"accelerator-update other {DEVICE} {DEVICE} --status ready -f json")
    rows = [(row["uuid"], row["status"]) for row in json.loads(outcome.out)]
    assert (outcome.status, rows) == (1, [(DEVICE, "ready")])
    assert outcome.err == "other: Device other could not be found (HTTP 404).\n"
    assert [request.path for request in service.requests] == [
        "/devices/other",
        f"/devices/{DEVICE}",
    ]


@pytest.mark.parametrize(
    ("command", "path", "member"),
    [
        ("driver-show", "/drivers", "name"),
        ("backend-show", "/backends", "name"),
        ("hardware-show", "/hardware", "key"),
    ],
)
def test_object_is_shown_by_a_name_that_no_other_has(
    command: str, path: str, member: str, cyborg: Run, service: Service
) -> None:
    noun = path[1:]
    rows = [
        {"uuid": DEVICE, "host": "a", member: "unique"},
        {"uuid": AGENT, "host": "a", member: "shared"},
        {"uuid": BACKEND, "host": "b", member: "shared"},
    ]
    for _ in range(3):
        service.answers.setdefault(path, []).append(Answer(200, {noun: rows}))
    service.answers[f"{path}/{DEVICE}"] = [Answer(200, {"uuid": DEVICE})]
    outcome = cyborg(f"{command} unique -f value -c uuid")
    assert (outcome.status, outcome.out) == (0, f"{DEVICE}\n")
    outcome = cyborg(f"{command} shared")
    assert outcome.status == 1
    assert f"a has {AGENT}, b has {BACKEND}" in outcome.err
    outcome = cyborg(f"{command} nobody")
    assert outcome.status == 1
    assert "has the UUID or the name nobody" in outcome.err


def test_scripts_read_one_column_of_an_update_of_several_accelerators(
    cyborg: Run, service: Service
) -> None:
    service.answers["/devices/other"] = [Answer(200, {"uuid": "other", "status": "ready"})]
    outcome = cyborg(f"accelerator-update other {DEVICE} --status ready -f value -c status")
    assert (outcome.status, outcome.out) == (0, "ready\nready\n")


def test_accelerator_update_by_selection_needs_yes_without_terminal(cyborg: Run, service: Service):
    line = "accelerator-update --host h --driver d --label rack=7 --status maintaining"
    outcome = cyborg(line)
    assert (outcome.status, [request.method for request in service.requests]) == (1, ["GET"])
    assert outcome.err == (
        "1 accelerator with hostname h, driver d, labels rack=7 would change. Give --yes to change "
        "them without a question.\n"
    )
    service.requests.clear()
    assert cyborg(f"{line} --reason fans --set-label a=1 --yes").status == 0
    assert service.requests[0].query == {"hostname": "h", "driver": "d", "labels": "rack=7"}
    assert service.last.body == {
        "status": "maintaining",
        "status_reason": "fans",
        "labels": {"a": "1"},
    }
    assert len(service.requests) == 2


@pytest.mark.parametrize(("typed", "status"), [("1\n", 0), ("Y\n", 0), ("n\n", 1), ("\n", 1)])
def test_accelerator_update_by_selection_asks_on_a_terminal(
    typed: str, status: int, cyborg: Run, service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", TerminalStream(typed))
    outcome = cyborg("accelerator-update --driver d --status maintaining", terminal=True)
    assert "Change 1 accelerator with driver d? [y/N or 1]" in outcome.err + outcome.out
    assert outcome.status == status
    assert [request.method for request in service.requests] == ["GET", "PATCH"][: 2 - status]


def test_accelerator_update_fails_when_selection_is_empty(cyborg: Run, service: Service):
    service.answers["/devices"] = [Answer(200, {"devices": []})]
    outcome = cyborg("accelerator-update --driver d --status ready --yes")
    assert outcome.status == 1
    assert "No accelerator matches driver d" in outcome.err


def test_service_list_expect_fails_when_a_host_never_reported(cyborg: Run, tmp_path: Path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# racks 1 to 3\ncompute-9\n\ncompute-1  # here\ncompute-7\ncompute-9\n")
    outcome = cyborg("service-list -f value -c host --kind backend --expect", str(hosts))
    assert (outcome.status, outcome.out) == (1, "compute-1\n")
    assert outcome.err.startswith(
        "Never reported: compute-9, compute-7. Check that cyborg-agent runs"
    )
    hosts.write_text("compute-1\n")
    assert cyborg("service-list --expect", str(hosts)).status == 0


def test_service_list_expect_fails_when_only_other_services_reported(
    cyborg: Run, service: Service, tmp_path: Path
):
    hosts = tmp_path / "hosts"
    hosts.write_text("compute-1\n")
    for change in ({"binary": "cyborg-api"}, {"last_seen_at": None}):
        answer = Answer(200, {"services": [PROCESS | change]})
        service.answers["/services"] = [answer, answer]
        assert cyborg("service-list --expect", str(hosts)).status == 1


def test_service_list_expect_fails_when_file_cannot_be_read(cyborg: Run, tmp_path: Path):
    outcome = cyborg("service-list --expect", str(tmp_path / "none"))
    assert outcome.status == 1
    assert "cannot be read" in outcome.err


def test_log_file_contains_the_error(cyborg: Run, tmp_path: Path):
    log = tmp_path / "log"
    cyborg(f"--log-file {log} --debug accelerator-show nix")
    assert "could not be found" in log.read_text()


def test_unit_in_quarantine_is_freed_by_its_key(cyborg: Run, service: Service):
    assert cyborg(f"accelerator-update {DEVICE} --free-unit 0000:5e:00.0").status == 0
    assert service.last.body == {"free_unit": "0000:5e:00.0"}
    assert service.last.version == "accelerator 2.100"

# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong: exit status 1, one sentence, and what to do next."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import AGENT, DEVICE, PROCESS, Answer, Service, fault


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, ""),
        (401, "--os-cloud"),
        (403, "accelerator_operator"),
        (404, ""),
        (409, ""),
        (503, "safe"),
    ],
)
def test_the_service_says_what_is_wrong_and_the_command_what_to_do(
    status: int, advice: str, cyborg: Run, service: Service
):
    service.answers["/drivers"] = [Answer(status, fault("The agent on compute-1 is down."))]
    ran = cyborg("driver-list")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"The agent on compute-1 is down (HTTP {status}).")
    assert ran.err.count("\n") == 1
    assert advice in ran.err


def test_what_the_api_calls_otherwise_is_called_as_the_commands_do(cyborg: Run, service: Service):
    said = (
        "It is down. Repeat it when the agent is back, or ask with wait=true to have it done then."
    )
    service.answers["/services/discover"] = [Answer(503, fault(said))]
    ran = cyborg("discover-services --host compute-1")
    assert "or give --no-wait to have it done then (HTTP 503)." in ran.err


def test_an_unforeseen_fault_names_the_request(cyborg: Run, service: Service):
    headers = {"x-openstack-request-id": "req-42"}
    service.answers["/drivers"] = [Answer(500, fault("An unexpected error occurred."), headers)]
    ran = cyborg("driver-list")
    assert ran.status == 1
    assert "An unexpected error occurred (HTTP 500)." in ran.err
    assert "req-42" in ran.err


@pytest.mark.parametrize("maximum", ["2.3", "2.2"])
def test_a_service_of_older_days(maximum: str, cyborg: Run, service: Service):
    headers = {"OpenStack-API-Maximum-Version": maximum}
    service.answers["/services"] = [Answer(406, fault("Version 2.4 is not supported."), headers)]
    ran = cyborg("service-list")
    assert ran.status == 1
    assert f"up to {maximum}" in ran.err
    assert "2.4: upgrade cyborg-api" in ran.err


def test_not_acceptable_for_another_reason_is_told_as_it_is(cyborg: Run, service: Service):
    headers = {"OpenStack-API-Maximum-Version": "2.5"}
    service.answers["/services"] = [Answer(406, fault("Only JSON."), headers)]
    assert cyborg("service-list").err.startswith("Only JSON (HTTP 406).")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>nginx</html>"),
        (404, {"message": "no route"}),
        (500, b""),
        (200, b"<html>Welcome</html>"),
        (200, {"cards": []}),
        (200, []),
    ],
)
def test_something_else_that_answers_there_is_seen_for_what_it_is(
    status: int, body: Any, cyborg: Run, service: Service, url: str
):
    service.answers["/drivers"] = [Answer(status, body)]
    ran = cyborg("driver-list")
    assert ran.status == 1
    assert f"{url}/v2/drivers does not answer as the accelerator service does" in ran.err
    assert "--os-endpoint-override" in ran.err


def test_an_answer_without_an_operation_is_foreign(cyborg: Run, service: Service):
    service.answers["/services/discover"] = [Answer(202, {"ok": True})]
    ran = cyborg("discover-services")
    assert ran.status == 1
    assert "does not answer as" in ran.err


def test_keystones_own_refusal_is_understood(cyborg: Run, service: Service):
    body = {"error": {"code": 401, "title": "Unauthorized", "message": "Authenticate first."}}
    service.answers["/drivers"] = [Answer(401, body)]
    assert cyborg("driver-list").err.startswith("Authenticate first (HTTP 401).")


def _closed_port(service: Service) -> str:
    with Loopback(service) as loopback:
        return loopback.url


@pytest.mark.parametrize("command", ["driver-list", "discover-services"])
def test_nobody_listens(command: str, program: Run, service: Service):
    url = _closed_port(service)
    ran = program("--os-auth-type", "none", "--os-endpoint", url, command)
    assert ran.status == 1
    assert ran.err == (
        f"{url}/v2 cannot be reached: Connection refused. Is cyborg-api running there? Another "
        "place is chosen with --os-endpoint-override URL.\n"
    )


def test_a_line_that_breaks_leaves_the_outcome_unknown(program: Run):
    def hangs_up(environ: Any, start_response: Any) -> list[bytes]:
        environ["wsgi.input"].raw._sock.shutdown(2)
        raise ConnectionResetError

    with Loopback(hangs_up) as loopback:
        options = ("--os-auth-type", "none", "--os-endpoint", loopback.url)
        ran = program(*options, "discover-services")
    assert ran.status == 1
    assert "--operation-id" in ran.err


def test_no_account_at_all(program: Run):
    ran = program("service-list")
    assert ran.status == 1
    for way in ("--os-cloud", "OS_AUTH_URL", "--os-auth-type none --os-endpoint"):
        assert way in ran.err


def test_a_cloud_that_nobody_knows(program: Run):
    ran = program("--os-cloud", "cumulus", "service-list")
    assert ran.status == 1
    assert "Cloud cumulus was not found" in ran.err


def test_keystone_cannot_be_reached(program: Run, service: Service):
    where = _closed_port(service)
    ran = program(
        *("--os-auth-url", where, "--os-username", "u", "--os-password", "p"), "service-list"
    )
    assert ran.status == 1
    assert f"Keystone cannot be reached at {where}" in ran.err
    assert "cyborg-api" not in ran.err


def test_keystone_away_is_named_when_the_endpoint_is_given(program: Run, url: str):
    ran = program(
        *("--os-auth-url", "http://127.0.0.1:9/v3", "--os-username", "u", "--os-password", "p"),
        *("--os-endpoint-override", url, "service-list"),
    )
    assert ran.status == 1
    assert "Keystone cannot be reached at http://127.0.0.1:9/v3" in ran.err
    assert url not in ran.err


def test_an_endpoint_that_is_away_is_not_blamed_on_keystone(program: Run, tmp_path: Path):
    with Loopback(_keystone(_listed("http://127.0.0.1:9"))) as keystone:
        _write_cloud(tmp_path, keystone.url)
        ran = program("--os-cloud", "test", "driver-list")
    assert ran.status == 1
    assert "http://127.0.0.1:9/v2 cannot be reached" in ran.err
    assert "Is cyborg-api running there?" in ran.err
    assert "Keystone" not in ran.err


def _keystone(catalogue: list[dict[str, Any]], *, known: bool = True) -> Any:
    """A Keystone that gives everybody a token, or nobody."""

    def application(environ: Any, start_response: Any) -> list[bytes]:
        host = f"http://{environ['HTTP_HOST']}"
        if environ["PATH_INFO"].endswith("/auth/tokens"):
            status, body = "201 Created", _token(catalogue)
            if not known:
                status = "401 Unauthorized"
                body = {"error": {"code": 401, "message": "Wrong password."}}
        else:
            links = [{"rel": "self", "href": f"{host}/v3/"}]
            version = {"id": "v3.14", "status": "stable", "links": links}
            status, body = "200 OK", {"version": version}
        headers = [("Content-Type", "application/json"), ("X-Subject-Token", "t")]
        start_response(status, headers)
        return [json.dumps(body).encode()]

    return application


def _token(catalogue: list[dict[str, Any]]) -> dict[str, Any]:
    domain = {"id": "default", "name": "Default"}
    return {
        "token": {
            "methods": ["password"],
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "user": {"id": "u", "name": "u", "domain": domain},
            "project": {"id": "p", "name": "p", "domain": domain},
            "roles": [{"id": "r", "name": "admin"}],
            "catalog": catalogue,
        }
    }


def _write_cloud(tmp_path: Path, keystone: str) -> None:
    auth = {
        "auth_url": f"{keystone}/v3",
        "username": "u",
        "password": "p",
        "project_name": "p",
        "user_domain_id": "default",
        "project_domain_id": "default",
    }
    clouds = {"clouds": {"test": {"auth": auth, "region_name": "RegionOne"}}}
    (tmp_path / "clouds.yaml").write_text(yaml.safe_dump(clouds))


def _listed(url: str) -> list[dict[str, Any]]:
    endpoint = {
        "id": "e",
        "interface": "public",
        "region": "RegionOne",
        "region_id": "RegionOne",
        "url": url,
    }
    return [{"id": "s", "type": "accelerator", "name": "cyborg", "endpoints": [endpoint]}]


@pytest.mark.parametrize("suffix", ["", "/", "/v2", "/v2/"])
def test_a_cloud_and_its_catalogue(
    suffix: str, program: Run, url: str, service: Service, tmp_path: Path
):
    with Loopback(_keystone(_listed(url + suffix))) as keystone:
        _write_cloud(tmp_path, keystone.url)
        ran = program("--os-cloud", "test", "driver-list", "-f", "value", "-c", "name")
    assert (ran.status, ran.out) == (0, "fake_driver\n")
    assert service.last.path == "/drivers"


def test_the_catalogue_can_be_overruled(program: Run, url: str, tmp_path: Path):
    with Loopback(_keystone(_listed("http://127.0.0.1:9"))) as keystone:
        _write_cloud(tmp_path, keystone.url)
        for option in ("--os-endpoint-override", "--os-accelerator-endpoint-override"):
            ran = program("--os-cloud", "test", option, url, "driver-list")
            assert ran.status == 0, ran.err


def test_a_catalogue_without_the_service(program: Run, tmp_path: Path):
    with Loopback(_keystone([])) as keystone:
        _write_cloud(tmp_path, keystone.url)
        ran = program("--os-cloud", "test", "driver-list")
    assert ran.status == 1
    assert "The catalogue names no accelerator service" in ran.err


def test_a_password_that_is_wrong(program: Run, tmp_path: Path):
    with Loopback(_keystone([], known=False)) as keystone:
        _write_cloud(tmp_path, keystone.url)
        ran = program("--os-cloud", "test", "driver-list")
    assert ran.status == 1
    assert "Keystone refuses the account: Wrong password" in ran.err


def test_one_that_cannot_go_does_not_keep_the_others(cyborg: Run, service: Service):
    service.answers[f"/devices/{DEVICE}"] = [Answer(409, fault("ARQ 1 is bound to it."))]
    ran = cyborg("accelerator-delete", DEVICE, "another")
    assert ran.status == 1
    assert ran.err == f"{DEVICE}: ARQ 1 is bound to it (HTTP 409).\n"
    assert [one.path for one in service.asked] == [f"/devices/{DEVICE}", "/devices/another"]


def test_a_service_can_be_named_by_its_host(cyborg: Run, service: Service):
    ran = cyborg("service-disable compute-1 --reason fans -f json")
    assert ran.shown["status"] == "disabled"
    assert service.last.path == f"/services/{AGENT}"
    assert service.asked[0].query == {"kind": "process", "host": "compute-1"}


@pytest.mark.parametrize("command", ["service-show", "service-delete"])
def test_a_host_without_or_with_several_services(command: str, cyborg: Run, service: Service):
    ran = cyborg(f"{command} elsewhere")
    assert ran.status == 1
    assert "No service of host elsewhere is known" in ran.err
    other = PROCESS | {"uuid": DEVICE, "binary": "cyborg-api"}
    service.answers["/services"] = [Answer(200, {"services": [PROCESS, other]})]
    ran = cyborg(f"{command} compute-1")
    assert ran.status == 1
    assert f"cyborg-agent is {AGENT}, cyborg-api is {DEVICE}" in ran.err
    assert {one.path for one in service.asked} == {"/services"}


@pytest.mark.parametrize("command", ["service-enable", "service-disable"])
def test_a_host_stands_for_its_agent_where_services_change(
    command: str, cyborg: Run, service: Service
):
    other = PROCESS | {"uuid": DEVICE, "binary": "cyborg-api"}
    service.answers["/services"] = [Answer(200, {"services": [other, PROCESS]})]
    assert cyborg(f"{command} compute-1").status == 0
    assert service.last.path == f"/services/{AGENT}"
    service.answers["/services"] = [Answer(200, {"services": [other]})]
    ran = cyborg(f"{command} compute-1")
    assert ran.status == 1
    assert ran.err.startswith("Host compute-1 has no cyborg-agent")


def test_several_hosts_are_disabled_and_each_failure_is_named(cyborg: Run, service: Service):
    ran = cyborg("service-disable compute-1 elsewhere -f json")
    assert (ran.status, json.loads(ran.out)) == (1, {AGENT: "disabled"})
    assert ran.err.startswith("elsewhere: No service of host elsewhere is known")


def test_several_accelerators_change_and_each_failure_is_named(cyborg: Run, service: Service):
    service.answers["/devices/other"] = [Answer(404, fault("Device other could not be found."))]
    ran = cyborg(f"accelerator-update other {DEVICE} {DEVICE} --status ready -f json")
    assert (ran.status, json.loads(ran.out)) == (1, {DEVICE: "ready"})
    assert ran.err == "other: Device other could not be found (HTTP 404).\n"
    assert [one.path for one in service.asked] == ["/devices/other", f"/devices/{DEVICE}"]


def test_selected_accelerators_change_with_yes_only_where_nobody_can_be_asked(
    cyborg: Run, service: Service
):
    line = "accelerator-update --host h --driver d --label rack=7 --status maintaining"
    ran = cyborg(line)
    assert (ran.status, [one.method for one in service.asked]) == (1, ["GET"])
    assert ran.err == (
        "1 accelerator with hostname h, driver d, labels rack=7 would change; give --yes to change "
        "them without a question.\n"
    )
    service.asked.clear()
    assert cyborg(f"{line} --reason fans --set-label a=1 --yes").status == 0
    assert service.asked[0].query == {"hostname": "h", "driver": "d", "labels": "rack=7"}
    assert service.last.body == {
        "status": "maintaining",
        "status_reason": "fans",
        "labels": {"a": "1"},
    }
    assert len(service.asked) == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--status ready", "No accelerator is named"),
        ("--label rack=7", "Nothing is to be changed"),
        (f"{DEVICE} --host h --status ready", "but not both"),
        (f"{DEVICE} --label a=1 --unset-label a", "Label a is given twice"),
        (f"{DEVICE} --status ready --reason x", "--status maintaining only"),
    ],
)
def test_an_update_that_means_two_things_or_nothing_is_refused(
    line: str, complaint: str, cyborg: Run, service: Service
):
    ran = cyborg(f"accelerator-update {line}")
    assert (ran.status, service.asked) == (1, [])
    assert complaint in ran.err


def test_a_selection_without_accelerators_is_a_failure(cyborg: Run, service: Service):
    service.answers["/devices"] = [Answer(200, {"devices": []})]
    ran = cyborg("accelerator-update --driver d --status ready --yes")
    assert ran.status == 1
    assert "No accelerator matches driver d" in ran.err


def test_hosts_that_never_reported(cyborg: Run, tmp_path: Path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# racks 1 to 3\ncompute-9\n\ncompute-1  # here\ncompute-7\ncompute-9\n")
    ran = cyborg("service-list -f value -c host --kind backend --expect", str(hosts))
    assert (ran.status, ran.out) == (1, "compute-1\n")
    assert ran.err.startswith("Never reported: compute-9, compute-7. Is cyborg-agent running")
    hosts.write_text("compute-1\n")
    assert cyborg("service-list --expect", str(hosts)).status == 0


@pytest.mark.parametrize("change", [{"binary": "cyborg-api"}, {"last_seen_at": None}])
def test_a_host_reports_by_its_agent(
    change: dict[str, Any], cyborg: Run, service: Service, tmp_path: Path
):
    hosts = tmp_path / "hosts"
    hosts.write_text("compute-1\n")
    answer = Answer(200, {"services": [PROCESS | change]})
    service.answers["/services"] = [answer, answer]
    assert cyborg("service-list --expect", str(hosts)).status == 1


def test_a_file_of_hosts_that_cannot_be_read(cyborg: Run, tmp_path: Path):
    ran = cyborg("service-list --expect", str(tmp_path / "none"))
    assert ran.status == 1
    assert "cannot be read" in ran.err


def test_a_log_file_gets_what_happened(program: Run, url: str, tmp_path: Path):
    log = tmp_path / "log"
    options = ("--os-auth-type", "none", "--os-endpoint", url, "--log-file", str(log), "--debug")
    program(*options, "accelerator-show", "nix")
    assert "could not be found" in log.read_text()

# SPDX-License-Identifier: Apache-2.0
"""The request that each command sends: method, path, query, body and headers."""

from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import (
    AGENT,
    ARQ,
    BACKEND,
    DEVICE,
    DRIVER,
    INSTANCE,
    OPERATION,
    PROFILE,
    PROFILES,
    Service,
)
from cyborg_cli.shell import COMMANDS

#: The required fields of a new accelerator.
NEW = {
    "host": "h",
    "driver": "d",
    "backend": "b",
    "model": "m",
    "type": "FPGA",
    "resource_class": "FPGA",
}
#: Command line → request.
READS = {
    "service-list --kind backend --host h --driver d --backend b --limit 5": (
        "GET /services?kind=backend&host=h&driver=d&backend=b&limit=5"
    ),
    f"service-show {AGENT}": f"GET /services/{AGENT}",
    f"service-delete {AGENT}": f"DELETE /services/{AGENT}",
    f"service-delete {AGENT} --force": f"DELETE /services/{AGENT}?force=true",
    "backend-list --host h --driver d --name n": "GET /backends?host=h&driver=d&name=n",
    f"backend-show {BACKEND}": f"GET /backends/{BACKEND}",
    "driver-list --host h --name n --state READY": "GET /drivers?host=h&name=n&state=READY",
    f"driver-show {DRIVER}": f"GET /drivers/{DRIVER}",
    "uninstall-driver fake_driver": "DELETE /drivers/fake_driver",
    "uninstall-driver fake_driver --drain": "DELETE /drivers/fake_driver?drain=true",
    "uninstall-driver fake_driver --force": "DELETE /drivers/fake_driver?force=true",
    f"hardware-show {DEVICE}": f"GET /hardware/{DEVICE}",
    "hardware-list --capability ipsec --remote false": (
        "GET /hardware?capability=ipsec&remote=false"
    ),
    "backend-list --capability num": "GET /backends?capability=num",
    "hardware-list --host h --driver d --type CRYPTO --setup-required": (
        "GET /hardware?host=h&driver=d&type=CRYPTO&setup_required=true"
    ),
    (
        "accelerator-list --host h --driver d --backend b --type GPU --vendor v --status lost "
        f"--instance {INSTANCE} --label a=1 --label b=2 --free --marker {DEVICE}"
    ): (
        "GET /devices?"
        "hostname=h&driver=d&backend=b&type=GPU&vendor=v&status=lost&"
        f"instance={INSTANCE}&labels=a=1,b=2&in_use=false&marker={DEVICE}"
    ),
    (
        f"event-list --device {DEVICE} --host h --instance "
        f"{INSTANCE} --arq {ARQ} --request "
        "req-1 --since 2026-11-01T10:00 --limit 5 --marker 7"
    ): (
        "GET /events?"
        f"device={DEVICE}&host=h&"
        f"instance={INSTANCE}&"
        f"arq={ARQ}&request_id=req-1&since=2026-11-01T10:00&"
        "limit=5&marker=7"
    ),
    (
        f"watch --count 1 --device {DEVICE} --host h --instance {INSTANCE} --arq {ARQ} "
        "--request req-1 --since 2026-11-01T10:00"
    ): (
        f"GET /events?device={DEVICE}&host=h&instance={INSTANCE}&arq={ARQ}&request_id=req-1&"
        "since=2026-11-01T10:00&wait=50"
    ),
    "top --host h --type GPU": "GET /devices?hostname=h&type=GPU",
    "accelerator-list --attached": "GET /devices?in_use=true",
    f"accelerator-show {DEVICE}": f"GET /devices/{DEVICE}",
    f"accelerator-delete {DEVICE}": f"DELETE /devices/{DEVICE}",
    f"accelerator-delete {DEVICE} --force": f"DELETE /devices/{DEVICE}?force=true",
    "profile-list --name a,b": "GET /device_profiles?name=a,b",
    "profile-show fpga": "GET /device_profiles/fpga",
    "profile-explain fpga": "GET /device_profiles/fpga/explain",
    f"profile-explain fpga --flavor m1 --host h --instance {INSTANCE} --hosts": (
        f"GET /device_profiles/fpga/explain?flavor=m1&host=h&instance={INSTANCE}"
    ),
    f"host-drain {AGENT} --dry-run": f"GET /services/{AGENT}/drain",
    f"accelerator-drain {DEVICE} --dry-run": f"GET /devices/{DEVICE}/drain",
    "profile-delete fpga": "DELETE /device_profiles/fpga",
    f"profile-apply -f {PROFILES}": "GET /device_profiles",
    "profile-export": "GET /device_profiles",
    "profile-export fpga": "GET /device_profiles?name=fpga",
    (f"arq-list --instance {INSTANCE} --state Bound --host h --profile fpga --project p"): (
        "GET /accelerator_requests?"
        f"instance={INSTANCE}&state=Bound&hostname=h&"
        "device_profile_name=fpga&project_id=p"
    ),
    f"arq-show {ARQ}": f"GET /accelerator_requests/{ARQ}",
    "operation-list --action discover --state failed": (
        "GET /operations?verb=discover&state=failed&sort_key=created_at&sort_dir=desc"
    ),
    f"operation-show {OPERATION}": f"GET /operations/{OPERATION}",
    f"detach-instance {INSTANCE}": f"DELETE /instances/{INSTANCE}/accelerators",
    f"detach-instance {INSTANCE} {ARQ}": f"DELETE /instances/{INSTANCE}/accelerators/{ARQ}",
    "capacity": "GET /capacity",
    "capacity --profile fpga --profile gpu --host h --by numa": (
        "GET /capacity?profile=fpga,gpu&host=h&by=numa"
    ),
    "limits-show": "GET /limits",
    "usage-show --type FPGA --host h --project p": "GET /usage?type=FPGA&host=h&project_id=p",
    "usage-list --start 2026-11-01 --until 2026-12-01": (
        "GET /usage?group_by=project,type&start=2026-11-01&end=2026-12-01"
    ),
    (
        "usage-list --start 2026-11-01 --by host --type GPU --host h --project p --profile gpu "
        f"--instance {INSTANCE} --resource-class VGPU"
    ): (
        "GET /usage?resource_class=VGPU&type=GPU&host=h&project_id=p&profile=gpu"
        f"&instance={INSTANCE}&group_by=host&start=2026-11-01"
    ),
}
#: Command line → request and body.
CHANGES: dict[str, tuple[str, Any]] = {
    f"service-enable {AGENT}": (f"PATCH /services/{AGENT}", {"status": "enabled"}),
    f"service-disable {AGENT} --reason fans": (
        f"PATCH /services/{AGENT}",
        {"status": "disabled", "disabled_reason": "fans"},
    ),
    f"host-resume {AGENT}": (f"PATCH /services/{AGENT}", {"status": "enabled"}),
    f"accelerator-resume {DEVICE}": (f"PATCH /devices/{DEVICE}", {"status": "ready"}),
    "install-driver fake_driver --host a --host b --option x=1 --option y=2=3": (
        "POST /drivers",
        {"driver": "fake_driver", "hosts": ["a", "b"], "options": {"x": "1", "y": "2=3"}},
    ),
    "install-driver fake_driver": ("POST /drivers", {"driver": "fake_driver"}),
    "update-driver fake_driver": ("PATCH /drivers/fake_driver", {}),
    "update-driver fake_driver --option x=1 --unset-option y --disable": (
        "PATCH /drivers/fake_driver",
        {"options": {"x": "1", "y": None}, "enabled": False},
    ),
    "discover-services": ("POST /services/discover", {}),
    "discover-services --driver d --setup": (
        "POST /services/discover",
        {"driver": "d", "setup": True},
    ),
    "discover-services --host a --driver d --no-wait": (
        "POST /services/discover?wait=true",
        {"hosts": ["a"], "driver": "d"},
    ),
    (
        "accelerator-create --host h --driver d --backend b --model m --type FPGA --resource-class "
        "FPGA --trait CUSTOM_A --trait CUSTOM_B --handle 0c:00.1 --handle 0c:00.2 --label rack=7"
    ): (
        "POST /devices",
        NEW
        | {
            "traits": ["CUSTOM_A", "CUSTOM_B"],
            "handles": ["0c:00.1", "0c:00.2"],
            "labels": {"rack": "7"},
        },
    ),
    (
        "accelerator-create --host h --driver d --backend b --model m --type FPGA --resource-class "
        "FPGA --units 3 --no-wait"
    ): ("POST /devices?wait=true", NEW | {"handles": 3}),
    f"accelerator-update {DEVICE} --model m --trait CUSTOM_A": (
        f"PATCH /devices/{DEVICE}",
        {"model": "m", "traits": ["CUSTOM_A"]},
    ),
    f"accelerator-update {DEVICE} --status maintaining --reason fans": (
        f"PATCH /devices/{DEVICE}",
        {"status": "maintaining", "status_reason": "fans"},
    ),
    f"accelerator-update {DEVICE} --health ignore --for 4h": (
        f"PATCH /devices/{DEVICE}",
        {"health": "ignore", "ignore_for": 14_400},
    ),
    f"accelerator-update {DEVICE} --health auto": (
        f"PATCH /devices/{DEVICE}",
        {"health": "auto"},
    ),
    f"accelerator-update {DEVICE} --status ready --label rack=7": (
        f"PATCH /devices/{DEVICE}",
        {"status": "ready", "labels": {"rack": "7"}},
    ),
    f"accelerator-update {DEVICE} --label a=1 --unset-label b": (
        f"PATCH /devices/{DEVICE}",
        {"labels": {"a": "1", "b": None}},
    ),
    (
        "profile-create fpga --group resources:FPGA=1,trait:CUSTOM_A=required --group "
        "resources:FPGA=2 --description d"
    ): (
        "POST /device_profiles",
        [
            {
                "name": "fpga",
                "groups": [
                    {"resources:FPGA": "1", "trait:CUSTOM_A": "required"},
                    {"resources:FPGA": "2"},
                ],
                "description": "d",
            }
        ],
    ),
    f"profile-update {PROFILE} --name new --no-description": (
        f"PATCH /device_profiles/{PROFILE}",
        {"name": "new", "description": None},
    ),
    f"profile-update {PROFILE} --group resources:FPGA=2": (
        f"PATCH /device_profiles/{PROFILE}",
        {"groups": [{"resources:FPGA": "2"}]},
    ),
    "profile-create fpga --group resources:FPGA=1 --project b --project a": (
        "POST /device_profiles",
        [{"name": "fpga", "groups": [{"resources:FPGA": "1"}], "projects": ["b", "a"]}],
    ),
    f"profile-update {PROFILE} --project a": (
        f"PATCH /device_profiles/{PROFILE}",
        {"projects": ["a"]},
    ),
    f"profile-update {PROFILE} --public": (
        f"PATCH /device_profiles/{PROFILE}",
        {"projects": None},
    ),
    f"attach-instance {INSTANCE}": (f"POST /instances/{INSTANCE}/accelerators", {}),
    f"attach-instance {INSTANCE} --device-profile fpga": (
        f"POST /instances/{INSTANCE}/accelerators",
        {"device_profile": "fpga"},
    ),
}


def _request(line: str, body: Any = None) -> tuple[str, str, dict[str, str], Any]:
    method, _, url = line.partition(" ")
    path, _, query = url.partition("?")
    return method, path, dict(parse_qsl(query)), body


#: Command line → method, path, query, body.
SENT = {command: _request(line) for command, line in READS.items()}
SENT |= {command: _request(*request) for command, request in CHANGES.items()}


@pytest.mark.parametrize("command", SENT)
def test_command_sends_one_request_with_microversion_2_100(
    command: str, cyborg: Run, service: Service
):
    outcome = cyborg(command)
    (request,) = service.requests
    method, path, *_ = SENT[command]
    assert (request.method, request.path, request.query, request.body) == SENT[command]
    assert request.version == "accelerator 2.100"
    assert outcome.status == 0, outcome.err
    starts_operation = method in {"POST", "DELETE"} and path.startswith("/services")
    starts_operation |= method != "GET" and path.startswith(("/drivers", "/instances"))
    starts_operation |= (method, path) == ("POST", "/devices")
    assert (request.request_key is not None) is starts_operation
    assert request.request_key is None or UUID(request.request_key)


def test_every_command_has_a_test_request():
    # Its first request is to Nova: see test_instance_moves.
    assert {line.split()[0] for line in SENT} == set(COMMANDS) - {"instance-move"}


def test_operation_id_option_is_sent_as_idempotency_key(cyborg: Run, service: Service):
    cyborg(f"discover-services --operation-id {OPERATION}")
    assert service.requests[0].request_key == OPERATION


WRONG = [
    ("attach-instance no-uuid", 2, "'no-uuid' is not a UUID"),
    ("discover-services --operation-id 7", 2, "'7' is not a UUID"),
    ("install-driver d --option x", 2, "'x' does not have the form KEY=VALUE"),
    ("install-driver d --option x=1 --option x=2", 2, "key 'x' is given twice"),
    ("update-driver d --option x=1 --unset-option x", 2, "key 'x' is given twice"),
    ("capacity --by rack", 2, "invalid choice: 'rack'"),
    ("usage-show --limit 1", 2, "unrecognized arguments"),
    ("usage-list --instance web-1", 2, "web-1"),
    ("update-driver d --enable --disable", 2, "not allowed with"),
    ("profile-create p", 2, "--group"),
    ("profile-create --group resources:FPGA=1", 1, "No name is given"),
    ("profile-create p --group resources:FPGA=1 --count 2", 1, "--from-device only"),
    (f"profile-create --group resources:FPGA=1 --from-device {DEVICE}", 2, "not allowed with"),
    ("profile-create --from-device x", 2, "'x' is not a UUID"),
    ("profile-create p --group resources:FPGA", 2, "does not have the form KEY=VALUE"),
    ("profile-create p --group a=1,a=2", 2, "key 'a' is given twice"),
    ("accelerator-create --host h", 2, "required"),
    ("accelerator-create --units 0", 2, "'0' is not an integer greater than 0"),
    ("accelerator-create --units 1 --handle 0c:00.0", 2, "not allowed with"),
    (f"accelerator-update {DEVICE} --status lost", 2, "invalid choice"),
    ("driver-list --limit 0", 2, "'0' is not an integer greater than 0"),
    ("nonsense", 2, "is not a cyborg command"),
    ("profile-update fpga", 1, "--group"),
    ("profile-update fpga --public --project a", 2, "not allowed with"),
    *(
        (f"{command} --os-accelerator-api-version 2.3", 1, "The command needs microversion 2.100")
        for command in (
            "profile-create fpga --group resources:FPGA=1 --project a",
            "profile-update fpga --project a",
            "profile-update fpga --public",
        )
    ),
    ("profile-apply --prune", 2, "-f/--file"),
    ("profile-apply -f /nonexistent.yaml", 1, "No such file or directory"),
    ("accelerator-update x", 1, "--label"),
    ("accelerator-update --status ready", 1, "No accelerator is given"),
    ("accelerator-update --label rack=7", 1, "No change is given"),
    (f"accelerator-update {DEVICE} --host h --status ready", 1, "but not both"),
    (f"accelerator-update {DEVICE} --label a=1 --unset-label a", 1, "Label a is given twice"),
    (f"accelerator-update {DEVICE} --status ready --reason x", 1, "--status maintaining only"),
    (f"accelerator-update {DEVICE} --health ignore", 1, "go together"),
    (f"accelerator-update {DEVICE} --health auto --for 4h", 1, "go together"),
    (f"accelerator-update {DEVICE} --health ignore --for 4", 2, "is not a number with one of the"),
]


@pytest.mark.parametrize(("command", "status", "message"), WRONG)
def test_wrong_command_line_sends_no_request(
    command: str, status: int, message: str, cyborg: Run, service: Service
):
    outcome = cyborg(command)
    assert (outcome.status, service.requests) == (status, [])
    assert message in outcome.err + outcome.out


def test_key_with_special_characters_is_one_path_segment(cyborg: Run, service: Service):
    cyborg("profile-delete", "a/../b?c=d#e %")
    request = service.last
    assert (request.path, request.query) == ("/device_profiles/a/../b?c=d#e %", {})

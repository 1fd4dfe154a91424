# SPDX-License-Identifier: Apache-2.0
"""The request that each command sends: method, path, query, body and headers."""

from typing import Any
from uuid import UUID

import pytest

from cyborg.cli.shell import COMMANDS
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
    Service,
)

CREATED = ("POST", "/devices")
#: The required fields of a new accelerator.
NEW = {
    "host": "h",
    "driver": "d",
    "backend": "b",
    "model": "m",
    "type": "FPGA",
    "resource_class": "FPGA",
}
#: Command line → method, path, query, body.
SENT: dict[str, tuple[str, str, dict[str, str], Any]] = {
    "service-list --kind backend --host h --driver d --backend b --limit 5": (
        "GET",
        "/services",
        {"kind": "backend", "host": "h", "driver": "d", "backend": "b", "limit": "5"},
        None,
    ),
    f"service-show {AGENT}": ("GET", f"/services/{AGENT}", {}, None),
    f"service-enable {AGENT}": ("PATCH", f"/services/{AGENT}", {}, {"status": "enabled"}),
    f"service-disable {AGENT} --reason fans": (
        "PATCH",
        f"/services/{AGENT}",
        {},
        {"status": "disabled", "disabled_reason": "fans"},
    ),
    f"service-delete {AGENT}": ("DELETE", f"/services/{AGENT}", {}, None),
    "backend-list --host h --driver d --name n": (
        "GET",
        "/backends",
        {"host": "h", "driver": "d", "name": "n"},
        None,
    ),
    f"backend-show {BACKEND}": ("GET", f"/backends/{BACKEND}", {}, None),
    "driver-list --host h --name n --state READY": (
        "GET",
        "/drivers",
        {"host": "h", "name": "n", "state": "READY"},
        None,
    ),
    f"driver-show {DRIVER}": ("GET", f"/drivers/{DRIVER}", {}, None),
    "install-driver fake_driver --host a --host b --option x=1 --option y=2=3": (
        "POST",
        "/drivers",
        {},
        {"driver": "fake_driver", "hosts": ["a", "b"], "options": {"x": "1", "y": "2=3"}},
    ),
    "install-driver fake_driver": ("POST", "/drivers", {}, {"driver": "fake_driver"}),
    "uninstall-driver fake_driver": ("DELETE", "/drivers/fake_driver", {}, None),
    "uninstall-driver fake_driver --drain": (
        "DELETE",
        "/drivers/fake_driver",
        {"drain": "true"},
        None,
    ),
    "update-driver fake_driver": ("PATCH", "/drivers/fake_driver", {}, {}),
    "update-driver fake_driver --option x=1 --unset-option y --disable": (
        "PATCH",
        "/drivers/fake_driver",
        {},
        {"options": {"x": "1", "y": None}, "enabled": False},
    ),
    "discover-services": ("POST", "/services/discover", {}, {}),
    "discover-services --driver d --setup": (
        "POST",
        "/services/discover",
        {},
        {"driver": "d", "setup": True},
    ),
    "discover-services --host a --driver d --no-wait": (
        "POST",
        "/services/discover",
        {"wait": "true"},
        {"hosts": ["a"], "driver": "d"},
    ),
    f"hardware-show {DEVICE}": ("GET", f"/hardware/{DEVICE}", {}, None),
    "hardware-list --capability ipsec --remote false": (
        "GET",
        "/hardware",
        {"capability": "ipsec", "remote": "false"},
        None,
    ),
    "backend-list --capability num": ("GET", "/backends", {"capability": "num"}, None),
    "hardware-list --host h --driver d --type CRYPTO --setup-required": (
        "GET",
        "/hardware",
        {"host": "h", "driver": "d", "type": "CRYPTO", "setup_required": "true"},
        None,
    ),
    f"accelerator-list --host h --driver d --backend b --type GPU --vendor v --status lost "
    f"--instance {INSTANCE} --label a=1 --label b=2 --free --marker {DEVICE}": (
        "GET",
        "/devices",
        {
            "hostname": "h",
            "driver": "d",
            "backend": "b",
            "type": "GPU",
            "vendor": "v",
            "status": "lost",
            "instance": INSTANCE,
            "labels": "a=1,b=2",
            "in_use": "false",
            "marker": DEVICE,
        },
        None,
    ),
    f"event-list --device {DEVICE} --host h --instance {INSTANCE} --arq {ARQ} --request req-1 "
    "--since 2026-11-01T10:00 --limit 5 --marker 7": (
        "GET",
        "/events",
        {
            "device": DEVICE,
            "host": "h",
            "instance": INSTANCE,
            "arq": ARQ,
            "request_id": "req-1",
            "since": "2026-11-01T10:00",
            "limit": "5",
            "marker": "7",
        },
        None,
    ),
    "accelerator-list --attached": ("GET", "/devices", {"in_use": "true"}, None),
    f"accelerator-show {DEVICE}": ("GET", f"/devices/{DEVICE}", {}, None),
    "accelerator-create --host h --driver d --backend b --model m --type FPGA "
    "--resource-class FPGA --trait CUSTOM_A --trait CUSTOM_B --handle 0c:00.1 --handle 0c:00.2 "
    "--label rack=7": (
        "POST",
        "/devices",
        {},
        {
            **NEW,
            "traits": ["CUSTOM_A", "CUSTOM_B"],
            "handles": ["0c:00.1", "0c:00.2"],
            "labels": {"rack": "7"},
        },
    ),
    "accelerator-create --host h --driver d --backend b --model m --type FPGA "
    "--resource-class FPGA --units 3 --no-wait": (
        "POST",
        "/devices",
        {"wait": "true"},
        {**NEW, "handles": 3},
    ),
    f"accelerator-update {DEVICE} --model m --trait CUSTOM_A": (
        "PATCH",
        f"/devices/{DEVICE}",
        {},
        {"model": "m", "traits": ["CUSTOM_A"]},
    ),
    f"accelerator-update {DEVICE} --status maintaining --reason fans": (
        "PATCH",
        f"/devices/{DEVICE}",
        {},
        {"status": "maintaining", "status_reason": "fans"},
    ),
    f"accelerator-update {DEVICE} --status ready --label rack=7": (
        "PATCH",
        f"/devices/{DEVICE}",
        {},
        {"status": "ready", "labels": {"rack": "7"}},
    ),
    f"accelerator-update {DEVICE} --label a=1 --unset-label b": (
        "PATCH",
        f"/devices/{DEVICE}",
        {},
        {"labels": {"a": "1", "b": None}},
    ),
    f"accelerator-delete {DEVICE}": ("DELETE", f"/devices/{DEVICE}", {}, None),
    "profile-list --name a,b": ("GET", "/device_profiles", {"name": "a,b"}, None),
    "profile-show fpga": ("GET", "/device_profiles/fpga", {}, None),
    "profile-create fpga --group resources:FPGA=1,trait:CUSTOM_A=required "
    "--group resources:FPGA=2 --description d": (
        "POST",
        "/device_profiles",
        {},
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
        "PATCH",
        f"/device_profiles/{PROFILE}",
        {},
        {"name": "new", "description": None},
    ),
    f"profile-update {PROFILE} --group resources:FPGA=2": (
        "PATCH",
        f"/device_profiles/{PROFILE}",
        {},
        {"groups": [{"resources:FPGA": "2"}]},
    ),
    "profile-delete fpga": ("DELETE", "/device_profiles/fpga", {}, None),
    f"arq-list --instance {INSTANCE} --state Bound --host h --profile fpga --project p": (
        "GET",
        "/accelerator_requests",
        {
            "instance": INSTANCE,
            "state": "Bound",
            "hostname": "h",
            "device_profile_name": "fpga",
            "project_id": "p",
        },
        None,
    ),
    f"arq-show {ARQ}": ("GET", f"/accelerator_requests/{ARQ}", {}, None),
    "operation-list --action discover --state failed": (
        "GET",
        "/operations",
        {"verb": "discover", "state": "failed", "sort_key": "created_at", "sort_dir": "desc"},
        None,
    ),
    f"operation-show {OPERATION}": ("GET", f"/operations/{OPERATION}", {}, None),
    f"attach-instance {INSTANCE}": ("POST", f"/instances/{INSTANCE}/accelerators", {}, {}),
    f"attach-instance {INSTANCE} --device-profile fpga": (
        "POST",
        f"/instances/{INSTANCE}/accelerators",
        {},
        {"device_profile": "fpga"},
    ),
    f"detach-instance {INSTANCE}": ("DELETE", f"/instances/{INSTANCE}/accelerators", {}, None),
    f"detach-instance {INSTANCE} {ARQ}": (
        "DELETE",
        f"/instances/{INSTANCE}/accelerators/{ARQ}",
        {},
        None,
    ),
    "usage-show --type FPGA --host h --project p": (
        "GET",
        "/usage",
        {"type": "FPGA", "host": "h", "project_id": "p"},
        None,
    ),
}


@pytest.mark.parametrize("command", SENT)
def test_command_sends_one_request_with_microversion_2_5(
    command: str, cyborg: Run, service: Service
):
    outcome = cyborg(command)
    request = service.requests[0]
    assert (request.method, request.path, request.query, request.body) == SENT[command]
    assert request.version == "accelerator 2.5"
    assert len(service.requests) == 1
    assert outcome.status == 0, outcome.err


def test_every_command_has_a_test_request():
    assert {line.split()[0] for line in SENT} == set(COMMANDS)


def test_only_operation_commands_send_an_idempotency_key(cyborg: Run, service: Service):
    for line, (method, path, _, _) in SENT.items():
        service.requests.clear()
        cyborg(line)
        starts_operation = method in {"POST", "DELETE"} and path.startswith("/services")
        starts_operation |= method != "GET" and path.startswith(("/drivers", "/instances"))
        starts_operation |= (method, path) == CREATED
        assert (service.requests[0].request_key is not None) is starts_operation, line
        if starts_operation:
            UUID(service.requests[0].request_key)


def test_operation_id_option_is_sent_as_idempotency_key(cyborg: Run, service: Service):
    cyborg(f"discover-services --operation-id {OPERATION}")
    assert service.requests[0].request_key == OPERATION


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("attach-instance no-uuid", "'no-uuid' is not a UUID"),
        ("discover-services --operation-id 7", "'7' is not a UUID"),
        ("install-driver d --option x", "'x' does not have the form KEY=VALUE"),
        ("install-driver d --option x=1 --option x=2", "key 'x' is given twice"),
        ("update-driver d --option x=1 --unset-option x", "key 'x' is given twice"),
        ("usage-show --limit 1", "unrecognized arguments"),
        ("update-driver d --enable --disable", "not allowed with"),
        ("profile-create p", "--group"),
        ("profile-create p --group resources:FPGA", "does not have the form KEY=VALUE"),
        ("profile-create p --group a=1,a=2", "key 'a' is given twice"),
        ("accelerator-create --host h", "required"),
        ("accelerator-create --units 0", "'0' is not an integer greater than 0"),
        ("accelerator-create --units 1 --handle 0c:00.0", "not allowed with"),
        (f"accelerator-update {DEVICE} --status lost", "invalid choice"),
        ("driver-list --limit 0", "'0' is not an integer greater than 0"),
        ("nonsense", "is not a cyborg command"),
    ],
)
def test_wrong_command_line_exits_with_2_and_sends_no_request(
    command: str, message: str, cyborg: Run, service: Service
):
    outcome = cyborg(command)
    assert outcome.status == 2
    assert message in outcome.err + outcome.out
    assert service.requests == []


def test_key_with_special_characters_is_one_path_segment(program: Run, url: str, service: Service):
    options = ("--os-auth-type", "none", "--os-endpoint", url)
    program(*options, "profile-delete", "a/../b?c=d#e %")
    request = service.last
    assert (request.path, request.query) == ("/device_profiles/a/../b?c=d#e %", {})


@pytest.mark.parametrize(
    ("command", "advice"), [("profile-update fpga", "--group"), ("accelerator-update x", "--label")]
)
def test_update_without_a_change_fails_and_sends_no_request(
    command: str, advice: str, cyborg: Run, service: Service
):
    outcome = cyborg(command)
    assert (outcome.status, service.requests) == (1, [])
    assert advice in outcome.err

# SPDX-License-Identifier: Apache-2.0
"""Every command sends the request that the API understands."""

from typing import Any
from uuid import UUID

import pytest

from cyborg.cli.catalogue import COMMANDS
from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import (
    AGENT,
    ARQ,
    DEVICE,
    DRIVER,
    ENGINE,
    INSTANCE,
    OPERATION,
    PROFILE,
    Service,
)

CREATED = ("POST", "/devices")
#: The least that an accelerator is created from.
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
    f"backend-show {ENGINE}": ("GET", f"/backends/{ENGINE}", {}, None),
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
def test_a_command_sends_one_request_with_the_microversion(
    command: str, cyborg: Run, service: Service
):
    ran = cyborg(command)
    asked = service.asked[0]
    assert (asked.method, asked.path, asked.query, asked.body) == SENT[command]
    assert asked.version == "accelerator 2.5"
    assert len(service.asked) == 1
    assert ran.status == 0, ran.err


def test_every_command_is_tried_above():
    assert {line.split()[0] for line in SENT} == set(COMMANDS)


def test_long_verbs_bring_an_id_and_others_do_not(cyborg: Run, service: Service):
    for line, (method, path, _, _) in SENT.items():
        service.asked.clear()
        cyborg(line)
        long = method in {"POST", "DELETE"} and path.startswith("/services")
        long |= method != "GET" and path.startswith(("/drivers", "/instances"))
        long |= (method, path) == CREATED
        assert (service.asked[0].operation is not None) is long, line
        if long:
            UUID(service.asked[0].operation)


def test_an_id_of_ones_own_is_sent(cyborg: Run, service: Service):
    cyborg(f"discover-services --operation-id {OPERATION}")
    assert service.asked[0].operation == OPERATION


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("attach-instance no-uuid", "no-uuid is no UUID"),
        ("discover-services --operation-id 7", "7 is no UUID"),
        ("install-driver d --option x", "x is not of the form key=value"),
        ("install-driver d --option x=1 --option x=2", "x is given twice"),
        ("update-driver d --option x=1 --unset-option x", "x is given twice"),
        ("usage-show --limit 1", "unrecognized arguments"),
        ("update-driver d --enable --disable", "not allowed with"),
        ("profile-create p", "--group"),
        ("profile-create p --group resources:FPGA", "not of the form key=value"),
        ("profile-create p --group a=1,a=2", "a is given twice"),
        ("accelerator-create --host h", "required"),
        ("accelerator-create --units 0", "no number from 1"),
        ("accelerator-create --units 1 --handle 0c:00.0", "not allowed with"),
        (f"accelerator-update {DEVICE} --status lost", "invalid choice"),
        ("driver-list --limit 0", "no number from 1"),
        ("nonsense", "is not a cyborg command"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_asks_nothing(
    command: str, complaint: str, cyborg: Run, service: Service
):
    ran = cyborg(command)
    assert ran.status == 2
    assert complaint in ran.err + ran.out
    assert service.asked == []


def test_a_key_is_one_segment_whatever_is_in_it(program: Run, url: str, service: Service):
    options = ("--os-auth-type", "none", "--os-endpoint", url)
    program(*options, "profile-delete", "a/../b?c=d#e %")
    asked = service.last
    assert (asked.path, asked.query) == ("/device_profiles/a/../b?c=d#e %", {})


@pytest.mark.parametrize(
    ("command", "advice"), [("profile-update fpga", "--group"), ("accelerator-update x", "--label")]
)
def test_an_update_of_nothing_is_refused_here(
    command: str, advice: str, cyborg: Run, service: Service
):
    ran = cyborg(command)
    assert (ran.status, service.asked) == (1, [])
    assert advice in ran.err

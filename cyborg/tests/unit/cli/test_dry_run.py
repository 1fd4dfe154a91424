# SPDX-License-Identifier: Apache-2.0
"""``--dry-run`` of commands: what they would do, without a request that changes anything."""

from typing import Any

import pytest

from cyborg.tests.unit.cli.conftest import CommandResult, Run
from cyborg.tests.unit.cli.service import (
    DEVICE,
    DRIVER,
    PROCESS,
    PROFILE,
    RESOURCES,
    Answer,
    Service,
)

ROW = RESOURCES["drivers"][0]


@pytest.fixture
def dry(cyborg: Run, service: Service) -> Run:
    """Return a function that runs a command with ``--dry-run``; it must only read."""

    def run(command: str, *arguments: str) -> CommandResult:
        outcome = cyborg(f"{command} --dry-run", *arguments)
        assert {request.method for request in service.requests} <= {"GET"}
        return outcome

    return run


def drivers(service: Service, *rows: dict[str, Any]) -> None:
    """Let the next list of drivers have these rows, and each of their hosts an agent."""
    service.answers["/drivers"] = [Answer(200, {"drivers": [ROW | row for row in rows]})]
    agents = [
        PROCESS | {"host": row["host"], "binary": "cyborg-agent", "state": row.get("agent", "up")}
        for row in rows
    ]
    others = [PROCESS | {"host": "control", "binary": "cyborg-conductor", "state": "up"}]
    service.answers["/services"] = [Answer(200, {"services": agents + others})]


def results(outcome: CommandResult) -> list[tuple[str, str, Any]]:
    return [
        (result["host"], result["state"], result["error"] or result["result"])
        for result in outcome.json["results"]
    ]


def test_profile_update_shows_the_changed_profile(dry: Run) -> None:
    outcome = dry("profile-update fpga --name new --group resources:FPGA=2 --public -f json")
    assert outcome.json == {
        "uuid": PROFILE,
        "name": "new",
        "description": None,
        "groups": [{"resources:FPGA": "2"}],
        "projects": None,
        "created_at": "2026-11-01T10:00:00Z",
        "updated_at": None,
    }
    assert "Would change: name, groups.\n" in outcome.err
    assert "nothing was changed" in outcome.err
    assert "Would change: nothing" in dry("profile-update fpga --no-description").err


def test_profile_create_shows_the_new_profile(dry: Run) -> None:
    outcome = dry(f"profile-create --from-device {DEVICE} --count 2 --project p -f json")
    traits = ("CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_PRODUCT_ID_0B2B")
    group = {"resources:FPGA": "2", **{f"trait:{trait}": "required" for trait in traits}}
    assert outcome.json == {"name": "miyabi-x2", "groups": [group], "projects": ["p"]}


def test_accelerator_update_shows_the_changed_accelerators(dry: Run) -> None:
    line = f"accelerator-update {DEVICE} --status maintaining --reason fans"
    outcome = dry(f"{line} --label row=2 --unset-label rack --health ignore --for 4h -f json")
    (row,) = outcome.json
    assert row["uuid"] == DEVICE
    assert {name: row[name] for name in ("status", "reason", "labels", "health")} == {
        "status": "maintaining",
        "reason": "fans",
        "labels": {"row": "2"},
        "health": "ignored",
    }
    assert f"{DEVICE}: would change status, status_reason, health, labels." in outcome.err
    assert f"{DEVICE}: 2 unit(s) in use stay with their instances." in outcome.err
    outcome = dry(f"accelerator-update {DEVICE} --status ready --label rack=7 --wait")
    assert "would change nothing" in outcome.err
    outcome = dry(f"accelerator-update {DEVICE} --free-unit u --health auto --model m")
    assert "would change model, health, unit u." in outcome.err


def test_selected_accelerators_are_shown_without_a_question(dry: Run, service: Service) -> None:
    outcome = dry("accelerator-update --driver fake_driver --status maintaining -f json")
    assert [row["status"] for row in outcome.json] == ["maintaining"]
    assert service.requests[0].query == {"driver": "fake_driver"}


def test_install_shows_each_host(dry: Run, service: Service) -> None:
    rows = (
        {"host": "a", "enabled": False, "state": "STOPPED", "options": {"x": "1"}},
        {"host": "b"},
        {"host": "c", "agent": "down"},
    )
    drivers(service, *rows)
    outcome = dry("install-driver fake_driver -f json")
    loaded = {"driver": "is loaded", "options": {"x": "1"}}
    again = {"driver": "is loaded again", "options": {"count": "2"}}
    assert results(outcome) == [("a", "would succeed", loaded), ("b", "would succeed", again)]
    assert (outcome.json["verb"], outcome.json["state"]) == ("install_driver", "would succeed")
    drivers(service, *rows)
    outcome = dry("install-driver fake_driver --host a --host c --option y=2")
    assert (outcome.status, "c: its agent is down" in outcome.err) == (1, True)
    assert "a: would succeed, driver is loaded; options y 2" in outcome.out
    drivers(service, *rows)
    outcome = dry("install-driver fake_driver --host c --no-wait -f json")
    assert [state for _, state, _ in results(outcome)] == ["would succeed"]
    drivers(service, *rows)
    outcome = dry("install-driver fake_driver --host d")
    assert (outcome.status, "No agent reports as d." in outcome.err) == (1, True)
    drivers(service, {"host": "a"})
    service.answers["/drivers"] = [Answer(200, {"drivers": []})]
    outcome = dry("install-driver other_driver -f json")
    reason = "it has not reported a package with driver other_driver"
    assert results(outcome) == [("a", "unknown", reason)]


def test_uninstall_shows_devices_and_what_is_in_use(dry: Run, service: Service) -> None:
    free = {"found": 3, "offered": 3, "in_use": 0}
    rows = (
        {"host": "a", "devices": free},
        {"host": "b"},
        {"host": "c", "enabled": False, "state": "STOPPED"},
    )
    drivers(service, *rows)
    outcome = dry("uninstall-driver fake_driver")
    assert outcome.status == 1
    assert "b: 1 of its devices are in use; with --drain it waits for them" in outcome.err
    assert "a: would succeed, 3 devices removed" in outcome.out
    drivers(service, *rows)
    assert results(dry("uninstall-driver fake_driver --drain -f json")) == [
        ("a", "would succeed", {"devices": 3}),
        ("b", "would succeed", {"devices": 2, "waits for devices in use": 1}),
    ]
    drivers(service, rows[2])
    outcome = dry("uninstall-driver fake_driver -f json")
    assert [(host, state) for host, state, _ in results(outcome)] == [("c", "unknown")]
    assert outcome.json["state"] == "unknown"
    drivers(service, rows[2])
    service.answers["/drivers"] = [Answer(200, {"drivers": []})]
    outcome = dry("uninstall-driver fake_driver")
    assert (outcome.status, "No host has driver fake_driver" in outcome.err) == (1, True)
    drivers(service, {"host": "a", "agent": "down", "devices": free})
    assert "a: its agent is down" in dry("uninstall-driver fake_driver").err


def test_update_shows_options_after_the_change(dry: Run, service: Service) -> None:
    change = "--option x=1 --unset-option count"
    drivers(service, {"host": "a"})
    outcome = dry(f"update-driver fake_driver {change} -f json")
    after = {"driver": "is enabled", "options": {"x": "1"}}
    assert results(outcome) == [("a", "would succeed", after)]
    drivers(service, {"host": "a"})
    outcome = dry("update-driver fake_driver --disable")
    assert (outcome.status, "a: 1 of its devices are in use" in outcome.err) == (1, True)
    drivers(service, {"host": "a"})
    outcome = dry("update-driver fake_driver -f json")
    assert results(outcome) == [("a", "would succeed", {"driver": "is loaded again"})]
    drivers(service, {"host": "a", "enabled": False, "state": "STOPPED"})
    outcome = dry("update-driver fake_driver --enable")
    assert (outcome.status, "if it is not disabled" in outcome.out) == (0, True)
    drivers(service, {"host": "a", "enabled": False, "agent": "down"})
    assert dry("update-driver fake_driver --enable").status == 1


def test_row_of_a_driver_limits_the_dry_run_to_its_host(dry: Run, service: Service) -> None:
    drivers(service, {"host": "compute-1"})
    outcome = dry(f"install-driver {DRIVER} -f json")
    assert [host for host, _, _ in results(outcome)] == ["compute-1"]
    paths = [(request.path, dict(request.query)) for request in service.requests]
    assert paths == [
        (f"/drivers/{DRIVER}", {}),
        ("/drivers", {"name": "fake_driver", "host": "compute-1"}),
        ("/services", {"kind": "process"}),
    ]

# SPDX-License-Identifier: Apache-2.0
"""The output of commands in each format, in a pipe and on a terminal."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from cyborg.tests.fixtures.waiting import ran
from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import (
    AGENT,
    BACKEND,
    DEVICE,
    DRIVER,
    INSTANCE,
    PROCESS,
    RESOURCES,
    USAGE,
    Answer,
    Service,
    error_body,
    operation,
    result,
)
from cyborg_cli import cells

GREEN = "\033[32m"


def test_json_keeps_nested_objects(cyborg: Run):
    (hardware,) = cyborg("hardware-list --long -f json").json
    assert hardware == {
        "uuid": DEVICE,
        "hostname": "compute-1",
        "driver": "fake_driver",
        "key": "0000:3b:00.0",
        "device_type": "CRYPTO",
        "num": 2,
        "setup_required": True,
        "reboot_required": False,
        "driver_offers": False,
        "remote": 0,
        "acc_capability": {"num": 2, "ipsec": {"num": 1}},
        "reason": "no firmware",
    }


def test_show_prints_all_fields_of_the_object_except_links(cyborg: Run):
    expected = {key: value for key, value in RESOURCES["devices"][0].items() if key != "links"}
    assert cyborg(f"accelerator-show {DEVICE} -f json").json == expected
    assert cyborg("profile-show fpga -f json").json["groups"] == [{"resources:FPGA": "1"}]


def pages(rows: list[dict[str, Any]], size: int) -> list[Answer]:
    """Return the answers to a list of drivers that the service cuts into pages."""
    answers = []
    for first in range(0, len(rows), size):
        page = rows[first : first + size]
        body: dict[str, Any] = {"drivers": page}
        if first + size < len(rows):
            href = f"http://other.test/v2/drivers?host=h&marker={page[-1]['uuid']}"
            body["drivers_links"] = [{"rel": "next", "href": href}]
        answers.append(Answer(200, body))
    return answers


def test_list_is_read_from_all_its_pages(cyborg: Run, service: Service):
    rows = [RESOURCES["drivers"][0] | {"uuid": f"driver-{number}"} for number in range(5)]
    uuids = [row["uuid"] for row in rows]
    service.answers["/drivers"] = pages(rows, 2)
    assert cyborg("driver-list --host h -f value -c uuid").out.split() == uuids
    assert [request.query for request in service.requests] == [
        {"host": "h"},
        {"host": "h", "marker": uuids[1]},
        {"host": "h", "marker": uuids[3]},
    ]
    service.requests.clear()
    service.answers["/drivers"] = pages(rows, 2)[:2]
    outcome = cyborg("driver-list --limit 4 -f value -c uuid")
    assert outcome.out.split() == uuids[:4]
    assert [request.query for request in service.requests] == [
        {"limit": "4"},
        {"limit": "2", "marker": uuids[1]},
    ]


@pytest.mark.parametrize("link", [{"rel": "next"}, {"rel": "next", "href": "http://x/"}, "next"])
def test_link_that_leads_nowhere_is_reported(cyborg: Run, service: Service, link: Any):
    body = {"drivers": RESOURCES["drivers"], "drivers_links": [link]}
    service.answers["/drivers"] = [Answer(200, body)]
    outcome = cyborg("driver-list")
    assert (outcome.status, "does not answer like" in outcome.err) == (1, True), outcome.err


def test_limits_of_the_project_are_shown(cyborg: Run):
    assert cyborg("limits-show -f json").json == RESOURCES["limits"][0]


def test_value_format_prints_plain_values(cyborg: Run):
    assert cyborg("driver-list -f value -c uuid").out == f"{DRIVER}\n"
    assert cyborg("driver-list -f value -c in_use -c found").out == "2 1\n"
    outcome = cyborg("accelerator-list --long -f value -c labels")
    assert outcome.out == '{"rack": "7"}\n'


def test_accelerator_list_shows_holders_and_instance_status(cyborg: Run):
    (accelerator,) = cyborg("accelerator-list --long -f json").json
    assert accelerator["holder"] == accelerator["instance_name"] == ["web-1", AGENT]
    assert accelerator["instance_status"] == ["ACTIVE", "unknown"]
    lines = cyborg("accelerator-list --long -c holder -c instance_status").out.splitlines()
    assert [line.split() for line in lines[3:5]] == [
        ["|", "web-1", "|", "ACTIVE", "|"],
        ["|", AGENT, "|", "unknown", "|"],
    ]
    text = cyborg(f"accelerator-show {DEVICE}").out
    assert f"web-1 (uuid {INSTANCE}, status ACTIVE, seen at 2026-11-01T10:00:00.000+00:00)" in text
    assert f"unknown (uuid {AGENT}, status unknown)" in text


def test_driver_list_hides_installed_drivers_that_nobody_enabled(
    cyborg: Run, service: Service
) -> None:
    found = {"found": 0, "offered": 0, "in_use": 0}
    rows = [
        {"uuid": DEVICE, "name": "on", "enabled": True, "error": None, "devices": found},
        {"uuid": AGENT, "name": "idle", "enabled": False, "error": None, "devices": found},
        {"uuid": BACKEND, "name": "bad", "enabled": False, "error": "e", "devices": found},
    ]
    for line, names in (
        ("driver-list", ["on", "bad"]),
        ("driver-list --all", ["on", "idle", "bad"]),
        ("driver-list --name idle", ["on", "idle", "bad"]),
    ):
        service.answers["/drivers"] = [Answer(200, {"drivers": rows})]
        outcome = cyborg(f"{line} -f value -c name")
        assert outcome.out.split() == names
        assert ("1 installed driver(s)" in outcome.err) is (line == "driver-list")


def test_csv_has_one_line_per_object_and_long_more_columns(cyborg: Run):
    rows = list(csv.reader(io.StringIO(cyborg("service-list -f csv").out)))
    assert rows[0][:4] == ["uuid", "kind", "host", "binary"]
    assert [row[0] for row in rows[1:]] == [AGENT, BACKEND]
    assert "last_seen_at" not in rows[0]
    assert PROCESS["last_seen_at"] in cyborg("service-list --long").out
    down = cyborg("service-list -f value -c uuid --sort-column uuid --sort-descending")
    assert down.out.split() == [BACKEND, AGENT]


def test_states_have_colours_only_in_tables_on_a_terminal(
    cyborg: Run, service: Service, monkeypatch: pytest.MonkeyPatch
):
    assert f"{GREEN}up" in cyborg("service-list", terminal=True).out
    assert "\033" not in cyborg("service-list").out
    assert "\033" not in cyborg("service-list -f json", terminal=True).out
    assert "\033" not in cyborg("service-list -f value", terminal=True).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in cyborg("service-list", terminal=True).out


def test_colours_change_neither_widths_nor_order(cyborg: Run):
    lines = cyborg("service-list", terminal=True).out.splitlines()
    plain = [line.replace(GREEN, "").replace("\033[0m", "") for line in lines]
    assert len({len(line) for line in plain}) == 1
    outcome = cyborg("service-list -c state -c uuid --sort-column state", terminal=True)
    assert (outcome.status, AGENT in outcome.out) == (0, True)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("column", "values"),
    [("num", [7, None, 3]), ("device_type", ["b", None, "a"]), ("state", ["up", None, "down"])],
)
def test_missing_value_is_an_empty_cell_and_sorts_last(
    column: str, values: list[Any], terminal: bool, cyborg: Run, service: Service
):
    resources = [
        {"uuid": str(index), "state": value, "acc_specs": {column: value}}
        for index, value in enumerate(values)
    ]
    path, command = ("/hardware", "hardware-list")
    if column == "state":
        path, command = ("/backends", "backend-list")
    service.answers[path] = [Answer(200, {path[1:]: resources})]
    outcome = cyborg(f"{command} -c uuid -c {column} --sort-column {column}", terminal=terminal)
    assert (outcome.status, outcome.err) == (0, "")
    assert "None" not in outcome.out
    assert re.findall(r"^\| +([012]) ", outcome.out, re.MULTILINE) == ["2", "0", "1"]


def test_operation_table_has_a_line_per_host(cyborg: Run, service: Service):
    discovery = {"drivers": [{"name": "fake_driver", "error": None, "found": 2, "lost": 0}]}
    service.operation_states = [
        operation(
            "succeeded",
            result("compute-1", "succeeded", result=discovery),
            result("compute-2", "succeeded", result={}),
        )
    ]
    out = cyborg("discover-services").out
    assert "compute-1: succeeded, fake_driver found 2 devices" in out
    assert "| compute-2: succeeded" in out


def test_backend_list_shows_each_service_with_its_state(cyborg: Run):
    out = cyborg("backend-list").out
    assert "compress: up" in out
    assert "cipher: down" in out


def test_delete_prints_nothing_on_success(cyborg: Run):
    outcome = cyborg(f"accelerator-delete {DEVICE}")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


def test_program_explains_its_commands(program: Run):
    outcome = program("install-driver", "--help")
    assert outcome.status == 0
    assert "--option KEY=VALUE" in outcome.out
    assert "--os-cloud" not in outcome.out
    assert program("help", "install-driver").out == outcome.out
    nothing = program()
    assert (nothing.status, "hardware-list" in nothing.out) == (1, True)
    assert "  service-list" in program("service-lst").out


def test_bash_completes_command_names(program: Run, tmp_path: Path):
    outcome = program("complete", "--shell", "bash")
    assert outcome.status == 0
    assert "--operation-id" in outcome.out
    script = tmp_path / "completion"
    script.write_text(outcome.out)
    # bash-completion provides the first function; the rest does what bash does for the Tab key.
    commands = f"""
        source {script}
        for typed in usa update-d nothing; do
            _get_comp_words_by_ref() {{ cur=$typed; prev=cyborg; words=(cyborg $typed); }}
            COMP_WORDS=(cyborg $typed); COMP_CWORD=1; COMPREPLY=()
            _cyborg
            echo "$typed: ${{COMPREPLY[@]}}"
        done
    """
    done = ran(["bash", "-c", commands], check=True)
    assert done.stdout.splitlines() == [
        "usa: usage-list usage-show",
        "update-d: update-driver",
        "nothing: ",
    ]


@pytest.mark.parametrize(
    "command",
    ["profile-create fpga --group resources:FPGA=1", "profile-update fpga --description one"],
)
def test_profile_warnings_are_printed_to_the_error_output(
    cyborg: Run, service: Service, command: str
) -> None:
    profile = {**RESOURCES["device_profiles"][0], "warnings": ["groups[0] asks for an image."]}
    path = "/device_profiles" if "create" in command else "/device_profiles/fpga"
    service.answers[path] = [Answer(200, profile)]
    outcome = cyborg(f"{command} -f json")
    assert outcome.err == "Warning: groups[0] asks for an image.\n"
    assert "warnings" not in outcome.json
    assert outcome.json["name"] == "fpga"


#: What a stored text may try on a terminal: delete the line, go up, and turn the direction.
ATTACK = "x\x1b[2K\x1b[1A\x9b2K\r\u202ey\u2066"
SHOWN = "x\\x1b[2K\\x1b[1A\\x9b2K\\r\\u202ey\\u2066"
ODD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("formatter", ["table", "value", "csv", "json", "yaml"])
def test_stored_text_reaches_no_terminal_as_control_characters(
    formatter: str, terminal: bool, cyborg: Run, service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_COLOR", "1")
    device = RESOURCES["devices"][0]
    changed = {**device, "model": ATTACK, "labels": {ATTACK: ATTACK}, "status": ATTACK}
    service.answers["/devices"] = [Answer(200, {"devices": [changed]})]
    outcome = cyborg(f"accelerator-list --long -f {formatter}", terminal=terminal)
    assert outcome.status == 0
    assert not ODD.findall(outcome.out + outcome.err)
    if formatter == "value":
        assert SHOWN in outcome.out
    if formatter != "csv":
        service.answers[f"/devices/{DEVICE}"] = [Answer(200, changed)]
        assert not ODD.findall(cyborg(f"accelerator-show {DEVICE} -f {formatter}").out)


def test_error_of_a_host_or_of_the_service_is_escaped(cyborg: Run, service: Service):
    service.operation_states = [operation("failed", result("compute-1", "failed", error=ATTACK))]
    outcome = cyborg("discover-services")
    assert outcome.status == 1
    assert SHOWN in outcome.err
    assert not ODD.findall(outcome.out + outcome.err)
    service.answers[f"/devices/{DEVICE}"] = [Answer(409, error_body(ATTACK))]
    outcome = cyborg(f"accelerator-show {DEVICE} --debug")
    assert SHOWN in outcome.err
    assert not ODD.findall(outcome.out + outcome.err)


@pytest.mark.parametrize(
    ("health", "colour"),
    [
        *(("ok", "32"), ("degraded", "33"), ("probation", "33"), ("ignored", "33")),
        *(("drain", "31"), ("dead", "31"), ("parked", "31")),
    ],
)
def test_health_of_accelerators_has_colours(health: str, colour: str) -> None:
    cell = cells.format_cell("health", health, "table", colours=True)
    assert cell.human_readable() == f"\033[{colour}m{health}\033[0m"
    assert cells.format_cell("health", health, "json", colours=True) == health


def test_usage_of_a_range_is_csv_or_json(cyborg: Run, service: Service) -> None:
    outcome = cyborg("usage-list --start 2026-11-01 -f csv --quote minimal")
    assert list(csv.reader(io.StringIO(outcome.out))) == [
        list(USAGE["usage"][0]),
        ["FPGA", "FPGA", "", "red", "", "", "86400.001"],
        ["VGPU", "GPU", "", "", "", "", "0.25"],
    ]
    assert outcome.err == (
        "Use of units from 2026-11-01T00:00:00.000+00:00 until 2026-11-02T00:00:00.000+00:00.\n"
    )
    assert cyborg("usage-list --start 2026-11-01 -f json").json == USAGE["usage"]
    assert cyborg("-q usage-list -f value -c unit_seconds").out == "86400.001\n0.25\n"
    # Without --start it is the usage of this month.
    assert service.last.query["start"].endswith("-01")


def test_usage_says_from_when_on_it_is_complete(cyborg: Run, service: Service) -> None:
    late, early = "2026-11-01T12:00:00.000+00:00", "2026-10-01T00:00:00.000+00:00"
    for moment, is_missing in ((late, True), (early, False)):
        service.answers["/usage"] = [Answer(200, {**USAGE, "complete_from": moment})]
        outcome = cyborg("usage-list --start 2026-11-01")
        assert (f"Uses that ended before {moment} may be missing" in outcome.err) is is_missing

# SPDX-License-Identifier: Apache-2.0
"""What commands show, in each format, and on a terminal."""

import csv
import io
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import (
    AGENT,
    DEVICE,
    DRIVER,
    ENGINE,
    INSTANCE,
    PROCESS,
    THINGS,
    Answer,
    Service,
    operation,
    result,
)

GREEN, RED = "\033[32m", "\033[31m"


def test_json_keeps_objects_as_they_are(cyborg: Run):
    (one,) = cyborg("hardware-list --long -f json").shown
    assert one == {
        "uuid": DEVICE,
        "hostname": "compute-1",
        "driver": "fake_driver",
        "key": "0000:3b:00.0",
        "device_type": "CRYPTO",
        "num": 2,
        "setup_required": True,
        "reboot_required": False,
        "offered": False,
        "remote": 0,
        "acc_capability": {"num": 2, "ipsec": {"num": 1}},
        "reason": "no firmware",
    }


def test_a_thing_is_shown_whole_but_for_its_links(cyborg: Run):
    expected = {key: value for key, value in THINGS["devices"][0].items() if key != "links"}
    assert cyborg(f"accelerator-show {DEVICE} -f json").shown == expected


def test_a_wrapped_thing_is_unwrapped(cyborg: Run):
    assert cyborg("profile-show fpga -f json").shown["groups"] == [{"resources:FPGA": "1"}]


def test_value_is_for_scripts(cyborg: Run):
    assert cyborg("driver-list -f value -c uuid").out == f"{DRIVER}\n"
    assert cyborg("driver-list -f value -c in_use -c found").out == "2 1\n"
    ran = cyborg("accelerator-list --long -f value -c labels")
    assert ran.out == '{"rack": "7"}\n'


def test_who_has_an_accelerator_stands_in_columns(cyborg: Run):
    (one,) = cyborg("accelerator-list --long -f json").shown
    assert one["holder"] == one["instance_name"] == ["web-1", "unknown"]
    assert one["instance_status"] == ["ACTIVE", "unknown"]
    lines = cyborg("accelerator-list --long -c holder -c instance_status").out.splitlines()
    assert [line.split() for line in lines[3:5]] == [
        ["|", "web-1", "|", "ACTIVE", "|"],
        ["|", "unknown", "|", "unknown", "|"],
    ]
    shown = cyborg(f"accelerator-show {DEVICE}").out
    assert f"web-1 (uuid {INSTANCE}, status ACTIVE, seen at 2026-11-01T10:00:00.000+00:00)" in shown
    assert f"unknown (uuid {AGENT}, status unknown)" in shown


def test_csv_is_one_line_for_each(cyborg: Run):
    rows = list(csv.reader(io.StringIO(cyborg("service-list -f csv").out)))
    assert rows[0][:4] == ["uuid", "kind", "host", "binary"]
    assert [row[0] for row in rows[1:]] == [AGENT, ENGINE]


def test_long_shows_more(cyborg: Run):
    assert "last_seen_at" not in cyborg("service-list").out
    assert PROCESS["last_seen_at"] in cyborg("service-list --long").out


def test_lists_are_sorted_on_demand(cyborg: Run):
    down = cyborg("service-list -f value -c uuid --sort-column uuid --sort-descending")
    assert down.out.split() == [ENGINE, AGENT]
    up = cyborg("service-list -f value -c uuid --sort-column uuid --sort-ascending")
    assert up.out.split() == [AGENT, ENGINE]


def test_a_column_that_there_is_not_is_an_error(cyborg: Run):
    ran = cyborg("driver-list -c colour")
    assert ran.status == 1
    assert "colour" in ran.err


def test_states_have_colours_on_a_terminal_only(
    cyborg: Run, service: Service, monkeypatch: pytest.MonkeyPatch
):
    assert f"{GREEN}up" in cyborg("service-list", terminal=True).out
    assert "\033" not in cyborg("service-list").out
    assert "\033" not in cyborg("service-list -f json", terminal=True).out
    assert "\033" not in cyborg("service-list -f value", terminal=True).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in cyborg("service-list", terminal=True).out


def test_colours_do_not_disturb_the_columns(cyborg: Run):
    lines = cyborg("service-list", terminal=True).out.splitlines()
    plain = [line.replace(GREEN, "").replace("\033[0m", "") for line in lines]
    assert len({len(line) for line in plain}) == 1


def test_lists_sort_by_the_word_and_not_by_its_colour(cyborg: Run):
    ran = cyborg("service-list -c state -c uuid --sort-column state", terminal=True)
    assert ran.status == 0
    assert AGENT in ran.out


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("column", ["num", "device_type", "state"])
def test_what_is_absent_is_an_empty_cell_and_sorts_last(
    column: str, terminal: bool, cyborg: Run, service: Service
):
    values: dict[str, list[Any]] = {
        "num": [7, None, 3],
        "device_type": ["b", None, "a"],
        "state": ["up", None, "down"],
    }
    things = [
        {"uuid": str(index), "state": value, "acc_specs": {column: value}}
        for index, value in enumerate(values[column])
    ]
    path, command = ("/hardware", "hardware-list")
    if column == "state":
        path, command = ("/backends", "backend-list")
    service.answers[path] = [Answer(200, {path[1:]: things})]
    ran = cyborg(f"{command} -c uuid -c {column} --sort-column {column}", terminal=terminal)
    assert (ran.status, ran.err) == (0, "")
    assert "None" not in ran.out
    assert re.findall(r"^\| +([012]) ", ran.out, re.MULTILINE) == ["2", "0", "1"]


def test_an_operation_has_a_line_for_each_host_in_its_table(cyborg: Run, service: Service):
    found = {"drivers": [{"name": "fake_driver", "error": None, "found": 2, "lost": 0}]}
    service.course = [
        operation(
            "succeeded",
            result("compute-1", "succeeded", result=found),
            result("compute-2", "succeeded", result={}),
        )
    ]
    out = cyborg("discover-services").out
    assert "compute-1: succeeded, fake_driver found 2 devices" in out
    assert "| compute-2: succeeded" in out


def test_services_of_a_backend_are_lines(cyborg: Run):
    out = cyborg("backend-list").out
    assert "compress: up" in out
    assert "cipher: down" in out


def test_nothing_is_shown_of_what_is_gone(cyborg: Run):
    ran = cyborg(f"accelerator-delete {DEVICE}")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_every_command_explains_itself(program: Run):
    ran = program("install-driver", "--help")
    assert ran.status == 0
    assert "--option KEY=VALUE" in ran.out
    assert "--os-cloud" not in ran.out
    assert program("help", "install-driver").out == ran.out


def test_without_a_command_all_are_listed(program: Run):
    ran = program()
    assert ran.status == 1
    assert "hardware-list" in ran.out


def test_a_slip_of_the_pen_is_understood(program: Run):
    assert "  service-list" in program("service-lst").out


def test_completion_knows_every_command_and_its_options(program: Run):
    ran = program("complete", "--shell", "bash")
    assert ran.status == 0
    assert "install-driver" in ran.out
    assert "--operation-id" in ran.out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("usa", ["usage-show"]), ("update-d", ["update-driver"]), ("nothing", [])],
)
def test_bash_completes(typed: str, offered: list[str], program: Run, tmp_path: Path):
    script = tmp_path / "completion"
    script.write_text(program("complete").out)
    # bash-completion brings the first function; the rest is what a press of the key does.
    asked = f"""
        _get_comp_words_by_ref() {{ cur={typed}; prev=cyborg; words=(cyborg {typed}); }}
        source {script}
        COMP_WORDS=(cyborg {typed}); COMP_CWORD=1
        _cyborg
        echo "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == offered


@pytest.mark.parametrize(
    "command",
    ["profile-create fpga --group resources:FPGA=1", "profile-update fpga --description one"],
)
def test_warnings_of_a_profile_stand_beside_the_output(
    cyborg: Run, service: Service, command: str
) -> None:
    profile = {**THINGS["device_profiles"][0], "warnings": ["groups[0] asks for an image."]}
    path = "/device_profiles" if "create" in command else "/device_profiles/fpga"
    service.answers[path] = [Answer(200, profile)]
    ran = cyborg(f"{command} -f json")
    assert ran.err == "Warning: groups[0] asks for an image.\n"
    assert "warnings" not in ran.shown
    assert ran.shown["name"] == "fpga"

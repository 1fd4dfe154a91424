# SPDX-License-Identifier: Apache-2.0
"""profile-apply and profile-export: what they read, print and send."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cyborg.tests.unit.cli.conftest import Run, TerminalStream
from cyborg.tests.unit.cli.service import RESOURCES, Answer, Service, error_body
from cyborg_cli import exception
from cyborg_cli.profile_files import Profile, dump, read

STORED = RESOURCES["device_profiles"][0] | {"projects": None}
FPGA = "name: fpga\ngroups:\n- resources:FPGA: 1\n"
CHANGED = FPGA.replace("1", "2") + "description: two\n"
NEW = "name: new\ngroups:\n- resources:FPGA: 1\n  trait:CUSTOM_A: required\nprojects: [p]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profiles.yaml"


def writes(service: Service) -> list[tuple[str, str, Any]]:
    return [
        (request.method, request.path, request.body)
        for request in service.requests
        if request.method != "GET"
    ]


def other(name: str, **more: Any) -> dict[str, Any]:
    return STORED | {"name": name} | more


def store(service: Service, *profiles: dict[str, Any]) -> None:
    service.answers["/device_profiles"] = [Answer(200, {"device_profiles": list(profiles)})]


def test_equal_profiles_are_not_changed(cyborg: Run, service: Service, file: Path) -> None:
    file.write_text(FPGA)
    for options in ("", "--dry-run", "--prune"):
        outcome = cyborg(f"profile-apply -f {file} {options}")
        assert (outcome.status, outcome.out, writes(service)) == (0, "", [])
        assert "Nothing to change" in outcome.err


@pytest.mark.parametrize("dry_run", [False, True])
def test_changes_are_shown_as_a_diff_and_sent(
    dry_run: bool, cyborg: Run, service: Service, file: Path
) -> None:
    file.write_text(f"{CHANGED}---\n{NEW}")
    outcome = cyborg(f"profile-apply -f {file}{' --dry-run' if dry_run else ''}")
    assert outcome.status == 3
    word = "would be " if dry_run else ""
    assert outcome.out.splitlines() == [
        "--- service/fpga",
        f"+++ {file}:1",
        "@@ -1,3 +1,4 @@",
        " name: fpga",
        "+description: two",
        " groups:",
        "-- resources:FPGA: '1'",
        "+- resources:FPGA: '2'",
        "--- /dev/null",
        f"+++ {file}:6",
        "@@ -0,0 +1,6 @@",
        "+name: new",
        "+groups:",
        "+- resources:FPGA: '1'",
        "+  trait:CUSTOM_A: required",
        "+projects:",
        "+- p",
        f"fpga: {word}updated",
        f"new: {word}created",
    ]
    groups = [{"resources:FPGA": "1", "trait:CUSTOM_A": "required"}]
    assert writes(service) == (
        []
        if dry_run
        else [
            (
                "PATCH",
                "/device_profiles/fpga",
                {"groups": [{"resources:FPGA": "2"}], "description": "two"},
            ),
            ("POST", "/device_profiles", [{"name": "new", "groups": groups, "projects": ["p"]}]),
        ]
    )


def test_missing_members_are_removed(cyborg: Run, service: Service, file: Path) -> None:
    store(service, STORED | {"description": "d", "projects": ["b", "a"]})
    file.write_text(FPGA)
    assert cyborg(f"profile-apply -f {file}").status == 3
    change = {"description": None, "projects": None}
    assert writes(service) == [("PATCH", "/device_profiles/fpga", change)]


def test_order_of_members_and_projects_is_no_change(
    cyborg: Run, service: Service, file: Path
) -> None:
    groups = [{"trait:CUSTOM_A": "required", "resources:FPGA": "1", "accel:x": "007"}]
    store(service, STORED | {"groups": groups, "projects": ["b", "a"]})
    file.write_text(
        "projects: [a, b]\nname: fpga\ngroups:\n"
        "- {'accel:x': '007', 'resources: FPGA': '01', 'trait:CUSTOM_A': required}\n"
    )
    assert cyborg(f"profile-apply -f {file}").status == 0


def test_profiles_without_a_document_are_deleted_only_after_consent(
    cyborg: Run, service: Service, file: Path
) -> None:
    file.write_text(CHANGED)
    for options in ("", "--prune", "--prune --dry-run", "--prune --yes"):
        store(service, STORED, other("old"), other("older"))
        outcome = cyborg(f"profile-apply -f {file} {options}")
        deletions = [path for method, path, _ in writes(service) if method == "DELETE"]
        if options == "--prune --yes":
            assert (outcome.status, outcome.out.count("+++ /dev/null")) == (3, 2)
            assert deletions == ["/device_profiles/old", "/device_profiles/older"]
            assert outcome.out.endswith("old: deleted\nolder: deleted\n")
        else:
            assert deletions == []
        if options == "--prune":
            assert (outcome.status, writes(service)) == (1, [])
            assert "2 profile(s): old, older" in outcome.err
            assert "Nothing was changed" in outcome.err
        service.requests.clear()


def test_failed_change_does_not_stop_the_others(cyborg: Run, service: Service, file: Path) -> None:
    file.write_text(NEW)
    store(service, other("held"), other("old"))
    service.answers["/device_profiles"].append(Answer(403, error_body("no")))
    service.answers["/device_profiles/held"] = [Answer(409, error_body("1 ARQ refers to it"))]
    outcome = cyborg(f"profile-apply -f {file} --prune --yes")
    assert outcome.status == 1
    assert "new: not created: no (HTTP 403)" in outcome.err
    assert "held: not deleted: 1 ARQ refers to it (HTTP 409)" in outcome.err
    assert outcome.out.endswith("\nold: deleted\n")


def test_directories_are_read_and_one_without_profiles_is_refused(
    cyborg: Run, service: Service, tmp_path: Path
) -> None:
    for name, text in (("b.yml", NEW), ("a.yaml", FPGA), ("c.txt", "text"), ("d.yaml", "")):
        (tmp_path / name).write_text(text)
    outcome = cyborg(f"profile-apply -f {tmp_path} --dry-run")
    assert (outcome.status, outcome.out.splitlines()[-1]) == (3, "new: would be created")
    (tmp_path / "empty").mkdir()
    outcome = cyborg(f"profile-apply -f {tmp_path / 'empty'} --prune --yes")
    assert (outcome.status, "There is no profile in" in outcome.err) == (1, True)
    assert writes(service) == []


def test_diff_has_colours_on_a_terminal_only(
    cyborg: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(CHANGED)
    line = f"profile-apply -f {file} --dry-run"
    text = cyborg(line, terminal=True).out
    assert "\033[31m-- resources:FPGA: '1'\033[0m" in text
    assert "\033[32m+description: two\033[0m" in text
    assert "\033" not in cyborg(line).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in cyborg(line, terminal=True).out


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f"{FPGA}---\n{NEW}---\n{FPGA}", 11, "has a profile with the name fpga, too"),
        (f"{FPGA}uuid: x\n", 4, "'uuid' is none of name"),
        (f"{FPGA}name: b\n", 4, "'name' is given twice"),
        ("- name: fpga\n", 1, "is not of the form 'key: value'"),
        ("groups: []\n", 1, "the profile has no name"),
        ("name: fpga\n", 1, "the profile has no groups"),
        ("name: fpga\ngroups: []\n", 2, "one or more groups"),
        ("name: fpga\ngroups:\n", 2, "groups is null"),
        (FPGA.replace("fpga", "12"), 1, "name is not a text; write it in quotes: '12'"),
        (FPGA.replace("1", "many"), 3, "groups[0]: resources:FPGA is not a whole number"),
        (FPGA.replace("1", "010"), 3, "is not a whole number"),
        (FPGA.replace("1", "1.0"), 3, "is not a whole number"),
        (FPGA.replace("resources:", "resource:"), 3, "groups[0]: 'resource:FPGA' is not"),
        (f"{FPGA}  trait:CUSTOM_A: yes\n", 4, "trait:CUSTOM_A is not a text"),
        (f"{FPGA}  'resources: FPGA': 2\n", 4, "resources:FPGA is given twice"),
        (f"{FPGA}- 7\n", 4, "groups[1] is not of the form 'key: value'"),
        (f"{FPGA}description: [a]\n", 4, "description is not a text"),
        (f"{FPGA}projects: p\n", 4, "projects is not a list"),
        (f"{FPGA}projects: [p, 1234]\n", 4, "projects[1] is not a text; write it in quotes"),
        (f"{FPGA}? [a]\n: b\n", 4, "a key of the document is not one word"),
        (f"{FPGA}\tx: y\n", 4, "it is not YAML"),
        ("\x00", 1, "it is not YAML"),
    ],
)
def test_document_that_is_no_profile_is_refused_with_its_line(
    text: str, line: int, reason: str, cyborg: Run, service: Service, file: Path
) -> None:
    file.write_text(text)
    outcome = cyborg(f"profile-apply -f {file}")
    assert (outcome.status, service.requests) == (1, [])
    assert f"{file}:{line}: " in outcome.err
    assert reason in outcome.err


def test_file_that_is_too_large_or_too_deep_is_refused(file: Path) -> None:
    for text, reason in (("#" * (1 << 20) + "\n", "bytes"), ("[" * 20_000, "deeply|not YAML")):
        file.write_text(text)
        with pytest.raises(exception.CommandFailed, match=reason):
            read([str(file)])


TEXTS = ("", "yes", "1e3", "0x10", "007", "null", "~", "a: b", "- x", "é\u2028\x07", "two\nlines\n")


@pytest.mark.parametrize("text", TEXTS)
def test_exported_documents_are_read_as_the_same_profiles(text: str, file: Path) -> None:
    profiles = [
        Profile("b", ({"resources:FPGA": "1", "accel:x": text},), text, ("1234", "5e10")),
        Profile("123", ({"trait:CUSTOM_A": "required", "resources:PGPU": "2"}, {"accel:y": "1"})),
    ]
    file.write_text(dump(profiles), encoding="utf-8")
    result = read([str(file)])
    assert list(result) == ["123", "b"]
    for profile in profiles:
        assert result[profile.name].members() == profile.members()


def test_export_writes_to_the_output_or_to_a_file(
    cyborg: Run, service: Service, file: Path
) -> None:
    store(service, other("z"), STORED)
    text = cyborg("profile-export").out
    assert [document["name"] for document in yaml.safe_load_all(text)] == ["fpga", "z"]
    store(service, other("z"), STORED)
    assert cyborg(f"profile-export --output {file}").out == ""
    assert file.read_text() == text
    outcome = cyborg(f"profile-export --output {file / 'x'}")
    assert (outcome.status, "cannot be written" in outcome.err) == (1, True)
    outcome = cyborg(f"profile-export fpga nothing --output {file}")
    assert (outcome.status, "with the name nothing." in outcome.err) == (1, True)
    assert service.last.query == {"name": "fpga,nothing"}
    assert file.read_text() == text


@pytest.mark.parametrize(("typed", "status"), [("y\n", 3), ("YES\n", 3), ("n\n", 1), ("", 1)])
def test_terminal_is_asked_before_profiles_are_deleted(
    typed: str,
    status: int,
    cyborg: Run,
    service: Service,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", TerminalStream(typed))
    file.write_text(CHANGED)
    store(service, STORED, other("old"))
    outcome = cyborg(f"profile-apply -f {file} --prune", terminal=True)
    assert (outcome.status, len(writes(service))) == (status, 2 if status == 3 else 0)
    assert "Delete 1 profile(s): old? [y/N] " in outcome.err

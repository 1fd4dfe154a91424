# SPDX-License-Identifier: Apache-2.0
"""A program that lacks a setting names it, tells which files it read, and changes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import cyborg
from cyborg.tests.fixtures import choice, processes
from cyborg.tests.fixtures.placement import TOKEN
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import programs

PACKAGE: Final = Path(cyborg.__file__).parent
#: What each program is run with, and the status with which it refuses to start.
PROGRAMS: Final[Mapping[str, tuple[tuple[str, ...], int]]] = {
    "cyborg-api": ((), 1),
    "cyborg-conductor": ((), 1),
    "cyborg-agent": ((), 1),
    "cyborg-dbsync": (("upgrade",), 1),
    "cyborg-status": (("upgrade", "check"), 255),
    "cyborg-audit": ((), 3),
}
#: Programs that start as an operator starts them; others are forked (see ``programs``).
USUAL: Final = choice.chosen(PROGRAMS, "programs that start in the usual way")
#: A configuration that has everything; it leads nowhere.
COMPLETE: Final[Options] = {
    "DEFAULT": {"transport_url": "fake://"},
    "database": {"connection": "sqlite:////nonexistent/cyborg.sqlite"},
    "agent": {"enabled_drivers": "fake_driver"},
    "keystone_authtoken": {"auth_type": "password", "auth_url": "http://127.0.0.1:9"},
    "placement": {"auth_type": "admin_token", "endpoint": "http://127.0.0.1:9", "token": TOKEN},
    "nova": {"auth_type": "none", "endpoint": "http://127.0.0.1:9"},
}


def complaint(program: str, home: Path, *options: str) -> str:
    """The only line of a program that does not start."""
    done = programs.run(
        program, *options, *PROGRAMS[program][0], environment=processes.at_home(home), cwd=home
    )
    assert done.returncode == PROGRAMS[program][1]
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_without_configuration_lists_searched_paths(program: str, tmp_path: Path) -> None:
    before = set(PACKAGE.iterdir())
    words, environment = PROGRAMS[program][0], processes.at_home(tmp_path)
    # The daemons' other tests start their programs in the usual way, too.
    run = processes.run if program in USUAL else programs.run
    done = run(program, *words, environment=environment, cwd=tmp_path)
    assert done.returncode == PROGRAMS[program][1]
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{program}: [")
    assert " is not set" in line
    assert f"No configuration file was found in {tmp_path}/.cyborg, {tmp_path}, " in line
    assert "/etc/cyborg, /etc" in line
    assert "dbsync upgrade" not in line
    # stevedore may keep a list of entry points in .cache.
    assert {path.name for path in tmp_path.iterdir()} <= {".cache"}
    assert set(PACKAGE.iterdir()) == before


@pytest.mark.parametrize(
    ("program", "option"),
    [
        ("cyborg-api", "[DEFAULT] transport_url"),
        ("cyborg-api", "[keystone_authtoken] auth_type"),
        ("cyborg-conductor", "[database] connection"),
        ("cyborg-conductor", "[nova] auth_type"),
        ("cyborg-conductor", "[placement] auth_type"),
        ("cyborg-agent", "[DEFAULT] transport_url"),
        ("cyborg-agent", "[placement] auth_type"),
        ("cyborg-dbsync", "[database] connection"),
        ("cyborg-status", "[database] connection"),
        ("cyborg-audit", "[database] connection"),
    ],
)
def test_program_names_missing_option_and_read_files(
    program: str, option: str, tmp_path: Path
) -> None:
    group, name = option.removeprefix("[").split("] ")
    lacking = {one: values for one, values in COMPLETE.items() if one != group}
    lacking[group] = {one: value for one, value in COMPLETE[group].items() if one != name}
    deployment = Deployment(tmp_path, lacking)
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    (pieces / "10-more.conf").write_text("[DEFAULT]\nbind_timeout = 50\n")
    files = ("--config-file", str(deployment.conf), "--config-dir", str(pieces))
    line = complaint(program, tmp_path, *files)
    assert line.startswith(f"{program}: {option} is not set")
    assert line.endswith(f"Configuration files read: {deployment.conf}, {pieces}/10-more.conf.")


def test_agent_needs_the_directory_of_certificates_if_signatures_are_verified(
    tmp_path: Path,
) -> None:
    glance = {"verify_image_signatures": True, "image_certificates": tmp_path / "missing"}
    conf = Deployment(tmp_path, {**COMPLETE, "glance": glance}).conf
    line = complaint("cyborg-agent", tmp_path, "--config-file", str(conf))
    assert f"[glance] image_certificates cannot have '{tmp_path}/missing': it is no dir" in line
    (tmp_path / "missing").mkdir(mode=0o777)
    line = complaint("cyborg-agent", tmp_path, "--config-file", str(conf))
    assert "others than root can change /" in line


def test_program_names_a_missing_file_and_read_files_with_a_wrong_value(tmp_path: Path) -> None:
    line = complaint("cyborg-dbsync", tmp_path, "--config-file", f"{tmp_path}/missing.conf")
    assert line == f"cyborg-dbsync: Failed to find some config files: {tmp_path}/missing.conf."
    conf = Deployment(tmp_path, {"api": {"port": "many"}}).conf
    line = complaint("cyborg-dbsync", tmp_path, "--config-file", str(conf))
    assert "[api] port cannot be 'many'" in line
    assert line.endswith(f"Configuration files read: {conf}.")

# SPDX-License-Identifier: Apache-2.0
"""A check of ``tools/lint`` that lacks a program is "not checked", and a failure in CI."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cyborg.tests.fixtures.waiting import ran

ROOT: Final = Path(__file__).resolve().parents[3]
#: Prints the digest by which ``tools/lint`` takes an environment for one that is up to date.
DIGEST: Final = (
    "import pathlib, sys; sys.path.insert(0, 'tools'); import environment;"
    "print(environment._digest(pathlib.Path(sys.argv[1]), environment.REQUIREMENTS, ''), end='')"
)

Lint = Callable[..., tuple[int, str]]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, with these environment variables besides the usual ones."""
    return ran(command, cwd=ROOT, env={**os.environ, "CI": "", **environment}, check=False)


@pytest.fixture
def lint(tmp_path: Path) -> Lint:
    """Run two checks in an environment whose programs end with given statuses; None: missing."""

    def lint(*, dead: int | None, units: int, ci: str = "") -> tuple[int, str]:
        programs = tmp_path / "venv" / "bin"
        programs.mkdir(parents=True)
        for name, status in (("vulture", dead), ("python", units)):
            if status is not None:
                (programs / name).write_text(f"#!/bin/sh\necho said by {name}\nexit {status}\n")
                (programs / name).chmod(0o755)
        venv = str(tmp_path / "venv")
        stamp = tmp_path / "venv" / "cyborg-environment.sha256"
        stamp.write_text(run(sys.executable, "-c", DIGEST, venv).stdout)
        done = run(sys.executable, "tools/lint", "--venv", venv, "dead", "units", CI=ci)
        return done.returncode, done.stdout

    return lint


def test_a_check_without_its_program_is_not_checked_and_holds_up_nobody(lint: Lint) -> None:
    status, out = lint(dead=None, units=77)
    assert status == 0
    assert "vulture is missing in" in out
    assert "said by python\n" in out
    assert out.endswith("Not checked: dead, units\n")


def test_a_check_without_its_program_fails_in_ci(lint: Lint) -> None:
    status, out = lint(dead=0, units=77, ci="true")
    assert status == 1
    assert out.endswith("Not checked: units\n")


def test_a_check_that_does_not_hold_fails(lint: Lint) -> None:
    status, out = lint(dead=3, units=0)
    assert status == 1
    assert out.endswith("Not clean: dead\n")


def test_checks_that_hold_are_ok(lint: Lint) -> None:
    assert lint(dead=0, units=0, ci="true") == (0, "dead       ok\nunits      ok\n")

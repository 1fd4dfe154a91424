# SPDX-License-Identifier: Apache-2.0
"""The list of tools/mutants fits the tree; whether tests catch the defects, the command tells."""

import ast
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEFECTS: list[Any] = list(runpy.run_path(str(ROOT / "tools/defects.py"))["DEFECTS"])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/mutants"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("defect", DEFECTS, ids=[one.name for one in DEFECTS])
def test_defect_can_be_applied(defect: Any) -> None:
    text = (ROOT / defect.file).read_text()
    assert text.count(defect.text) == 1, f"correct the text of {defect.name} in tools/defects.py"
    changed = text.replace(defect.text, defect.replacement)
    assert changed != text
    ast.parse(changed)
    assert all((ROOT / one.split("::")[0]).exists() for one in defect.tests)


def test_defects_have_unique_names() -> None:
    assert [name for name, count in Counter(one.name for one in DEFECTS).items() if count > 1] == []


def test_list_prints_all_entries() -> None:
    ended = run("--list")
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) == len(DEFECTS)


def test_unknown_entry_is_named_in_one_line() -> None:
    ended = run("no-such-defect")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == ("mutants: tools/defects.py has no entry no-such-defect. See --list.\n")

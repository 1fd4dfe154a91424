# SPDX-License-Identifier: Apache-2.0
"""constraints.txt, the page of the dependencies and the bill of materials are complete."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cyborg_tools.dependencies import CONSTRAINTS, ROOT, __main__, closure, missing, required

PAGE = ROOT / "doc/source/contributor/dependencies.rst"


def pinned() -> dict[str, str]:
    """Return name and version of each line of constraints.txt."""
    lines = CONSTRAINTS.read_text().splitlines()
    pins = [line.partition("==") for line in lines if not line.startswith("#")]
    return {name: version for name, _, version in pins}


def test_constraints_are_what_these_tests_run_with() -> None:
    assert pinned() == closure(), "run: tools/dependencies constraints"


def test_constraints_satisfy_all_requirements() -> None:
    pins = pinned()
    unsatisfied = [
        str(wanted)
        for wanted in required()
        if not wanted.specifier.contains(pins[canonicalize_name(wanted.name)], prereleases=True)
    ]
    assert unsatisfied == []


def test_environments_of_the_tools_are_installed_with_the_constraints(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/command\n')
    python.chmod(0o755)
    ensure = "environment.ensure(sys.argv[1], ['test-requirements.txt'])"
    code = f"import sys; sys.path.insert(0, 'tools'); import environment; {ensure}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    assert f"-c {CONSTRAINTS}" in (tmp_path / "command").read_text()


def test_each_requirement_is_explained_with_its_licence() -> None:
    text = PAGE.read_text()
    explained = re.findall(r"^\* ``([\w.-]+)`` \((.+?)\): \S", text, re.MULTILINE)
    lines = [
        line.partition("#")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert explained == [(Requirement(line).name, text.strip()) for line, _, text in lines]


def test_bill_of_materials_lists_all_that_the_service_needs(tmp_path: Path) -> None:
    output = tmp_path / "sbom.json"
    assert __main__.write_sbom(sys.executable, output) == 0
    document = json.loads(output.read_text())
    assert document["bomFormat"] == "CycloneDX"
    versions = {canonicalize_name(one["name"]): one["version"] for one in document["components"]}
    assert closure().items() <= versions.items()
    document["components"] = [one for one in document["components"] if one["name"] != "pecan"]
    assert missing(document) == ["pecan"]


ADVISORY = {"id": "PYSEC-1", "fix_versions": ["2"]}
#: The answer of pip-audit, the exit status and the words of the command.
ANSWERS = [
    ("", 77, "not checked. no route"),
    ('{"dependencies": []}', 77, "not checked for any distribution"),
    ('{"dependencies": [{"name": "a", "skip_reason": "unknown"}]}', 77, "not checked for a"),
    ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, "0 about 1"),
    (
        json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": [ADVISORY]}]}),
        1,
        "a 1: PYSEC-1, fixed by 2",
    ),
]


@pytest.mark.parametrize(("answer", "status", "words"), ANSWERS)
def test_audit_tells_no_advisories_from_not_asked(
    answer: str,
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = f"import sys; print({answer!r}); sys.exit('no route')"
    (tmp_path / "pip_audit.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert __main__.audit() == status
    assert words in capsys.readouterr().out

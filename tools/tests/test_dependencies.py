# SPDX-License-Identifier: Apache-2.0
"""constraints.txt, the page of the dependencies and the bill of materials are complete."""

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cyborg_tools.dependencies import CONSTRAINTS, ROOT, __main__, closure, required

PAGE = ROOT / "doc/source/contributor/dependencies.rst"


def pinned() -> dict[str, str]:
    """Return name and version of each pin of constraints.txt; each has hashes."""
    text = CONSTRAINTS.read_text()
    pins = re.findall(
        r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE
    )
    assert text.count("==") == len(pins)
    return {name: version for name, version, _ in pins}


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
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\n')
    python.chmod(0o755)
    ensure = "environment.ensure(sys.argv[1], ['test-requirements.txt'])"
    code = f"import sys; sys.path.insert(0, 'tools'); import environment; {ensure}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    first, second = (tmp_path / "commands").read_text().splitlines()
    assert f"--no-deps --require-hashes -r {CONSTRAINTS}" in first
    assert f"-e {ROOT}/client -e {ROOT} -r {ROOT / 'test-requirements.txt'}" in second


def test_program_of_an_older_installation_does_not_go_with_it(tmp_path: Path) -> None:
    """pip removes the old service after it has installed the client, which has the program now."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\n')
    python.chmod(0o755)
    installed = tmp_path / "lib/python3.11/site-packages/openstack_cyborg-18.0.0.dist-info"
    installed.mkdir(parents=True)
    code = (
        "import sys; sys.path.insert(0, 'tools'); import environment; "
        "environment.ensure(sys.argv[1])"
    )
    for record, verbs in (
        ("../../../bin/cyborg-api,,\n../../../bin/cyborg,,\n", ["uninstall", "install"]),
        ("../../../bin/cyborg-api,,\n", ["install"]),
    ):
        (installed / "RECORD").write_text(record)
        (tmp_path / "commands").write_text("")
        (tmp_path / "cyborg-environment.sha256").unlink(missing_ok=True)
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
        commands = [line.split() for line in (tmp_path / "commands").read_text().splitlines()]
        assert [words[2] for words in commands] == verbs


FILES = [
    ("a-1.0.tar.gz", True),
    ("a-1.0.1.tar.gz", False),
    ("a-1.0-py3-none-any.whl", True),
    ("a-1.0-py2.py3-none-any.whl", True),
    ("a-1.0-py2-none-any.whl", False),
    ("a-1.0-cp311-cp311-manylinux_2_17_aarch64.whl", True),
    ("a-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
    ("a-1.0-cp38-abi3-musllinux_1_2_x86_64.whl", True),
    ("a-1.0-cp310-cp310-manylinux_2_17_x86_64.whl", False),
    ("a-1.0-cp311-cp311-win_amd64.whl", False),
    ("a-1.0-cp311-cp311-macosx_11_0_arm64.whl", False),
    ("a-1.0.exe", False),
    ("a-old.tar.gz", False),
]


class Index(BaseHTTPRequestHandler):
    """A package index with one file of each kind; the hash of a file is its place in ``FILES``."""

    def do_GET(self) -> None:
        files = [
            {"filename": name, "hashes": {"sha256": f"{place:064}"}}
            for place, (name, _) in enumerate(FILES)
        ]
        assert self.headers["Accept"] == "application/vnd.pypi.simple.v1+json"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"files": files if self.path == "/simple/a/" else []}).encode())


def test_pin_has_the_hashes_of_the_files_that_can_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
            line = __main__.pin("a", "1.0")
            with pytest.raises(LookupError, match=r"no file of b 1\.0"):
                __main__.pin("b", "1.0")
        finally:
            server.shutdown()
            thread.join()
    hashes = [f"--hash=sha256:{place:064}" for place, (_, used) in enumerate(FILES) if used]
    assert line == " \\\n    ".join(["a==1.0", *hashes]) + "\n"


def test_each_requirement_is_explained_with_its_licence() -> None:
    text = PAGE.read_text()
    explained = re.findall(r"^\* ``([\w.-]+)`` \((.+?)\): \S", text, re.MULTILINE)
    lines = [
        line.partition("#")
        for file in ("requirements.txt", "client/requirements.txt")
        for line in (ROOT / file).read_text().splitlines()
        if not line.startswith("#")
    ]
    assert explained == [(Requirement(line).name, text.strip()) for line, _, text in lines]


def test_bill_of_materials_without_a_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job ``archive`` has the real program list a real installation."""
    output = tmp_path / "sbom.json"
    components = [{"name": name, "version": version} for name, version in closure().items()]

    def written(command: list[str], **_: object) -> None:
        assert command[1:4] == ["-m", "cyclonedx_py", "environment"]
        assert command[-3:] == ["-o", str(output), "a-python"]
        output.write_text(json.dumps({"components": components}))

    monkeypatch.setattr(subprocess, "run", written)
    assert __main__.write_sbom("a-python", output) == 0
    components[:] = [one for one in components if one["name"] != "pecan"]
    assert __main__.write_sbom("a-python", output) == 1
    assert capsys.readouterr().err == f"{output} does not list pecan.\n"


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

# SPDX-License-Identifier: Apache-2.0
"""The user's page on the command line is true: every line of it runs, every command is in it."""

import re
import shlex
from pathlib import Path
from string import Template

import pytest

import cyborg
from cyborg.cli.catalogue import COMMANDS
from cyborg.tests.unit.cli import service as shapes
from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import Service

PAGE = Path(cyborg.__file__).resolve().parent.parent / "doc/source/user/cli.rst"
TEXT = PAGE.read_text()
#: What readers put for the names of the page.
VALUES = {
    "SERVICE": shapes.AGENT,
    "DRIVER": shapes.DRIVER,
    "BACKEND": shapes.ENGINE,
    "HARDWARE": shapes.DEVICE,
    "ACCELERATOR": shapes.DEVICE,
    "ARQ": shapes.ARQ,
    "INSTANCE": shapes.INSTANCE,
    "OPERATION": shapes.OPERATION,
}
#: The indented lines that begin with the program, with those that they are continued on.
LINES = [
    " ".join(found.replace("\\\n", " ").split())
    for found in re.findall(r"^    (cyborg (?:.*\\\n)*.*)$", TEXT, re.MULTILINE)
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_page_runs(
    line: str,
    program: Run,
    url: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("compute-1\n")
    words = shlex.split(Template(line).substitute(VALUES))[1:]
    while words[0].startswith("--os-"):
        del words[:2]
    ran = program("--os-auth-type", "none", "--os-endpoint", url, *words)
    assert ran.status == 0, ran.err
    assert service.asked or words == ["complete"]


def test_every_command_is_tried_on_the_page():
    tried = {word for line in LINES for word in line.split() if word in COMMANDS}
    assert tried == set(COMMANDS)


def test_the_table_of_names_is_that_of_the_catalogue():
    table = TEXT[TEXT.index(".. _openstack-commands:") :]
    rows = dict(re.findall(r"^``([\w-]+)``\s+(\S.*)$", table, re.MULTILINE))
    del rows["cyborg"]
    assert rows == {
        name: f"``{entry.plugin}``" if entry.plugin else r"\-" for name, entry in COMMANDS.items()
    }

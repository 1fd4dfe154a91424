# SPDX-License-Identifier: Apache-2.0
"""The command line page of the user guide: each of its commands succeeds, and none is missing."""

import re
import shlex
from pathlib import Path
from string import Template

import pytest

import cyborg
from cyborg.tests.unit.cli import service as fake
from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import PROFILES, Service
from cyborg_cli.shell import COMMANDS

GUIDE = Path(cyborg.__file__).resolve().parent.parent / "doc/source/user/cli.rst"
TEXT = GUIDE.read_text()
#: Values for the variables in the commands of the guide.
VALUES = {
    "PROJECT": "5f0c1b8a1d6e4c2f9a7be0d3c4a51e66",
    "OTHER_PROJECT": "0b1d2c3e4f5a69788796a5b4c3d2e1f0",
    "SERVICE": fake.AGENT,
    "DRIVER": fake.DRIVER,
    "BACKEND": fake.BACKEND,
    "HARDWARE": fake.DEVICE,
    "ACCELERATOR": fake.DEVICE,
    "ARQ": fake.ARQ,
    "INSTANCE": fake.INSTANCE,
    "OPERATION": fake.OPERATION,
    "CREATED": fake.DEVICE,
    "ATTACHED": fake.ARQ,
    "TARGET": "c2",
    "EVENT": "4711",
}
#: The host that the page removes, and the only one of the service of these tests.
REMOVED, HOST = "compute-3", "compute-1"
#: The indented lines that begin with the program, or set a variable to its output.
LINES = [
    " ".join(command.replace("\\\n", " ").split())
    for command in re.findall(
        r"^    (?:[A-Z]+=\$\()?(cyborg (?:.*\\\n)*.*?)\)?$", TEXT, re.MULTILINE
    )
]


@pytest.mark.parametrize("line", LINES)
def test_command_line_in_the_user_guide_succeeds(
    line: str,
    program: Run,
    url: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("compute-1\n")
    (tmp_path / "profiles.yaml").write_bytes(PROFILES.read_bytes())
    words = shlex.split(Template(line).substitute(VALUES).replace(REMOVED, HOST))[1:]
    while words[0].startswith("--os-"):
        del words[:2]
    outcome = program("--os-auth-type", "none", "--os-endpoint", url, *words)
    assert outcome.status == 0, outcome.err
    assert service.requests or service.nova.requests or words == ["complete"]


def test_user_guide_shows_every_command():
    commands = {word for line in LINES for word in line.split() if word in COMMANDS}
    assert commands == set(COMMANDS)


def test_table_of_openstack_names_matches_the_catalogue():
    table = TEXT[TEXT.index(".. _openstack-commands:") :]
    rows = dict(re.findall(r"^``([\w-]+)``\s+(\S.*)$", table, re.MULTILINE))
    del rows["cyborg"]
    assert rows == {
        name: f"``{entry.openstack_name}``" if entry.openstack_name else r"\-"
        for name, entry in COMMANDS.items()
    }

# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --discover`` needs no peer, and neither writes nor logs anything."""

import json
import subprocess
from pathlib import Path

import pytest

from cyborg.tests.fixtures import processes, waiting
from cyborg.tests.functional import programs

GUEST = Path(__file__).parents[2] / "fixtures" / "hosts" / "guest.tar.gz"
#: Neither a bus nor a database nor Placement; a log, which only a daemon writes.
CONFIGURATION = """\
[DEFAULT]
host = compute-1
state_path = {home}/state
log_dir = {home}/log
[agent]
enabled_drivers = pci_driver
[pci]
passthrough_whitelist = {{"address": "0000:44:00.0"}}
passthrough_whitelist = {{"address": "0000:0d:00.0"}}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home directory of a user with a configuration."""
    (tmp_path / "cyborg.conf").write_text(CONFIGURATION.format(home=tmp_path))
    return tmp_path


def test_archive_is_shown_without_any_peer(home: Path) -> None:
    options = ("--discover", "--host", str(GUEST), "--diff")
    ended = processes.run(
        "cyborg-agent", *options, environment={**processes.at_home(home), "COLUMNS": "200"}
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    rows = {line.partition(" ")[0]: line for line in ended.stdout.splitlines()}
    assert rows["0000:44:00.0"].endswith("yes, by pci_driver")
    assert rows["0000:0d:00.0"].endswith("no: it is CXL memory, which the host itself uses")
    assert "28 device(s), 1 offered. Enabled drivers: pci_driver." in ended.stdout
    assert "there is no state file" in ended.stdout
    assert {path.name for path in home.iterdir()} <= {".cache", "cyborg.conf"}


def test_this_machine_is_shown_as_json(home: Path) -> None:
    ended = programs.run(
        "cyborg-agent", "--discover", "--json", environment=processes.at_home(home)
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    assert (document["format"], document["host"], document["archive"]) == (1, "compute-1", None)
    assert "pci_driver" in [driver["name"] for driver in document["drivers"]]


def test_output_that_nobody_reads_is_no_error_message(home: Path) -> None:
    command = [processes.script("cyborg-agent"), "--discover", "--host", str(GUEST)]
    with subprocess.Popen(
        command,
        env=processes.at_home(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        assert agent.stderr is not None
        agent.stdout.close()
        assert agent.stderr.read() == ""
        assert agent.wait(waiting.PATIENCE) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--discover", "--driver", "nobodys_driver"), "no driver 'nobodys_driver' is installed"),
        (("--discover", "--host", "/nowhere"), "/nowhere cannot be read as an archive of a host"),
    ],
)
def test_configuration_error_is_one_sentence(
    home: Path, options: tuple[str, ...], sentence: str
) -> None:
    ended = programs.run("cyborg-agent", *options, environment=processes.at_home(home))
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert sentence in line

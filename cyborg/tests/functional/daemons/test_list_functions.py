# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --list-functions`` makes the list of the privileged process of files of root only.

The command reads an archive of a host. Only root has a place for files that nobody else can change:
without root the command refuses every configuration.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.drivers.privileged.guard import read_list
from cyborg.tests.fixtures.processes import at_home
from cyborg.tests.functional import programs

ROOT = os.geteuid() == 0
GUEST = Path(__file__).parents[2] / "fixtures" / "hosts" / "guest.tar.gz"
CONFIGURATION = """\
[agent]
enabled_drivers = pci_driver, nvme_driver
[pci]
passthrough_whitelist = {"address": "0000:44:00.0"}
[generic_driver]
devices_dir = DIRECTORY/devices.d
[nvme]
device_spec = {"address": "0000:41:00.0"}
"""
LISTED = [
    {"address": "0000:41:00.0", "vendor_id": "1b36"},
    {"address": "0000:44:00.0", "vendor_id": "1234"},
]


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory with a configuration, which only root can change if there is root."""
    directory = Path(tempfile.mkdtemp(prefix="cyborg-functions-", dir="/run" if ROOT else None))
    directory.chmod(0o755)
    (directory / "devices.d").mkdir()
    (directory / "cyborg.conf").write_text(CONFIGURATION.replace("DIRECTORY", str(directory)))
    yield directory
    shutil.rmtree(directory)


def listed(home: Path, *words: str, file: str = "") -> subprocess.CompletedProcess[str]:
    """Make the list and return what the command printed."""
    path = file or str(home / "privileged" / "functions")
    command = ("--config-file", str(home / "cyborg.conf"), "--list-functions", path)
    return programs.run(
        "cyborg-agent", *command, *words, "--host", str(GUEST), environment=at_home(home)
    )


def entries(text: str) -> list[object]:
    return [json.loads(line) for line in text.splitlines() if not line.startswith("#")]


def test_list_has_the_functions_of_the_whitelist_and_of_the_sections_of_drivers(home: Path):
    file = home / "privileged" / "functions"
    for _ in range(2):
        ended = listed(home)
        if not ROOT:
            assert (ended.returncode, file.exists()) == (1, False)
            return
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout == f"2 function(s) listed in {file}.\n"
        assert entries(file.read_text()) == LISTED
        assert file.stat().st_mode & 0o777 == 0o644
        assert [path.name for path in file.parent.iterdir()] == ["functions"]
    assert len(read_list(LocalHost(), str(file))) == 2
    assert entries(listed(home, file="-").stdout) == LISTED


def test_driver_that_an_operator_enables_is_named_on_the_command_line(home: Path):
    text = (home / "cyborg.conf").read_text()
    (home / "cyborg.conf").write_text(text.replace("pci_driver, nvme_driver", "pci_driver"))
    for words, expected in (((), LISTED[1:]), (("--driver", "nvme_driver"), LISTED)):
        ended = listed(home, *words, file="-")
        assert entries(ended.stdout) == (expected if ROOT else []), ended.stderr


def test_driver_that_fails_is_named_and_the_others_are_listed(home: Path):
    ended = listed(home, "--driver", "nobodys_driver")
    assert ended.returncode == 1
    if ROOT:
        assert "The list has no functions of nobodys_driver: no driver of this" in ended.stderr
        assert entries((home / "privileged" / "functions").read_text()) == LISTED


@pytest.mark.parametrize("open_place", ["cyborg.conf", ".", "devices.d", "devices.d/mine.yaml"])
def test_configuration_that_others_than_root_can_change_is_refused(home: Path, open_place: str):
    (home / "devices.d" / "mine.yaml").write_text("[]\n")
    place = home / open_place
    place.chmod(place.stat().st_mode | 0o022)
    ended = listed(home)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert "others than root can change" in line
    if ROOT:
        assert f"can change {place.resolve()}, " in line
    assert not (home / "privileged").exists()

# SPDX-License-Identifier: Apache-2.0
"""The program with capabilities runs no code that the user of the agent can write.

The program runs in the interpreter outside of the virtual environment, as the packages of
distributions do: there the interpreter looks into the home directory for packages.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cyborg
from cyborg.tests.fixtures.processes import script
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.test_deployment_files import UNITS, settings

ROOT = os.geteuid() == 0
AGENT = "nobody"
SOURCE = str(Path(cyborg.__file__).parents[1])
PACKAGES = sysconfig.get_path("purelib")
UNIT_NAMES = ("cyborg-privileged", "cyborg-observer")


def environment_of(unit: str) -> dict[str, str]:
    """Return the variables that the unit sets."""
    entries = settings(UNITS / f"{unit}.service")["Service"]
    words = [word for name, value in entries if name == "Environment" for word in value.split()]
    return dict(word.split("=", 1) for word in words)


def plant(home: Path, mark: Path) -> None:
    """Write everything into the agent's home by which Python can be made to run code."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / ".local" / "lib" / version / "site-packages"
    code = f"open({str(mark)!r}, 'a').write('planted')"
    (packages / "oslo_privsep").mkdir(parents=True)
    (packages / "planted.pth").write_text(f"import sys; {code}\n")
    for place in (packages, home):
        for name in ("sitecustomize.py", "usercustomize.py", "argparse.py"):
            (place / name).write_text(f"{code}\n")
    (packages / "oslo_privsep" / "__init__.py").write_text(f"{code}\n")


def start(
    directory: Path, environment: dict[str, str], *words: str, path: str = f"{SOURCE}:{PACKAGES}"
) -> subprocess.CompletedProcess[str]:
    """Start the program in the agent's home and return how it ends."""
    return subprocess.run(
        # It stops when it cannot listen, which it tries after it has judged its own code.
        [
            *(str(Path(sys.executable).resolve()), script("cyborg-privileged")),
            *("--user", AGENT, "--socket", str(directory / "missing" / "socket"), *words),
        ],
        cwd=directory / "home",
        env={
            "PATH": os.defpath,
            "HOME": str(directory / "home"),
            "PYTHONPATH": path,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of the agent's user, with planted code."""
    home = tmp_path / "home"
    plant(home, tmp_path / "mark")
    return home


@pytest.mark.parametrize("unit", UNIT_NAMES)
def test_planted_code_does_not_run_with_the_environment_of_the_unit(
    tmp_path: Path, home: Path, unit: str
):
    result = start(tmp_path, environment_of(unit))
    assert not (tmp_path / "mark").exists(), result
    assert "No such file" in result.stderr, result


def test_program_refuses_packages_of_the_home(tmp_path: Path, home: Path):
    """The variables of the systemd unit are not set."""
    # The name of this file hides a module of the library in every interpreter that reads it.
    for file in home.rglob("argparse.py"):
        file.unlink()
    result = start(tmp_path, {})
    assert result.returncode == 1
    assert "PYTHONNOUSERSITE" in result.stderr, result


@pytest.mark.parametrize("way", ["owner", "others", "parent", "missing", "list of groups"])
def test_program_refuses_a_path_that_the_agent_can_write(tmp_path: Path, home: Path, way: str):
    if not ROOT:
        # Only root can give a directory to another user.
        return
    user = 65534
    tmp_path.chmod(0o755)
    place = tmp_path / "packages" / "below"
    place.mkdir(parents=True)
    guilty = place
    if way == "owner":
        os.chown(place, user, 0)
    elif way == "others":
        place.chmod(0o757)
    elif way == "parent":
        guilty = place.parent
        os.chown(guilty, user, 0)
    elif way == "missing":
        guilty = place.parent
        place.rmdir()
        guilty.chmod(0o1777)
    else:
        os.chown(place, 0, user)
        place.chmod(0o775)
    path = f"{SOURCE}:{PACKAGES}:{place}"
    variables = environment_of("cyborg-privileged")
    result = start(tmp_path, variables, path=path)
    assert result.returncode == 1
    assert f"{guilty}" in result.stderr
    assert "can change" in result.stderr, result
    # For developers, whose user owns everything.
    result = start(tmp_path, variables, "--allow-writable-code", path=path)
    assert "No such file" in result.stderr, result

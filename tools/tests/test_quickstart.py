# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart as a person runs it, in the environment of the tests: start, again, and not."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import cyborg

COMMAND = Path(cyborg.__file__).resolve().parent.parent / "tools" / "quickstart"
#: Far more than anything here takes, in seconds.
_PATIENCE = 120


def command(state: Path, *rest: str) -> list[str]:
    return [str(COMMAND), "--python", sys.executable, "--state", str(state), "--port", "0", *rest]


def run(state: Path, *rest: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        command(state, *rest),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )


def refusal(answer: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that could not do what was asked."""
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("quickstart: ")
    return line


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart") / "state"


@pytest.fixture(scope="module")
def serving(state: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that has walked and serves, and what it printed until then."""
    process = subprocess.Popen(
        command(state), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if line.startswith("Serving"):
            break
    yield process, "".join(printed)
    if process.poll() is None:
        process.kill()
    process.wait(_PATIENCE)
    process.stdout.close()


def test_quickstart_runs_demo_and_serves(serving: tuple[subprocess.Popen[str], str]) -> None:
    _, printed = serving
    assert "Every step held." in printed
    found = re.search(r"REST API +(\S+)/v2,", printed)
    assert found, printed
    (device,) = requests.get(f"{found[1]}/v2/devices", timeout=10).json()["devices"]
    assert device["vendor"] == "0xABCD"
    assert f"curl -s {found[1]}/v2/devices" in printed
    assert f"--os-auth-type none --os-endpoint {found[1]}/v2 accelerator" in printed
    assert "\033" not in printed


def test_every_pci_function_is_in_the_table(
    serving: tuple[subprocess.Popen[str], str],
) -> None:
    _, printed = serving
    bus = Path("/sys/bus/pci/devices")
    for function in bus.iterdir() if bus.exists() else ():
        assert re.search(rf"^{re.escape(function.name)} .* no: ", printed, re.MULTILINE)
    assert re.search(r"^fake .* yes", printed, re.MULTILINE)


def test_state_directory_has_one_user(
    serving: tuple[subprocess.Popen[str], str], state: Path
) -> None:
    assert "another quickstart is using" in refusal(run(state, "--demo", "--clean"))


def test_busy_port_is_refused(serving: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(run(tmp_path, "--demo", f"--port={port}"))
    assert said == (
        f"quickstart: port {port} of 127.0.0.1 cannot be listened on (Address already in use); "
        "choose another with --port."
    )


def test_quickstart_exits_with_0_on_sigterm(serving: tuple[subprocess.Popen[str], str]) -> None:
    process, _ = serving
    assert process.stdout is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(_PATIENCE) == 0
    assert process.stdout.read() == "Ending.\n"


def test_second_start_reuses_state_until_clean(
    serving: tuple[subprocess.Popen[str], str], state: Path
) -> None:
    process, _ = serving
    process.send_signal(signal.SIGTERM)
    process.wait(_PATIENCE)
    (state / "mine.txt").write_text("kept")
    again = run(state, "--demo")
    assert (again.returncode, again.stderr) == (0, "")
    assert "It is there since an earlier start." in again.stdout
    assert again.stdout.endswith("\nEvery step held.\n")
    assert max(map(len, again.stdout.splitlines())) <= 100
    fresh = run(state, "--demo", "--clean")
    assert fresh.returncode == 0
    assert fresh.stdout.startswith("Removed ")
    assert "since an earlier start" not in fresh.stdout
    assert (state / "mine.txt").read_text() == "kept"


def test_invalid_whitelist_is_refused(tmp_path: Path) -> None:
    assert "passthrough_whitelist" in refusal(run(tmp_path, "--demo", "--whitelist", "{nonsense"))


def test_python_without_service_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty-python"
    empty.write_text("#!/bin/sh\nexit 1\n")
    empty.chmod(0o755)
    said = refusal(run(tmp_path, "--demo", "--python", str(empty)))
    assert said.endswith("does not have openstack-cyborg[quickstart] installed.")


def test_help_needs_no_packages() -> None:
    bare = {"PATH": os.environ["PATH"]}
    told = subprocess.run(
        [sys.executable, "-S", str(COMMAND), "--help"],
        capture_output=True,
        text=True,
        env=bare,
        timeout=_PATIENCE,
    )
    assert told.returncode == 0
    for option in ("--demo", "--port", "--state", "--clean", "--whitelist", "--python"):
        assert option in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 100


def test_missing_package_index_is_named(tmp_path: Path) -> None:
    root = COMMAND.parent.parent
    for name in (
        "tools/quickstart",
        "tools/environment.py",
        "tools/cyborg_tools/quickstart/options.py",
        "requirements.txt",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    offline = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "PIP_RETRIES": "1",
    }
    answer = subprocess.run(
        [sys.executable, str(tmp_path / "tools" / "quickstart"), "--demo"],
        capture_output=True,
        text=True,
        env=offline,
        timeout=_PATIENCE,
    )
    assert "the package index cannot be reached" in refusal(answer)
    assert "Traceback" not in answer.stdout


def test_brief_demo_fits_a_screen_and_names_an_entry_without_a_match(tmp_path: Path) -> None:
    entry = '{"vendor_id": "dead"}'
    answer = run(tmp_path / "state", "--demo", "--brief", "--whitelist", entry)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) <= 25
    assert lines[-1] == "Every step held."
    assert f"--whitelist '{entry}' matches no PCI function here." in lines


def test_missing_git_is_named(tmp_path: Path) -> None:
    for name in ("python3", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    checkout = tmp_path / "checkout"
    shutil.copytree(COMMAND.parent, checkout / "tools")
    (checkout / ".git").mkdir()
    for name in ("requirements.txt", "setup.cfg", "setup.py", "pyproject.toml"):
        shutil.copy(COMMAND.parents[1] / name, checkout)
    answer = subprocess.run(
        [sys.executable, str(checkout / "tools" / "quickstart"), "--demo"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    assert refusal(answer).startswith("quickstart: git is missing")

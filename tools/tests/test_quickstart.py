# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart as a person runs it, in the environment of the tests: start, again, and not.

One test starts the command. The others hand command lines to one process that has loaded the
module, which takes longer than a walk.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import requests

import cyborg
from cyborg.testing import scenario_hosts
from cyborg.tests.fixtures import choice
from cyborg.tests.fixtures.waiting import PATIENCE

ROOT = Path(cyborg.__file__).resolve().parent.parent
COMMAND = ROOT / "tools" / "quickstart"
#: Runs each command line in a process of its own and answers its exit status and its output.
_LOADED: Final = """
import json, os, sys, tempfile
from cyborg_tools.quickstart.main import main
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.exit(main(json.loads(line)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        print(json.dumps([status, out.read(), err.read()]), flush=True)
"""


class Loaded:
    """A process that has loaded the module."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, state: Path, *rest: str) -> "subprocess.CompletedProcess[str]":
        """Run the module to the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = ["--state", str(state), "--port", "0", *rest]
        self._process.stdin.write(f"{json.dumps(words)}\n")
        self._process.stdin.flush()
        return subprocess.CompletedProcess(words, *json.loads(self._process.stdout.readline()))

    def refusal(self, state: Path, *rest: str) -> str:
        """Return the one sentence of a command line that could not do what was asked."""
        return sentence(self.run(state, *rest))


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    words = (sys.executable, "-P", "-c", _LOADED)
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
    ) as process:
        yield Loaded(process)


def command(state: Path, *rest: str) -> list[str]:
    return [str(COMMAND), "--python", sys.executable, "--state", str(state), "--port", "0", *rest]


def run(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run to the end."""
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env or None,
        timeout=PATIENCE,
    )


def sentence(answer: "subprocess.CompletedProcess[str]", status: int = 1) -> str:
    """Return the one sentence of a command that could not do what was asked."""
    assert (answer.returncode, "Traceback" in answer.stdout) == (status, False)
    (line,) = answer.stderr.splitlines()
    assert line.startswith("quickstart: ")
    return line


def test_archive_of_another_host_is_offered(loaded: Loaded, tmp_path: Path) -> None:
    archive = ROOT / "cyborg" / "tests" / "fixtures" / "hosts" / "guest.tar.gz"
    whitelist = ("--whitelist", '{"address": "0000:44:00.0"}')
    state = tmp_path / "state"
    ended = loaded.run(state, "--demo", "--host", str(archive), *whitelist)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"^0000:44:00.0 .* yes, by pci_driver$", ended.stdout, re.MULTILINE)
    assert "The walk asks for the first function that is offered, " in ended.stdout
    assert ended.stdout.endswith("\nEvery step held.\n")
    assert state.stat().st_mode & 0o777 == 0o700
    files = {file.name: file.stat().st_mode & 0o777 for file in state.rglob("*") if file.is_file()}
    assert {"cyborg.conf", "cyborg.sqlite", "placement.conf", "quickstart.log"} < files.keys()
    assert set(files.values()) == {0o600}


def test_scenario_host_is_offered_with_drivers_that_fit(loaded: Loaded, tmp_path: Path) -> None:
    """A card of two functions, which guests get together; then another host in the same state."""
    state = tmp_path / "state"
    ended = loaded.run(state, "--demo", "--host", "alveo-u250")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "alveo-u250, simulated: Server with two Alveo U250" in ended.stdout
    assert re.search(r"^0000:3b:00.0 .* yes, by generic_driver \(2$", ended.stdout, re.MULTILINE)
    assert re.search(
        r"^0000:18:00.0 .* no: its interface eno0 carries$", ended.stdout, re.MULTILINE
    )
    assert '"resources:FPGA": "2"' in ended.stdout
    check_readme(ended.stdout)
    assert ended.stdout.endswith("\nEvery step held.\n")
    again = loaded.run(state, "--demo", "--brief", "--host", "mixed")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.endswith("\nEvery step held.\n")


def check_readme(printed: str) -> None:
    """The README shows lines of this output, in their order."""
    sample = (ROOT / "README.rst").read_text().partition("alveo-u250``, abridged:")[2]
    lines = sample.partition(".. code-block:: text\n\n")[2].partition("\n\nThe command")[0]
    rest = iter(printed.splitlines())
    for line in lines.splitlines():
        assert line[4:] in rest, f"the README shows a line that is not printed here: {line}"


@pytest.mark.parametrize("host", choice.chosen(scenario_hosts.names(), "hosts of quickstart"))
def test_each_step_holds_on_each_scenario_host(host: str, loaded: Loaded, tmp_path: Path) -> None:
    """Their drivers clean what a server had, which takes a while after the release."""
    ended = loaded.run(tmp_path / "state", "--demo", "--host", host)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"\n{host}, simulated: " in ended.stdout
    assert "releasing" not in ended.stdout.partition("\n10. ")[2]
    assert ended.stdout.endswith("\nEvery step held.\n")


def test_file_that_is_no_archive_is_refused(loaded: Loaded, tmp_path: Path) -> None:
    refused = loaded.refusal(tmp_path / "state", "--demo", "--host", __file__)
    assert "cannot be read as an archive of a host" in refused


def test_quickstart_serves_ends_and_starts_again(
    loaded: Loaded, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Its path is printed, in lines that are not to be wide.
    state = tmp_path_factory.mktemp("q") / "state"
    with subprocess.Popen(
        command(state), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as serving:
        assert serving.stdout is not None
        try:
            printed = ""
            while "\nServing" not in printed and (line := serving.stdout.readline()):
                printed += line
            check_printed(printed)
            refused = loaded.refusal(state, "--demo", "--clean")
            assert "another quickstart is using" in refused
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(PATIENCE) == 0
            assert serving.stdout.read() == "Ending.\n"
        finally:
            serving.kill()
    (state / "mine.txt").write_text("kept")
    again = loaded.run(state, "--demo")
    assert (again.returncode, again.stderr) == (0, "")
    assert "It is there since an earlier start." in again.stdout
    assert again.stdout.endswith("\nEvery step held.\n")
    assert max(map(len, again.stdout.splitlines())) <= 100
    fresh = loaded.run(state, "--demo", "--clean")
    assert fresh.returncode == 0
    assert fresh.stdout.startswith("Removed ")
    assert "since an earlier start" not in fresh.stdout
    assert (state / "mine.txt").read_text() == "kept"


def check_printed(printed: str) -> None:
    """The walk held, the service answers, each PCI function is listed, and lines can be copied."""
    assert "Every step held." in printed
    words = " ".join(printed.split())
    for text in ("10. Everything is free again", '"state": "Bound"', "attach handles: 16 free"):
        assert text in words
    assert "/os-server-external-events" in words
    assert "failed" not in words
    found = re.search(r"REST API +(\S+)/v2,", printed)
    assert found, printed
    (device,) = requests.get(f"{found[1]}/v2/devices", timeout=PATIENCE).json()["devices"]
    assert device["vendor"] == "0xABCD"
    assert f"curl -s {found[1]}/v2/devices" in printed
    assert f"--os-auth-type none --os-endpoint {found[1]}/v2 accelerator" in printed
    assert "\033" not in printed
    bus = Path("/sys/bus/pci/devices")
    for function in bus.iterdir() if bus.exists() else ():
        assert re.search(rf"^{re.escape(function.name)} .* no: ", printed, re.MULTILINE)
    assert re.search(r"^0000:0c:00.0 .* yes, by fake_driver", printed, re.MULTILINE)


def test_what_cannot_work_is_refused_in_one_sentence(loaded: Loaded, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert loaded.refusal(tmp_path, "--demo", f"--port={port}") == (
            f"quickstart: port {port} of 127.0.0.1 cannot be listened on (Address already in use); "
            "choose another with --port."
        )
    refused = loaded.refusal(tmp_path, "--demo", "--whitelist", "{nonsense")
    assert "passthrough_whitelist" in refused
    empty = tmp_path / "empty-python"
    empty.write_text("#!/bin/sh\nexit 1\n")
    empty.chmod(0o755)
    said = sentence(run(*command(tmp_path, "--demo", "--python", str(empty))))
    assert said.endswith("does not have openstack-cyborg[quickstart] installed.")


def test_help_needs_no_packages() -> None:
    told = run(sys.executable, "-S", str(COMMAND), "--help", PATH=os.environ["PATH"])
    assert told.returncode == 0
    for option in ("--demo", "--port", "--state", "--clean", "--whitelist", "--python"):
        assert option in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 100


def test_missing_package_index_and_missing_git_are_named(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in (
        "tools/quickstart",
        "tools/environment.py",
        "tools/cyborg_tools/quickstart/options.py",
        "constraints.txt",
        "requirements.txt",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "client/requirements.txt",
        "client/setup.cfg",
        "client/setup.py",
        "client/pyproject.toml",
    ):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    demo = (sys.executable, str(checkout / "tools" / "quickstart"), "--demo")
    python = checkout / ".quickstart" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # What pip 25 prints if nothing listens.
    python.write_text(
        """#!/bin/sh
echo "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) \
after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection \
object at 0x7f0c>: Failed to establish a new connection: [Errno 111] Connection refused')': \
/simple/setuptools/"
echo "ERROR: Could not find a version that satisfies the requirement setuptools>=77"
exit 1
"""
    )
    python.chmod(0o755)
    offline = sentence(
        run(*demo, PATH=os.environ["PATH"], HOME=str(tmp_path)), status=os.EX_TEMPFAIL
    )
    assert "the package index cannot be reached" in offline
    (checkout / ".git").mkdir()
    for name in ("python3", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    refused = sentence(run(*demo, PATH=str(tmp_path)))
    assert refused.startswith("quickstart: git is missing")


def test_brief_demo_fits_a_screen_and_names_an_entry_without_a_match(
    loaded: Loaded, tmp_path: Path
) -> None:
    entry = '{"vendor_id": "dead"}'
    answer = loaded.run(tmp_path / "state", "--demo", "--brief", "--whitelist", entry)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) <= 25
    assert lines[-1] == "Every step held."
    assert f"--whitelist '{entry}' matches no PCI function here." in lines

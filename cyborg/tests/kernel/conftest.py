# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests in a guest of ``tools/kernel``. A fixture undoes its change after each test.

A test runs on the machine ``pci`` unless ``@pytest.mark.machine(NAME, ...)`` names others.
"""

import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.tests.kernel.functions import Functions
from cyborg.tests.kernel.monitor import Monitor
from cyborg.tests.kernel.uevents import Recorder

_DEFAULT_MACHINE = "pci"


def machine() -> str | None:
    """Return the machine of this guest, None outside of the guests of ``tools/kernel``."""
    parameters = Path("/proc/cmdline").read_text()
    name = re.search(r"\bcyborg\.machine=(\S+)", parameters)
    return name[1] if name else None


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; refuse to run on a machine whose devices somebody needs."""
    config.addinivalue_line("markers", "machine(*names): the machines that a test runs on")
    if machine() is None:
        raise pytest.UsageError("cyborg/tests/kernel runs in a guest: use tools/kernel test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of this machine."""
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("machine")
        names = marker.args if marker else (_DEFAULT_MACHINE,)
        (chosen if machine() in names else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    """Return a stack of what is undone after the test, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def host() -> LocalHost:
    """Return the guest as the drivers see their host."""
    return LocalHost()


@pytest.fixture
def functions(host: LocalHost, undo: ExitStack) -> Functions:
    """Return the PCI functions of the guest, with the changes that tests make to them."""
    return Functions(host, undo)


@pytest.fixture
def uevents(undo: ExitStack) -> Recorder:
    """Return a recorder of all uevents since the begin of the test."""
    return undo.enter_context(Recorder())


@pytest.fixture
def monitor(undo: ExitStack) -> Monitor:
    """Return the monitor of QEMU, which plugs and unplugs devices."""
    return undo.enter_context(Monitor(Path("/dev/ttyS1")))


@pytest.fixture
def command() -> Callable[..., str]:
    """Return a function that runs a program and returns its output; failure is an error."""

    def command(*words: str) -> str:
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return command


@pytest.fixture
def mounted(command: Callable[..., str], tmp_path: Path, undo: ExitStack) -> Callable[[str], Path]:
    """Return a function that makes a file system on a disk, mounts it, and returns where."""

    def mounted(disk: str) -> Path:
        place = tmp_path / disk
        place.mkdir()
        command("mkfs.ext4", "-q", "-F", f"/dev/{disk}")
        command("mount", f"/dev/{disk}", str(place))
        undo.callback(command, "umount", str(place))
        return place

    return mounted


@pytest.fixture
def namespace(command: Callable[..., str], undo: ExitStack) -> str:
    """Return the name of a new network namespace."""
    name = f"n{uuid.uuid4().hex[:8]}"
    command("ip", "netns", "add", name)
    undo.callback(command, "ip", "netns", "delete", name)
    return name

# SPDX-License-Identifier: Apache-2.0
"""The real host and the simulated host behave the same."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.files import OpenFiles, is_missing, read_if_exists, resolve
from cyborg.drivers.host import Host, LocalHost
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import ReadOpenFiles
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE

FILES = {"/sys/a/value": "1\n", "/sys/b/deep/value": "22\n", "/etc/name": "inside\n"}
LINKS = {
    "/sys/class/a": "../a",
    "/sys/absolute": "/sys/b/deep",
    "/sys/climbing": "../../../../../../etc/name",
    "/sys/broken": "../nowhere",
    "/sys/circle": "circle",
}


@pytest.fixture(params=["simulated", "local"])
def host(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Host:
    """Return a host with the same tree in memory and below a prefix on disk."""
    simulated = FakeHost(FILES, LINKS)
    if request.param == "simulated":
        return simulated
    simulated.materialise(tmp_path)
    return LocalHost(str(tmp_path))


def test_links_stay_inside_the_root(host: Host) -> None:
    assert host.read_text("/sys/absolute/value") == "22\n"
    assert host.read_bytes("/sys/b/deep/value") == b"22\n"
    assert host.read_text("/sys/climbing") == "inside\n"
    assert host.realpath("/sys/climbing") == "/etc/name"
    assert host.realpath("/sys/class/a/value") == "/sys/a/value"
    assert host.read_text("/../../../etc/name") == "inside\n"
    # Links are returned as written, and names sorted.
    assert host.readlink("/sys/class/a") == "../a"
    assert host.readlink("/sys/broken") == "../nowhere"
    names = ["a", "absolute", "b", "broken", "circle", "class", "climbing"]
    assert host.list_dir("/sys") == names
    with pytest.raises(OSError, match="symbolic links"):
        resolve("/a", {"/a": "/b", "/b": "/a"}.get)


def test_exists_follows_links(host: Host) -> None:
    assert host.exists("/sys/class/a/value")
    assert not host.exists("/sys/broken")
    assert not host.exists("/sys/a/value/below")
    with pytest.raises(exception.HostError):
        host.exists("/sys/circle")


def test_write_text_changes_existing_files_only(host: Host) -> None:
    host.write_text("/sys/a/value", "2")
    assert host.read_text("/sys/class/a/value") == "2"
    with pytest.raises(exception.HostError) as caught:
        host.write_text("/sys/a/new", "2")
    assert is_missing(caught.value)
    assert host.list_dir("/sys/a") == ["value"]


@pytest.mark.parametrize(
    ("call", "action", "missing"),
    [
        (lambda host: host.read_text("/sys/none"), "reading /sys/none", True),
        (lambda host: host.read_text("/sys/a"), "reading /sys/a", False),
        (lambda host: host.read_text("/sys/a/value", limit=1), "reading /sys/a/value", False),
        (lambda host: host.read_text("/sys/circle"), "reading /sys/circle", False),
        (lambda host: host.read_text("/sys/\0"), "reading /sys/\0", False),
        (lambda host: host.list_dir("/sys/none"), "listing /sys/none", True),
        (lambda host: host.list_dir("/sys/a/value"), "listing /sys/a/value", True),
        (lambda host: host.readlink("/sys/none"), "reading link /sys/none", True),
        (lambda host: host.readlink("/sys/a"), "reading link /sys/a", False),
        (lambda host: host.realpath("/sys/broken"), "resolving /sys/broken", True),
        (lambda host: host.run(["no-such-tool"], timeout=1), "running no-such-tool", False),
    ],
)
def test_every_error_is_a_host_error_with_action_and_reason(
    host: Host, call: Callable[[Host], object], action: str, missing: bool
) -> None:
    with pytest.raises(exception.HostError) as caught:
        call(host)
    assert caught.value.fields["action"] == action
    assert caught.value.fields["reason"]
    assert is_missing(caught.value) is missing


def test_reading_an_absent_file_returns_nothing(host: Host) -> None:
    assert read_if_exists(host.read_text, "/sys/none") is None
    assert read_if_exists(host.read_text, "/sys/a/value") == "1\n"
    with pytest.raises(exception.HostError):
        read_if_exists(host.read_text, "/sys/circle")


def test_device_files_that_processes_have_open_are_listed(
    host: Host, tmp_path: pathlib.Path
) -> None:
    tree = FakeHost(links={"/proc/self/ns/pid": "pid:[1]", "/proc/7/fd/3": "/dev/vfio/4"})
    tree.add_link("/proc/7/fd/4", "socket:[12]")
    tree.add_link("/proc/8/fd/0", "/dev/null")
    tree.add_file("/proc/7/comm", "qemu\n")
    if isinstance(host, LocalHost):
        tree.materialise(tmp_path / "proc")
        host = LocalHost(str(tmp_path / "proc"))
    else:
        host = tree
    files = host.open_files()
    assert files.holders == {"/dev/vfio/4": "qemu (process 7)", "/dev/null": "process 8"}
    assert files.reason == "the agent sees only the processes of its own container"


class Privileges:
    """A privileged process that sees more, or cannot be reached."""

    def __init__(self, error: exception.HostError | None = None) -> None:
        self._error = error

    def run(self, action: Action[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return OpenFiles({"/dev/vfio/9": "qemu"}) if isinstance(action, ReadOpenFiles) else True


def test_the_privileged_process_is_asked_for_what_the_agent_does_not_see(
    tmp_path: pathlib.Path,
) -> None:
    FakeHost(links={"/proc/self/ns/pid": "pid:[1]", "/proc/7/fd/3": "/dev/null"}).materialise(
        tmp_path
    )
    root = str(tmp_path)
    assert LocalHost(root, Privileges()).open_files() == OpenFiles({"/dev/vfio/9": "qemu"})
    absent = Privileges(exception.HostError(action="connecting", reason="no socket"))
    files = LocalHost(root, absent).open_files()
    assert dict(files.holders) == {"/dev/null": "process 7"}
    assert "own container" in str(files.reason)
    assert "no socket" in str(files.reason)
    with pytest.raises(exception.HostError):
        LocalHost(root, Privileges()).is_claimed("/dev/nvme0n1")


def test_a_block_device_that_cannot_be_opened_is_an_error(host: Host) -> None:
    assert host.is_claimed("/sys/a/value") is False
    with pytest.raises(exception.HostError) as caught:
        host.is_claimed("/dev/none")
    assert is_missing(caught.value)


def test_reading_a_named_pipe_does_not_block(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert LocalHost(str(tmp_path)).read_text("/pipe") == ""


def test_the_root_directory_needs_no_prefix(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("here\n")
    (tmp_path / "link").symlink_to("file")
    local = LocalHost()
    assert local.read_text(f"{tmp_path}/link") == "here\n"
    assert local.realpath(f"{tmp_path}/link") == os.path.realpath(tmp_path / "file")
    with pytest.raises(exception.HostError):
        local.realpath(f"{tmp_path}/none")


def test_owned_by_root_checks_links_and_directories(tmp_path: pathlib.Path) -> None:
    """Links count, and a directory in which others may create files."""
    host = LocalHost()
    assert host.owned_by_root("/usr/bin/env")
    assert host.owned_by_root("/")
    link = tmp_path / "link"
    link.symlink_to("/usr/bin/env")
    assert not host.owned_by_root(str(link))
    assert not host.owned_by_root("/tmp")
    assert host.writable_by_others("/tmp") == "/tmp"
    with pytest.raises(exception.HostError) as caught:
        host.owned_by_root("/usr/bin/nowhere-at-all")
    assert is_missing(caught.value)


def test_start_of_a_file_comes_with_its_size(host: Host) -> None:
    assert host.read_start("/sys/absolute/value", 2) == (b"22", 3)
    assert host.read_start("/sys/absolute/value", 100) == (b"22\n", 3)
    with pytest.raises(exception.HostError) as caught:
        host.read_start("/sys/none", 1)
    assert is_missing(caught.value)


def test_output_of_a_command_that_writes_a_file() -> None:
    host = LocalHost()
    script = 'umask 077; echo ignored; printf %s "$2" > "$3"; stat -c %a "${3%/*}"; exit "$1"'
    shell = ["/bin/sh", "-c", script, "sh", "3", '{"a": 1}']
    result, text = host.run_to_file(shell, timeout=PATIENCE)
    assert (result.status, text) == (3, '{"a": 1}')
    assert result.stdout == "ignored\n700\n"
    assert host.run_to_file(["/bin/true"], timeout=PATIENCE)[1] == ""
    large = ["/bin/sh", "-c", 'head -c 1048577 /dev/zero > "$0"']
    with pytest.raises(exception.HostError, match="wrote more than 1048576 bytes"):
        host.run_to_file(large, timeout=PATIENCE)
    with pytest.raises(exception.HostError, match="did not end within"):
        host.run_to_file(["/bin/tail", "-f", "/dev/null"], timeout=0.2)

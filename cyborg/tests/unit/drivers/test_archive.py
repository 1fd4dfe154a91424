# SPDX-License-Identifier: Apache-2.0
"""Archives of hosts: what they say, in both forms, and which files are refused."""

import errno
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.archive import ArchivedHost, read
from cyborg.drivers.command import Completed
from cyborg.drivers.files import INITIAL_PROCESSES
from cyborg.drivers.host import Host
from cyborg.drivers.pci import PciDriver
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed, given, st
from cyborg.tests.unit.drivers.configured import configured

GUEST = Path(__file__).parents[2] / "fixtures" / "hosts" / "guest.tar.gz"
NOTES = ".cyborg-host.json"
EMPTY: dict[str, Any] = {
    "format": 1,
    "kernel": "6.12 x86_64",
    "unreadable": {},
    "claimed": [],
    "commands": [],
}


def archive(path: Path, *entries: tuple[str, bytes | str | None], **notes: Any) -> Path:
    """Write a tar.gz file; a text is the target of a link, None a directory."""
    with tarfile.open(path, "w:gz") as file:
        for name, content in (*entries, (NOTES, json.dumps(EMPTY | notes).encode())):
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            else:
                entry.size = len(content)
            file.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def errno_of(error: pytest.ExceptionInfo[exception.HostError]) -> int:
    return int(error.value.fields["errno"])


def test_archive_is_a_host(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "host.tar.gz",
        ("sys/bus/pci", None),
        ("sys/class/card", "../bus/pci"),
        ("sys/bus/pci/enable", b"1\n"),
        ("dev/disk", b""),
        ("dev/other", b""),
        ("proc/7/comm", b"qemu\n"),
        ("proc/7/fd/3", "/dev/vfio/12"),
        ("proc/self/ns/pid", INITIAL_PROCESSES),
        claimed=["/dev/disk"],
        commands=[[["lspci", "-n"], 0, "00:00.0\n", ""]],
        unreadable={"/sys/bus/pci/reset": errno.EACCES},
    )
    host: Host = ArchivedHost.recorded(path)
    assert host.read_text("/sys/class/card/enable") == "1\n"
    assert host.list_dir("/sys/class/card") == ["enable", "reset"]
    assert host.readlink("/sys/class/card") == "../bus/pci"
    assert host.realpath("/sys/class/card") == "/sys/bus/pci"
    assert (host.exists("/sys/bus/pci"), host.exists("/sys/bus/usb")) == (True, False)
    assert (host.is_claimed("/dev/disk"), host.is_claimed("/dev/other")) == (True, False)
    assert host.run(["lspci", "-n"], timeout=1.0) == Completed(0, "00:00.0\n", "")
    assert host.open_files().holders == {"/dev/vfio/12": "qemu (process 7)"}
    assert host.open_files().reason is None
    assert host.owned_by_root("/usr/bin/tool")


def test_unreadable_file_is_there_and_fails_with_its_errno(tmp_path: Path) -> None:
    unreadable = {"/sys/vpd": errno.EIO, "/sys/card": errno.EACCES}
    path = archive(tmp_path / "host.tar.gz", ("sys/card", None), unreadable=unreadable)
    host = ArchivedHost.recorded(path)
    assert host.list_dir("/sys") == ["card", "vpd"]
    with pytest.raises(exception.HostError) as unread:
        host.read_text("/sys/vpd")
    assert errno_of(unread) == errno.EIO
    with pytest.raises(exception.HostError) as unlisted:
        host.list_dir("/sys/card")
    assert errno_of(unlisted) == errno.EACCES


def test_archive_has_no_commands_events_or_writes_of_its_own(tmp_path: Path) -> None:
    host = ArchivedHost.recorded(archive(tmp_path / "host.tar.gz", ("sys/file", b"before")))
    with pytest.raises(exception.HostError, match="it is not in the archive"):
        host.run(["true"], timeout=1.0)
    with pytest.raises(exception.HostError, match="an archive has no events"):
        host.events()
    with pytest.raises(exception.HostError) as refused:
        host.write_text("/sys/file", "after")
    assert errno_of(refused) == errno.EROFS
    assert host.read_text("/sys/file") == "before"


def test_directory_and_tar_file_say_the_same(tmp_path: Path) -> None:
    host = servers.server()
    host.faults["/sys/class/net"] = errno.EACCES
    host.claimed.add("/dev/nvme1n1")
    host.answers["lspci",] = Completed(1, "", "no")
    host.release = "6.12 x86_64"
    host.materialise(tmp_path / "tree")
    with tarfile.open(tmp_path / "host.tar.gz", "w:gz") as file:
        file.add(tmp_path / "tree", arcname=".")
    for path in (tmp_path / "tree", tmp_path / "host.tar.gz"):
        copy = FakeHost.recorded(path)
        assert (copy.faults, copy.claimed) == (host.faults, host.claimed)
        assert (copy.answers, copy.release) == (host.answers, host.release)
        assert copy.paths() == host.paths()


def test_unreadable_file_is_no_empty_file_in_the_directory(tmp_path: Path) -> None:
    host = FakeHost({"/sys/file": "text", "/sys/vpd": ""})
    host.faults["/sys/vpd"] = errno.EIO
    host.materialise(tmp_path / "tree")
    assert not (tmp_path / "tree" / "sys" / "vpd").exists()
    assert "/sys/vpd" in FakeHost.recorded(tmp_path / "tree").paths()


@pytest.mark.parametrize(
    ("entries", "notes", "clause"),
    [
        ((), {"format": 2}, "its format is 2, supported is 1"),
        ((), {"commands": 3}, "cannot be used"),
        ((("../../etc/cyborg", b""),), {}, "has an entry with the name '../../etc/cyborg'"),
        ((("/etc/cyborg", b""),), {}, "has an entry with the name '/etc/cyborg'"),
        (tuple((str(number), b"") for number in range(10)), {}, "more than 9 entries"),
    ],
)
def test_unusable_archive_is_refused_with_the_reason(
    tmp_path: Path,
    entries: tuple[tuple[str, bytes]],
    notes: dict[str, Any],
    clause: str,
) -> None:
    path = archive(tmp_path / "host.tar.gz", *entries, **notes)
    with pytest.raises(ValueError, match=r"host\.tar\.gz") as refused:
        ArchivedHost.recorded(path, max_entries=9)
    assert clause in str(refused.value)


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_archive_with_a_large_header_is_refused_before_the_header_is_read(
    tmp_path: Path, format_: int
) -> None:
    path = tmp_path / "host.tar.gz"
    with tarfile.open(path, "w:gz", format=format_) as file:
        file.addfile(tarfile.TarInfo("n" * 2_000_000))
    with pytest.raises(ValueError, match="a header of more than 1048576 bytes"):
        ArchivedHost.recorded(path)


@pytest.mark.parametrize("content", [b"no gzip", b"", None])
def test_file_that_is_no_archive_is_a_configuration_error(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "host.tar.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(exception.ConfigError, match=r"Option --host: .*cannot be read as an arch"):
        read(path)


def test_archive_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "host.tar.gz"
    path.write_bytes(GUEST.read_bytes()[:2000])
    with pytest.raises(ValueError, match="cannot be read as an archive"):
        ArchivedHost.recorded(path)


def test_device_nodes_and_hard_links_of_an_archive_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "host.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for name, kind in (("disk", tarfile.BLKTYPE), ("pipe", tarfile.FIFOTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            file.addfile(entry)
        file.addfile(tarfile.TarInfo("file"))
    assert FakeHost.recorded(path).paths() == ["/file"]


@pytest.mark.proves("pci_driver", "discover", by="recorded")
def test_drivers_see_the_disks_and_cards_of_the_guest() -> None:
    driver = PciDriver(read(GUEST), configured('{"vendor_id": "1b36"}', '{"vendor_id": "1234"}'))
    devices = {device.key: device.model for device in look(driver).discover()}
    nvme = "QEMU NVM Express Controller"
    assert devices == {
        "0000:01:00.0": nvme,
        "0000:02:00.0": nvme,
        "0000:41:00.0": nvme,
        "0000:44:00.0": "11e8",
        "0000:45:00.0": "11e8",
    }
    reasons = {entry.key: entry.reason for entry in look(driver).hardware()}
    assert reasons["0000:0d:00.0"] == "it is CXL memory, which the host itself uses"
    assert "its IOMMU group 10 has 0000:00:1f.3" in str(reasons["0000:00:1f.2"])
    assert len(reasons) == 27


def test_archive_of_the_guest_is_small() -> None:
    assert GUEST.stat().st_size < 100_000


DEEP = "/a" * 5_000


@pytest.mark.parametrize(
    "notes",
    [
        {"unreadable": {"/a": 10**30}},
        {"unreadable": {"/a": 0}},
        {"unreadable": {"/a": "13"}},
        {"unreadable": {"/a": 13.0}},
        {"unreadable": {"/a": float("inf")}},
        {"unreadable": {DEEP: errno.EACCES}},
        {"unreadable": {"a": errno.EACCES}},
        {"claimed": [7]},
        {"commands": [["lspci", 0, "", ""]]},
        {"commands": [[["lspci"], None, 7, None]]},
        {"commands": [[["lspci"], 0, ""]]},
    ],
)
def test_notes_of_another_form_are_refused(tmp_path: Path, notes: dict[str, Any]) -> None:
    path = archive(tmp_path / "host.tar.gz", **notes)
    with pytest.raises(exception.ConfigError, match="cannot be used"):
        read(path)


def test_deeply_nested_notes_are_refused(tmp_path: Path) -> None:
    (tmp_path / NOTES).write_text("[" * 100_000)
    with pytest.raises(exception.ConfigError, match="cannot be used"):
        read(tmp_path)


def test_deep_path_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "host.tar.gz", (DEEP[1:], b""))
    with pytest.raises(exception.ConfigError, match="has an entry with the name"):
        read(path)


@pytest.mark.parametrize("damage", [bytes(64), b"\xff" * 64])
def test_damaged_compression_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = archive(tmp_path / "host.tar.gz", ("a", b"".join(b"%d " % n for n in range(100_000))))
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + damage + content[middle + len(damage) :])
    with pytest.raises(exception.ConfigError, match="cannot be read as an archive of a host"):
        read(path)


WHOLE: dict[str, Any] = EMPTY | {
    "unreadable": {"/sys/bus/pci/reset": errno.EACCES},
    "claimed": ["/dev/disk"],
    "commands": [[["lspci", "-n"], 0, "00:00.0\n", ""]],
}


@given(malformed.changed(WHOLE).map(malformed.encode))
@fuzzed(150)
def test_malformed_notes_are_read_or_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTES).write_text(text)
    with malformed.bounded():
        try:
            host = read(tmp_path)
        except exception.ConfigError as error:
            malformed.check_refusal(error, "Option --host: ")
            return
        for path in host.faults:
            with pytest.raises(exception.HostError):
                host.read_text(path)
        for argv, answer in host.answers.items():
            assert isinstance(host.run(argv, timeout=1).stdout + answer.stderr, str)


@given(st.data())
@fuzzed(100)
def test_malformed_archive_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = archive(
        tmp_path / "host.tar.gz",
        ("sys/bus/pci", None),
        ("sys/class/card", "../bus/pci"),
        ("sys/bus/pci/enable", b"1\n" * 2_000),
        ("proc/7/comm", b"qemu\n"),
        **WHOLE,
    )
    whole = gzip.decompress(path.read_bytes())
    if data.draw(st.booleans()):
        path.write_bytes(gzip.compress(data.draw(malformed.contents(whole)), 1))
    else:
        path.write_bytes(data.draw(malformed.contents(path.read_bytes())))
    with malformed.bounded():
        try:
            host = read(path)
        except exception.ConfigError as error:
            malformed.check_refusal(error, "Option --host: ")
            return
        for name in host.list_dir("/"):
            assert name

# SPDX-License-Identifier: Apache-2.0
"""A recording shows a driver what the recorded machine showed it, and nothing is written there."""

import errno
import sys
import tarfile
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.pci import PciDriver
from cyborg.testing import recorder, servers, subject
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.recorder import RecordingHost
from cyborg.tests.fixtures.waiting import PATIENCE, ran
from cyborg.tests.unit.drivers.configured import configured


def replayed(recording: RecordingHost, directory: Path) -> FakeHost:
    """The recording after a way through the file system."""
    recording.tree.materialise(directory)
    return FakeHost.recorded(directory)


def test_driver_finds_the_same_on_the_recording(tmp_path: Path) -> None:
    servers.server().materialise(tmp_path / "machine")
    recording = RecordingHost(str(tmp_path / "machine"))
    conf = configured('{"vendor_id": "10de"}')
    driver = PciDriver(recording, conf)
    looks = (look(driver).discover(), look(driver).hardware(), look(driver).backends())
    again = PciDriver(replayed(recording, tmp_path / "recording"), conf)
    assert (look(again).discover(), look(again).hardware(), look(again).backends()) == looks
    assert looks[0]


def test_command_answers_and_unreadable_files_are_recorded(tmp_path: Path) -> None:
    servers.server().materialise(tmp_path / "machine")
    recording = RecordingHost(str(tmp_path / "machine"))
    answer = recording.run(["/bin/echo", "ready"], timeout=PATIENCE)
    with pytest.raises(exception.HostError):
        recording.read_bytes("/sys/bus/pci/devices")
    host = replayed(recording, tmp_path / "recording")
    assert host.faults == {"/sys/bus/pci/devices": errno.EISDIR}
    assert host.run(["/bin/echo", "ready"], timeout=10.0) == answer
    assert answer.stdout == "ready\n"


def test_processes_that_hold_devices_are_recorded(tmp_path: Path) -> None:
    host = servers.server()
    servers.open_vfio(host, "4", 77, "qemu")
    host.add_link("/proc/77/fd/18", "/dev/vfio/5")
    host.add_link("/proc/78/fd/1", "/dev/vfio/6")
    host.materialise(tmp_path / "machine")
    recording = RecordingHost(str(tmp_path / "machine"))
    files = recording.open_files()
    assert files.holders["/dev/vfio/4"] == "qemu (process 77)"
    assert replayed(recording, tmp_path / "recording").open_files() == files


def test_archive_in_one_file_is_a_host_of_the_kit(tmp_path: Path) -> None:
    servers.server().materialise(tmp_path / "tree")
    with tarfile.open(tmp_path / "host.tar.gz", "w:gz") as file:
        file.add(tmp_path / "tree", arcname="")
    host = subject.load("fake_driver", str(tmp_path / "host.tar.gz"), None).make_host()
    assert host.list_dir("/sys/bus/pci/devices")
    (tmp_path / "host.tar.gz").write_text("no archive")
    with pytest.raises(ValueError, match="cannot be read as an archive of a host"):
        subject.load("fake_driver", str(tmp_path / "host.tar.gz"), None)


def test_recording_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("before")
    with pytest.raises(exception.HostError, match="a recording changes nothing"):
        RecordingHost().write_text(str(place), "after")
    assert place.read_text() == "before"


def test_directory_with_too_many_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="so it is not an archive of a host"):
        FakeHost.recorded(Path("/usr"), max_entries=100)


def test_command_records_and_prints_how_to_replay(tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    command = [sys.executable, "-m", "cyborg.testing.recorder", "fake_driver", str(directory)]
    ended = ran(command, check=True)
    assert "fake_driver offers 1 of 1 pieces of hardware here." in ended.stdout
    replay = f"pytest --cyborg-driver fake_driver --cyborg-host={directory}"
    assert replay in ended.stdout
    assert directory.is_dir()


def test_command_refuses_unusable_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recorder.main(["nobodys_driver", str(tmp_path / "recording")]) == 1
    refusal = "nobodys_driver cannot be recorded: no driver of this name is installed"
    assert refusal in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        recorder.main(["fake_driver", str(tmp_path)])
    assert caught.value.code == 2
    assert "name a directory that does not exist yet" in capsys.readouterr().err

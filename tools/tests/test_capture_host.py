# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/capture-host: what it copies, what it hides, and that it ends."""

import ast
import errno
import importlib.machinery
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from cyborg.drivers import rtnetlink
from cyborg.drivers.archive import ArchivedHost
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.rtnetlink import Traffic
from cyborg.model.device import Hardware
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually, ran
from cyborg.tests.unit.drivers.configured import configured

PROGRAM = Path(__file__).parents[1] / "capture-host"
UUID = "6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11"
SERIAL = "S4EMNX0R123456"
MAC = "52:54:00:12:34:56"
NQN = "nqn.2014.08.org.nvmexpress:144d144dS4EMNX0R123456"
#: Everything that must not be in an archive.
SECRETS = (UUID, SERIAL, MAC, "525400123456", "/srv/customer", NQN)
SERIAL_CAPABILITY = bytes.fromhex("0300010011223344aabbccdd")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program as a module."""
    loader = importlib.machinery.SourceFileLoader("capture_host", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def machine() -> FakeHost:
    """A server in use, with secrets in all places where a machine has them."""
    host = servers.server()
    servers.open_vfio(host, "devices/vfio0", 77, "qemu-system-x86")
    servers.add_mount(host, "259:2", "/srv/customer")
    controller = f"{servers.place(servers.NVME_FREE)}/nvme/nvme1"
    host.add_link("/sys/class/nvme/nvme1", f"../..{controller.removeprefix('/sys')}")
    host.add_link(f"{controller}/device", "../..")
    for name, text in {
        "serial": f"{SERIAL}      \n",
        "subsysnqn": f"{NQN}\n",
        "model": "SSD 970\n",
        "address": f"{servers.NVME_FREE}\n",
        "secret_file": "not on the list\n",
    }.items():
        host.add_file(f"{controller}/{name}", text)
    disk = f"{controller}/nvme1n1"
    host.add_file(f"{disk}/uuid", f"{UUID}\n")
    host.add_file(f"{disk}/wwid", f"nvme.144d-{SERIAL}\n")
    # A function with a serial number in its configuration space.
    config = bytes(0x100) + SERIAL_CAPABILITY + bytes(0xF00 - len(SERIAL_CAPABILITY))
    host.add_file(f"{servers.place(servers.FPGA)}/config", config)
    # A mediated device, and a btrfs file system.
    parent = servers.place(servers.GPU, behind=servers.ROOT_PORT)
    host.add_file(f"{parent}/mdev_supported_types/nvidia-63/available_instances", "3\n")
    host.add_link(f"{parent}/mdev_supported_types/nvidia-63/devices/{UUID}", f"../../../{UUID}")
    host.add_link(f"{parent}/{UUID}/mdev_type", "../mdev_supported_types/nvidia-63")
    host.add_link(f"/sys/bus/mdev/devices/{UUID}", f"../../..{parent.removeprefix('/sys')}/{UUID}")
    host.add_link(f"/sys/fs/btrfs/{UUID}/devices/nvme1n1", f"../../../..{disk[4:]}")
    # An interface that is named after its MAC address, with networks.
    servers.add_interface(host, servers.NIC_IDLE, "enx525400123456")
    host.add_file(f"{servers.place(servers.NIC_IDLE)}/net/enx525400123456/address", f"{MAC}\n")
    servers.add_use(host, "enx525400123456", Traffic.ADDRESS)
    return host


def captured(host: FakeHost, directory: Path, name: str = "host.tar.gz") -> FakeHost:
    """Write the host, capture it, and return what the archive has."""
    host.materialise(directory / "machine")
    words = [str(directory / name), "--root", str(directory / "machine")]
    ended = ran([sys.executable, str(PROGRAM), *words])
    assert (ended.returncode, ended.stderr) == (0, "")
    return FakeHost.recorded(directory / name)


def hardware(host: ArchivedHost) -> dict[str, Hardware]:
    driver = PciDriver(host, configured('{"vendor_id": "10de"}', '{"vendor_id": "144d"}'))
    return {entry.key: entry for entry in look(driver).hardware()}


def test_drivers_see_on_the_archive_what_they_see_on_the_machine(tmp_path: Path) -> None:
    host = machine()
    copy = captured(host, tmp_path)
    before, after = hardware(host), hardware(copy)
    assert list(before) == list(after)
    for key, entry in before.items():
        hidden = str(entry.reason).replace("enx525400123456", "").replace("/srv/customer", "")
        if hidden == str(entry.reason) and UUID not in hidden:
            assert after[key] == entry
        else:
            assert (after[key].offered, after[key].model) == (entry.offered, entry.model)
    assert after[servers.GPU].reason is not None
    assert "mediated device(s), for example" in after[servers.GPU].reason
    assert "mounted at /hashed-" in str(after[servers.NVME_FREE].reason)
    holders = copy.open_files().holders
    assert holders == {"/dev/vfio/devices/vfio0": "qemu-system-x86 (process 77)"}


@pytest.mark.parametrize("name", ["host.tar.gz", "host"])
def test_archive_has_no_secret(tmp_path: Path, name: str) -> None:
    copy = captured(machine(), tmp_path, name)
    contents = [content for path in copy.paths() if (content := copy.content(path)) is not None]
    targets = [copy.readlink(path) for path in copy.paths() if copy.content(path) is None]
    text = "\n".join([*copy.paths(), *targets, *map(str, contents)]).lower()
    assert [secret for secret in SECRETS if secret.lower() in text] == []
    assert SERIAL_CAPABILITY[4:] not in b"".join(contents)
    assert "secret_file" not in text
    assert "/net/enx" in text


def test_equal_values_stay_equal_within_one_archive_only(program: ModuleType) -> None:
    first, second = program.Secrets("compute-1"), program.Secrets("compute-1")
    assert first.value(f"{SERIAL}\n") == first.value(f"{SERIAL}\n")
    assert first.value(SERIAL) != first.value(SERIAL[:-1])
    assert first.value(SERIAL) != second.value(SERIAL)
    assert first.text(f"a/{UUID}") == f"a/{first.text(UUID)}"
    assert first.text(UUID.upper()) == first.text(UUID)


@pytest.mark.parametrize("form", ["GPU 0: H100 (UUID: GPU-{})\n", "uuid: {}\n", "GPU-{}, H100\n"])
def test_uuid_in_the_output_of_a_command_is_hashed_as_in_files(
    program: ModuleType, form: str
) -> None:
    secrets = program.Secrets("compute-1")
    assert secrets.output(form.format(UUID)) == form.format(secrets.text(UUID))


def test_hash_has_the_form_of_the_value(program: ModuleType) -> None:
    secrets = program.Secrets("")
    for value in (UUID, MAC, "aa-bb-cc-dd-ee-ff-00-11"):
        replaced = secrets.text(value)
        assert replaced != value
        assert [len(part) for part in replaced.replace(":", "-").split("-")] == [
            len(part) for part in value.replace(":", "-").split("-")
        ]
    assert int(secrets.value("0x1122334455667788"), 16) != 0x1122334455667788


@pytest.mark.parametrize("value", ["", "\n", "0x0000\n", "00-00-00-00-00-00-00-00", "ffffffff"])
def test_value_that_says_there_is_none_stays(program: ModuleType, value: str) -> None:
    assert program.Secrets("").value(value) == value


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b5] (rev a1)",
        "0000:00:1f.3 Serial bus controller [0c80]: Intel Corporation Device [8086:a324]",
        "0000:02:00.0 Serial Attached SCSI controller [0107]: Broadcom [1000:0097] (rev 02)",
    ],
)
def test_output_without_secrets_stays(program: ModuleType, text: str) -> None:
    assert program.Secrets("compute-1").output(text) == text


def test_output_of_commands_has_no_secret(program: ModuleType) -> None:
    secrets = program.Secrets("compute-1.example.org")
    secrets.value(SERIAL)
    text = secrets.output(
        f"GPU 0: NVIDIA A100 (UUID: GPU-{UUID})\n"
        f'{{"SerialNumber":"ABC123","HostNQN" : "nqn.x:{UUID}", "ModelNumber":"SSD"}}\n'
        f"Serial Number : 0325212345678\nseen on compute-1: {SERIAL}\n"
    )
    for secret in (UUID, "ABC123", "nqn.x", "0325212345678", "compute-1", SERIAL):
        assert secret not in text
    assert "NVIDIA A100" in text
    assert '"ModelNumber":"SSD"' in text
    assert "seen on host" in text


def test_unreadable_file_is_marked_and_no_empty_file(program: ModuleType, tmp_path: Path) -> None:
    host = servers.server()
    place = servers.place(servers.FPGA)
    host.add_file(f"{place}/reset", "")
    host.add_dir(f"{place}/label")
    host.materialise(tmp_path / "machine")
    Path(f"{tmp_path}/machine{place}/reset").chmod(0o200)
    limited = program.Limited(PATIENCE, PATIENCE)
    capture = program.Capture(str(tmp_path / "machine"), program.Secrets(""), limited)
    capture.everything()
    program.write_directory(capture, str(tmp_path / "host"))
    assert capture.unreadable == {f"{place}/reset": errno.EACCES, f"{place}/label": errno.EISDIR}
    assert not Path(f"{tmp_path}/host{place}/reset").exists()
    assert FakeHost.recorded(tmp_path / "host").faults == capture.unreadable


def test_file_that_hangs_is_marked_and_costs_no_other_file(program: ModuleType) -> None:
    gate = Gate()
    limited = program.Limited(0.05, PATIENCE)
    with pytest.raises(OSError, match="timed out") as caught:
        limited.run(gate.hold)
    assert caught.value.errno == errno.ETIMEDOUT

    def read() -> int | None:
        # On a busy machine this one may take as long as one that hangs.
        with suppress(OSError):
            return int(limited.run(os.getpid))
        return None

    assert eventually(read) == os.getpid()
    gate.set()


def test_nothing_is_read_after_the_whole_time(program: ModuleType, tmp_path: Path) -> None:
    servers.server().materialise(tmp_path / "machine")
    limited = program.Limited(2.0, 0.0)
    capture = program.Capture(str(tmp_path / "machine"), program.Secrets(""), limited)
    capture.everything()
    assert capture.files == {}
    assert set(capture.unreadable.values()) == {errno.ETIMEDOUT}
    assert "/sys" in capture.unreadable


def test_disk_in_use_is_noted(program: ModuleType, tmp_path: Path) -> None:
    class Busy:
        left = 1.0

        def run(self, call: object, *arguments: object) -> None:
            raise OSError(errno.EBUSY, "busy")

    capture = program.Capture(str(tmp_path), program.Secrets(""), Busy())
    capture.try_disk("/dev/sda")
    assert capture.notes()["claimed"] == ["/dev/sda"]


def test_command_that_hangs_or_cannot_run_is_left_out(program: ModuleType) -> None:
    assert program.execute(("/bin/sleep", "60"), 0.1)[0] is None
    assert program.execute(("/nowhere/tool",), 1.0)[0] is None
    assert program.execute(("/bin/echo", "ready"), 60.0) == (0, "ready\n", "")


def test_this_machine_is_captured_unprivileged_or_as_root(tmp_path: Path) -> None:
    path = tmp_path / "host.tar.gz"
    ended = ran([sys.executable, "-I", str(PROGRAM), str(path)])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert path.stat().st_mode & 0o777 == 0o600
    host = ArchivedHost.recorded(path)
    assert os.uname().release in host.release
    assert host.exists("/proc/self/mountinfo")
    assert set(host.network_uses()) == set(rtnetlink.uses())


def test_existing_archive_is_not_replaced(tmp_path: Path) -> None:
    ended = ran([sys.executable, str(PROGRAM), str(tmp_path)])
    assert ended.returncode == 2
    assert "exists; name a file or directory that does not" in ended.stderr


def test_archive_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "host.tar.gz"
    ended = ran([sys.executable, str(PROGRAM), str(path), "--root", str(tmp_path)])
    assert ended.returncode == 1
    assert "cannot be written: " in ended.stderr


def test_oldest_python_understands_the_program() -> None:
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 8))
    imports = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert imports <= sys.stdlib_module_names

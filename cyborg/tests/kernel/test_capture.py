# SPDX-License-Identifier: Apache-2.0
"""``tools/capture-host`` and ``cyborg-agent --discover`` on a real kernel."""

import errno
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cyborg.drivers import archive
from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import BUS, E1000E, IGB, Functions
from cyborg.tests.kernel.nobody import NOBODY, as_nobody
from cyborg.tests.kernel.uevents import Recorder

PROGRAM = Path(__file__).parents[3] / "tools" / "capture-host"
AGENT = Path(sys.executable).with_name("cyborg-agent")
#: NVMe controllers, virtual functions of igb, the idle accelerators, and the plain network card.
CONFIGURATION = """\
[DEFAULT]
host = guest
state_path = {state}
[agent]
enabled_drivers = pci_driver
[pci]
passthrough_whitelist = {{"vendor_id": "1b36", "product_id": "0010"}}
passthrough_whitelist = {{"vendor_id": "8086", "product_id": "10ca"}}
passthrough_whitelist = {{"vendor_id": "1234", "product_id": "11e8"}}
passthrough_whitelist = {{"vendor_id": "8086", "product_id": "10d3"}}
"""
#: What a scan could change below /sys/devices; other files count what the machine itself does.
STATES = frozenset(
    {
        *("driver_override", "enable", "sriov_drivers_autoprobe", "sriov_numvfs", "reset_method"),
        *("available_instances", "creatable_vgpu_types", "current_vgpu_type"),
        *("control", "d3cold_allowed", "operstate", "flags", "state"),
    }
)


def state_of_devices() -> dict[str, tuple[int, str]]:
    """Return the time of the last change and the content or target of all that is in sysfs."""
    states = {}
    for directory, directories, files in os.walk("/sys/devices"):
        for name in (*directories, *files):
            path = f"{directory}/{name}"
            content = ""
            if os.path.islink(path):
                content = os.readlink(path)
            elif name in STATES and os.access(path, os.R_OK) and os.path.isfile(path):
                content = Path(path).read_text()
            states[path] = os.lstat(path).st_mtime_ns, content
    for link in Path(BUS, "drivers").glob("*/0000:*"):
        states[str(link)] = 0, os.readlink(link)
    return states


def discovered(*words: str) -> dict[str, Any]:
    """Return the document of ``cyborg-agent --discover`` without the path of its archive."""
    ended = subprocess.run(
        [AGENT, *words, "--discover", "--json"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    document: dict[str, Any] = json.loads(ended.stdout)
    del document["archive"]
    return document


def capture(path: Path) -> None:
    """Capture the guest."""
    ended = subprocess.run(
        [sys.executable, PROGRAM, str(path)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def contents(path: Path) -> dict[str, bytes]:
    """Return the content of the files of an archive, and of its notes, by path."""
    return {
        f"/{file.relative_to(path)}": file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and not file.is_symlink()
    }


@pytest.mark.proves("pci_driver", "discover", by="kernel")
def test_archive_gives_the_devices_of_the_guest_and_nothing_is_touched(
    functions: Functions, mounted: Callable[[str], Path], tmp_path: Path, undo: ExitStack
) -> None:
    [card], [physical] = functions.matching(E1000E), functions.matching(IGB)
    virtual, _ = functions.create_vfs(physical, 2)
    disk = functions.nvme("PLAIN0001")
    place = mounted(functions.disk(disk))
    functions.bind(card, "vfio-pci")
    undo.enter_context(vfio.held(functions.link(card, "iommu_group") or "", card))
    state = tmp_path / "state"
    file = tmp_path / "cyborg.conf"
    file.write_text(CONFIGURATION.format(state=state))
    before = state_of_devices()
    recorder = undo.enter_context(Recorder())

    live = discovered("--config-file", str(file))
    path = tmp_path / "host.tar.gz"
    capture(path)
    archived = discovered("--config-file", str(file), "--host", str(path))

    after = state_of_devices()
    assert {
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    } == set()
    assert not state.exists()
    functions.write(virtual, "uevent", "change")
    first = recorder.first()
    assert (first.action, first.devpath.rpartition("/")[2]) == ("change", virtual)

    text = re.sub("/hashed-[0-9a-f]{12}", str(place), json.dumps(archived))
    assert json.loads(text) == live
    devices = {device["address"]: device for device in live["devices"]}
    offered = {address for address, device in devices.items() if device["offered"]}
    assert {virtual, functions.nvme("IDLE00001")} <= offered
    assert str(place) in devices[disk]["reason"]
    assert "held through VFIO by" in devices[card]["reason"]
    assert "2 virtual functions" in devices[physical]["reason"]


def test_archive_has_hashes_for_what_identifies_the_guest(
    functions: Functions, host: LocalHost, tmp_path: Path
) -> None:
    [card] = functions.matching(E1000E)
    path = tmp_path / "host"
    capture(path)
    files = contents(path)
    everything = b"".join(files.values()).lower()
    names = [name for name in host.list_dir("/sys/class/net") if name != "bonding_masters"]
    addresses = {host.read_text(f"/sys/class/net/{name}/address").strip() for name in names}
    addresses.discard("00:00:00:00:00:00")
    serials = {"PLAIN0001", "IDLE00001", "SRIOV0001", "nqn.2026-01.test:sriov"}
    shown = [value for value in addresses | serials if value.lower().encode() in everything]
    assert len(addresses) >= 2
    assert shown == []
    [controller] = functions.names(functions.nvme("PLAIN0001"), "nvme")
    [serial] = {
        content for name, content in files.items() if name.endswith(f"/nvme/{controller}/serial")
    }
    assert re.fullmatch(rb"hashed-[0-9a-f]{16}\s*", serial)
    # The serial number in the configuration space of the card is made of its MAC address.
    [interface] = functions.names(card, "net")
    octets = bytes.fromhex(functions.read(card, f"net/{interface}/address").replace(":", ""))
    number = (octets[:3] + b"\xff\xff" + octets[3:])[::-1]
    assert number in Path(functions.path(card, "config")).read_bytes()
    [copy] = [content for name, content in files.items() if name.endswith(f"/{card}/config")]
    assert len(copy) == 4096
    assert number not in copy


def test_archive_of_a_user_without_privileges_names_what_could_not_be_read(
    functions: Functions, undo: ExitStack
) -> None:
    loader = importlib.machinery.SourceFileLoader("capture_host", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    program = importlib.util.module_from_spec(spec)
    loader.exec_module(program)
    directory = undo.enter_context(tempfile.TemporaryDirectory(dir="/run"))
    os.chown(directory, NOBODY, NOBODY)
    path = Path(directory, "host")
    assert as_nobody(lambda: program.main([str(path)])) == "0"
    unreadable = json.loads((path / ".cyborg-host.json").read_text())["unreadable"]
    address = functions.nvme("IDLE00001")
    place = os.path.realpath(functions.path(address))
    refused = (f"{place}/reset", f"/dev/{functions.disk(address)}", "/proc/1/fd")
    assert {name: unreadable.get(name) for name in refused} == dict.fromkeys(refused, errno.EACCES)
    scan = Scan(archive.read(path))
    reason = scan.refusal(scan.functions[PciAddress.parse(address)], managed=False)
    assert "may be open in a process" in str(reason)

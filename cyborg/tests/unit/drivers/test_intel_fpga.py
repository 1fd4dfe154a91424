# SPDX-License-Identifier: Apache-2.0
"""The intel_fpga_driver on simulated cards: one with the DFL driver, one with OPAE's and VFs.

What its files say about its health is in ``readings.d``.
"""

import errno
import json
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.state_store import StateStore, TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver, ImageFile
from cyborg.drivers.command import Completed
from cyborg.drivers.intel_fpga import Image, IntelFpgaDriver, parse_image
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.model.health import Condition, Judgement
from cyborg.model.work import HandleTask, ImageOrder, Outcome, ProgramTask
from cyborg.testing import servers, situations
from cyborg.testing.driver_checks import change, look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.drivers.configured import written

N6001 = "0000:4b:00.0"
ARRIA10 = "0000:5d:00.0"
ARRIA10_VFS = ("0000:5d:00.1", "0000:5d:00.2")
FPGACONF = "/usr/bin/fpgaconf"
REGION = "bfac4d851ee856fe8c95865ce1bbaa2d"
OTHER_REGION = "69528db6eb31577a8c3668f9faa081f6"
LOADED = "d8424dc4a4a3c413f89e433683f9040b"
NEXT = "56e203e9864f49a7b94b12284c31e02b"
IMAGE_UUID = "cb9f4a5e-8d3c-4b53-9f8b-0d2c7b1f3a11"
PATH = "/var/lib/cyborg/images/tmp0/image"
FME = f"/sys/devices/pci0000:4b/{N6001}/fpga_region/region0/dfl-fme.0"
MANAGER = f"{FME}/dfl-fme-mgr.1/fpga_manager/fpga0"
PORT = f"/sys/devices/pci0000:4b/{N6001}/fpga_region/region0/dfl-port.0"

Program = Callable[[FakeHost, tuple[str, ...]], Completed]


def gbs(region: str = REGION, *functions: str) -> bytes:
    """Return an image as OPAE's packager writes it, with UUIDs in their form with hyphens."""
    clusters = [
        {"name": "nlb", "accelerator-type-uuid": dashed(function)}
        for function in functions or (NEXT,)
    ]
    metadata = {
        "version": 1,
        "afu-image": {
            "interface-uuid": dashed(region),
            "magic": 488605312,
            "accelerator-clusters": clusters,
        },
    }
    text = json.dumps(metadata).encode()
    return b"XeonFPGA\xb7GBSv001" + struct.pack("<I", len(text)) + text + b"\xff" * 512


def dashed(uuid: str) -> str:
    return "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])).upper()


def host_with_cards() -> FakeHost:
    host = servers.server()
    place = servers.add_function(host, N6001, "8086:bcce:120000", driver="dfl-pci", node=0)
    fme, port = f"{place}/fpga_region/region0/dfl-fme.0", PORT
    host.add_file(f"{fme}/ports_num", "1\n")
    host.add_file(f"{MANAGER}/state", "operating\n")
    host.add_file(f"{fme}/dfl-fme-region.2/fpga_region/region2/compat_id", f"{REGION}\n")
    for name in ("fme_errors", "pcie0_errors", "nonfatal_errors", "catfatal_errors"):
        host.add_file(f"{fme}/errors/{name}", "0x0\n")
    host.add_file(f"{port}/afu_id", f"{LOADED}\n")
    host.add_file(f"{port}/power_state", "0x0\n")
    host.add_file(f"{port}/errors/errors", "0x0\n")
    place = servers.add_function(host, ARRIA10, "8086:09c4:120000", driver="intel-fpga-pci", node=1)
    servers.add_vfs(host, ARRIA10, ARRIA10_VFS, "8086:09c5:120000")
    fme = f"{place}/fpga/intel-fpga-dev.0/intel-fpga-fme.0"
    host.add_file(f"{fme}/pr/interface_id", f"{OTHER_REGION}\n")
    host.add_file(f"{fme}/errors/fme-errors/errors", "0x0\n")
    for number, vf in enumerate(ARRIA10_VFS, 1):
        port = f"{servers.place(vf)}/fpga/intel-fpga-dev.{number}/intel-fpga-port.{number}"
        host.add_file(f"{port}/afu_id", f"{LOADED}\n")
        host.add_file(f"{port}/errors/errors", "0x0\n")
    host.programs[FPGACONF] = loads(NEXT)
    return host


def loads(function: str) -> Program:
    """Return a tool after which the ports of the card have this function."""

    def program(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        words = dict(zip(argv[1:-1:2], argv[2:-1:2], strict=True))
        bus = int(words["--bus"], 16)
        for path in host.paths():
            if path.endswith("/afu_id") and f"/0000:{bus:02x}:" in path:
                host.add_file(path, f"{function}\n")
        return Completed(0, "", "")

    return program


def driver_on(host: FakeHost, tmp_path: Path, blank: str = "") -> IntelFpgaDriver:
    text = f"[intel_fpga]\nblank_image = {blank}\n"
    return IntelFpgaDriver(host, written(tmp_path / "cyborg.conf", text))


def devices_of(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def task_for(key: str = N6001) -> ProgramTask:
    return ProgramTask("operation", "intel_fpga_driver", key, "deployable", IMAGE_UUID)


@pytest.mark.proves("intel_fpga_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; errors of the card's ports and management engine are the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return host_with_cards()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def break_device(self, host: FakeHost, key: str) -> None:
        set_errors(host, key, "0x2\n")

    def mend_device(self, host: FakeHost, key: str) -> None:
        set_errors(host, key, "0x0\n")


def set_errors(host: FakeHost, key: str, text: str) -> None:
    for path in host.paths():
        if f"/{key}/" in path and path.endswith(("/fme_errors", "/fme-errors/errors")):
            host.add_file(path, text)


class TestContractWithBlankImage(TestContract):
    """The driver contract of a card that gets a blank image after each guest."""

    def make_host(self) -> FakeHost:
        host = host_with_cards()
        host.add_file("/etc/cyborg/blank.gbs", gbs(REGION, LOADED))
        host.programs[FPGACONF] = loads(LOADED)
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path, blank="/etc/cyborg/blank.gbs")


def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    device = devices_of(driver_on(host_with_cards(), tmp_path))[ARRIA10]
    assert (device.type, device.vendor) == (DeviceType.FPGA, "0x8086")
    assert json.dumps(device.std_board_info) == '{"product_id": "0x09c4"}'
    assert device.vendor_board_info == "miss_vb_info"
    (deployable,) = device.deployables
    assert deployable.name == f"{socket.gethostname()}_{ARRIA10_VFS[-1]}"
    assert (deployable.resource_class, deployable.driver_name) == ("FPGA", "intel")
    handles = [(handle.key, handle.type) for handle in deployable.handles]
    assert handles == [(vf, AttachType.PCI) for vf in ARRIA10_VFS]
    assert deployable.traits == (
        "CUSTOM_FPGA_INTEL",
        "CUSTOM_FPGA_INTEL_PAC_ARRIA10",
        f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{LOADED.upper()}",
        f"CUSTOM_FPGA_REGION_INTEL_{OTHER_REGION.upper()}",
    )
    keys = [attribute.key for attribute in deployable.attributes]
    assert keys == ["rc", "trait0", "trait1", "trait2", "trait3"]


def test_a_card_of_another_kind_does_not_claim_to_be_an_arria_10(tmp_path: Path) -> None:
    device = devices_of(driver_on(host_with_cards(), tmp_path))[N6001]
    (deployable,) = device.deployables
    assert deployable.name == f"{socket.gethostname()}_{N6001}"
    assert [handle.key for handle in deployable.handles] == [N6001]
    assert deployable.programmable
    assert deployable.traits == (
        "CUSTOM_FPGA_INTEL",
        "CUSTOM_FPGA_PRODUCT_ID_BCCE",
        f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{LOADED.upper()}",
        f"CUSTOM_FPGA_REGION_INTEL_{REGION.upper()}",
    )


def test_the_name_stays_when_the_last_function_is_refused(tmp_path: Path) -> None:
    host = host_with_cards()
    before = devices_of(driver_on(host, tmp_path))[ARRIA10].deployables[0].name
    situations.hold(host, ARRIA10_VFS[-1])
    (deployable,) = devices_of(driver_on(host, tmp_path))[ARRIA10].deployables
    assert deployable.name == before
    assert [handle.key for handle in deployable.handles] == [ARRIA10_VFS[0]]
    managed = Scan(host, managed_deployables={before})
    devices = {device.key: device for device in driver_on(host, tmp_path).discover(managed)}
    assert len(devices[ARRIA10].deployables[0].handles) == 2


@pytest.mark.proves("intel_fpga_driver", "programming", by="simulated")
def test_an_image_is_loaded_by_fpgaconf(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs())
    driver = driver_on(host, tmp_path)
    told: list[float] = []
    driver.program(task_for(), PATH, progress=lambda done, step: told.append(done))
    words = f"--bus 0x4b --device 0x00 --function 0x0 {PATH}"
    assert host.commands == [(FPGACONF, *words.split())]
    traits = devices_of(driver)[N6001].deployables[0].traits
    assert f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{NEXT.upper()}" in traits
    assert told == sorted(told)


def test_an_image_that_comes_with_a_bind_is_loaded(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs())
    task = HandleTask("operation", "intel_fpga_driver", N6001, "deployable", N6001, IMAGE_UUID)
    driver_on(host, tmp_path).prepare(task, ImageFile(IMAGE_UUID, PATH))
    assert host.read_text(f"{PORT}/afu_id").strip() == NEXT


def test_all_functions_of_a_card_get_the_image(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs(OTHER_REGION))
    driver_on(host, tmp_path).program(task_for(ARRIA10), PATH)
    (deployable,) = devices_of(driver_on(host, tmp_path))[ARRIA10].deployables
    assert f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{NEXT.upper()}" in deployable.traits


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gbs(OTHER_REGION), f"for region {OTHER_REGION}, and {N6001} has {REGION}"),
        (b"", "not a GBS image"),
        (b"XeonFPGA\xb7GBSv001", "not a GBS image"),
        (b"\x7fELF" + bytes(1000), "not a GBS image"),
        (gbs()[:100], "it ends within its metadata"),
        (gbs()[:-512], "has nothing after it"),
        (b"XeonFPGA\xb7GBSv001" + struct.pack("<I", 2**32 - 1), "4294967295 bytes"),
        (b"XeonFPGA\xb7GBSv001" + struct.pack("<I", 2) + b"{} data", "metadata is not valid"),
        (b"XeonFPGA\xb7GBSv001" + struct.pack("<I", 2) + b"[] data", "metadata is not valid"),
        (b"XeonFPGA\xb7GBSv001" + struct.pack("<I", 2) + b"\xff\xfe data", "is not valid"),
        (gbs(REGION, "0" * 32), "names no function"),
        (gbs(REGION).replace(dashed(REGION).encode(), b"?" * 36), "is not valid"),
    ],
)
def test_an_image_that_does_not_fit_is_not_loaded(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    host = host_with_cards()
    host.add_file(PATH, content)
    with pytest.raises(exception.DriverFailed, match="program") as caught:
        driver_on(host, tmp_path).program(task_for(), PATH)
    assert reason in str(caught.value)
    assert host.commands == []
    assert host.read_text(f"{PORT}/afu_id").strip() == LOADED


def test_nested_metadata_is_refused() -> None:
    text = b"[" * 50_000
    content = b"XeonFPGA\xb7GBSv001" + struct.pack("<I", len(text)) + text
    with pytest.raises(ValueError, match="not valid"):
        parse_image(content, len(content) + 1)
    assert parse_image(gbs(), len(gbs())) == Image(REGION, (NEXT,))


def test_a_card_without_readable_regions_is_not_programmed(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs())
    host.remove(f"{FME}/dfl-fme-region.2")
    with pytest.raises(exception.DriverFailed, match="none that can be read"):
        driver_on(host, tmp_path).program(task_for(), PATH)
    assert host.commands == []


@pytest.mark.parametrize("function", [LOADED, "f" * 32, "a" + NEXT[1:]])
def test_another_function_after_the_image_was_loaded_is_an_error(
    tmp_path: Path, function: str
) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs())
    host.programs[FPGACONF] = loads(function)
    with pytest.raises(exception.DriverFailed, match=f"the image has function {NEXT}"):
        driver_on(host, tmp_path).program(task_for(), PATH)


def test_a_sibling_that_lost_its_function_is_an_error(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs(OTHER_REGION))

    def breaks_one(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        loads(NEXT)(host, argv)
        place = f"{servers.place(ARRIA10_VFS[1])}/fpga/intel-fpga-dev.2/intel-fpga-port.2"
        host.add_file(f"{place}/afu_id", "a" + LOADED[1:])
        return Completed(0, "", "")

    host.programs[FPGACONF] = breaks_one
    with pytest.raises(exception.DriverFailed, match=f"{ARRIA10_VFS[1]} has function a"):
        driver_on(host, tmp_path).program(task_for(ARRIA10), PATH)


def test_a_tool_that_fails_hangs_or_is_absent_is_an_error(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs())
    driver = driver_on(host, tmp_path)
    host.programs[FPGACONF] = lambda host, argv: Completed(5, "", "PR error detected\n")
    with pytest.raises(exception.HostError, match="status 5: PR error detected"):
        driver.program(task_for(), PATH)
    host.hanging = True
    with pytest.raises(exception.HostError, match="did not end in time"):
        driver.program(task_for(), PATH)
    assert host.patience[-1] < 600
    host.hanging = False
    del host.programs[FPGACONF]
    with pytest.raises(exception.HostError, match="No such file"):
        driver.program(task_for(), PATH)
    host.programs[FPGACONF] = loads(NEXT)
    host.foreign.add(FPGACONF)
    with pytest.raises(exception.HostError, match="others than root can change"):
        driver.program(task_for(), PATH)
    assert host.read_text(f"{PORT}/afu_id").strip() == LOADED


def test_a_card_in_use_is_not_programmed(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, gbs(OTHER_REGION))
    situations.hold(host, ARRIA10_VFS[0])
    with pytest.raises(exception.DriverFailed, match=f"{ARRIA10_VFS[0]} would change"):
        driver_on(host, tmp_path).program(task_for(ARRIA10), PATH)
    situations.hold(host, N6001)
    host.add_file(PATH, gbs())
    with pytest.raises(exception.DriverFailed, match=N6001):
        driver_on(host, tmp_path).program(task_for(), PATH)
    assert host.commands == []


@pytest.mark.proves("intel_fpga_driver", "cleaning", by="simulated")
def test_the_blank_image_replaces_that_of_the_last_guest(tmp_path: Path) -> None:
    host = host_with_cards()
    blank = "/etc/cyborg/blank.gbs"
    host.add_file(PATH, gbs())
    host.add_file(blank, gbs(REGION, LOADED))
    driver = driver_on(host, tmp_path, blank)
    parts = {key: device.deployables[0] for key, device in devices_of(driver).items()}
    assert parts[N6001].clean
    driver.program(task_for(), PATH)
    host.programs[FPGACONF] = loads(LOADED)
    task = HandleTask("operation", driver.name, N6001, parts[N6001].name, N6001, IMAGE_UUID)
    change(driver, "release", task)
    assert host.commands[-1][-1] == blank
    host.foreign.add(blank)
    with pytest.raises(exception.DriverFailed, match="others than root can change"):
        change(driver, "release", task)
    other = HandleTask("o", driver.name, ARRIA10, "deployable", ARRIA10_VFS[0], IMAGE_UUID)
    # Its guests share one image.
    assert "blank image" not in {step.name for step in driver.clean_steps(other)}


def test_the_path_of_the_blank_image_must_be_absolute(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="must be the absolute path"):
        driver_on(host_with_cards(), tmp_path, "blank.gbs")


def health(host: FakeHost, tmp_path: Path, key: str = N6001) -> Judgement:
    return look(driver_on(host, tmp_path)).health(key)


def test_card_whose_port_stays_disabled_is_drained_and_gets_no_image(tmp_path: Path) -> None:
    """As after an image that was not loaded, even when the card has got another one since."""
    host = host_with_cards()
    host.add_file(PATH, gbs())
    host.faults[f"{PORT}/afu_id"] = errno.EBUSY
    found = health(host, tmp_path)
    assert found.condition is Condition.DRAIN
    assert found.evidence == (f"the port of {N6001} is disabled",)
    with pytest.raises(exception.DriverFailed, match=r"is disabled\. Unbind the driver"):
        driver_on(host, tmp_path).program(task_for(), PATH)
    assert host.commands == []


@pytest.mark.parametrize("state", ["write init", "operating"])
def test_port_that_is_disabled_while_an_image_is_loaded_is_no_fault(
    tmp_path: Path, state: str
) -> None:
    """The kernel disables it before the manager says so, and enables it after the last state."""
    host = host_with_cards()
    port = f"{PORT}/afu_id"
    host.faults[port] = errno.EBUSY

    def go_on() -> None:
        host.add_file(f"{MANAGER}/state", f"{state}\n")
        if state == "operating":
            host.faults.pop(port, None)

    host.on_pause = go_on
    assert health(host, tmp_path) == Judgement()


def test_health_is_unknown_when_its_files_cannot_be_read(tmp_path: Path) -> None:
    host = host_with_cards()
    host.faults[f"{FME}/errors/catfatal_errors"] = errno.EIO
    with pytest.raises(exception.HostError):
        health(host, tmp_path)
    assert health(host, tmp_path, ARRIA10) == Judgement()


class ImagesOfGlance:
    """Glance with one image, whose data the agent's host has where it is downloaded to."""

    def __init__(self, host: FakeHost, content: bytes) -> None:
        self._host = host
        self._content = content

    def with_function(self, function_id: str) -> str:
        assert function_id == dashed(NEXT)
        return IMAGE_UUID

    def download(self, image_uuid: str, into: Path) -> None:
        assert image_uuid == IMAGE_UUID
        into.write_bytes(self._content)
        self._host.add_file(str(into), self._content)


@pytest.fixture
def images() -> list[bytes]:
    """Return the data that Glance has; the last one counts."""
    return [gbs()]


@pytest.fixture
def host() -> FakeHost:
    return host_with_cards()


@pytest.fixture
def tasks(tmp_path: Path, host: FakeHost, images: list[bytes]) -> Iterator[DeviceTasks]:
    """Return what runs the tasks of the conductor in an agent with this driver."""
    tasks = DeviceTasks(
        drivers={"intel_fpga_driver": driver_on(host, tmp_path)},
        journal=TaskJournal(StateStore(tmp_path, "host")),
        glance=lambda: cast(Glance, ImagesOfGlance(host, images[-1])),
        images=tmp_path / "images",
        timeout=PATIENCE,
        request_scan=lambda: None,
        worker=Worker(),
    )
    yield tasks
    tasks.stop()


@pytest.mark.parametrize(
    "order",
    [
        ImageOrder(bitstream_id=IMAGE_UUID, exclusive=True, prepare=False),
        ImageOrder(function_id=dashed(NEXT), exclusive=True, prepare=True),
    ],
)
@pytest.mark.proves("intel_fpga_driver", "bind", "programming", by="simulated")
def test_a_bind_loads_the_image_that_its_profile_names(
    host: FakeHost, tasks: DeviceTasks, order: ImageOrder
) -> None:
    task = HandleTask("bind", "intel_fpga_driver", N6001, "deployable", N6001, IMAGE_UUID)
    assert tasks.prepare(task, order) == Outcome("bind", image=IMAGE_UUID)
    assert host.read_text(f"{PORT}/afu_id").strip() == NEXT


@pytest.mark.proves("intel_fpga_driver", "programming", by="simulated")
def test_an_operator_loads_an_image_and_hears_why_it_was_refused(
    host: FakeHost, tasks: DeviceTasks, images: list[bytes]
) -> None:
    assert tasks.program(task_for()) == Outcome("operation")
    assert host.read_text(f"{PORT}/afu_id").strip() == NEXT
    images.append(gbs(OTHER_REGION))
    outcome = tasks.program(replace(task_for(), request_key="second"))
    assert outcome.fault is not None
    assert f"the image is for region {OTHER_REGION}" in outcome.fault
    assert len(host.commands) == 1

# SPDX-License-Identifier: Apache-2.0
"""The xilinx_fpga_driver on a simulated Alveo card, with the reports of XRT's tool.

What the reports say about its health is in ``readings.d``.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.scan import Scan
from cyborg.drivers.xilinx_fpga import Image, XilinxFpgaDriver, parse_image
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.model.health import Judgement
from cyborg.model.work import HandleTask, ProgramTask
from cyborg.testing import servers, situations
from cyborg.testing.driver_checks import change, look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

MANAGEMENT, USER = "0000:65:00.0", "0000:65:00.1"
GOLDEN = "0000:66:00.0"
XRT_SMI = "/opt/xilinx/xrt/bin/xrt-smi"
XBMGMT = "/opt/xilinx/xrt/bin/xbmgmt"
SHELL = "937ed70867cf340dd3c0a3b9ea8fd1d4"
OTHER_SHELL = "862c7020a250293e32036f19956669e5"
LOADED = "5ed30d2a6a8b4bd7b2a56ef9e0d0ce9a"
NEXT = "0f6ca23f9b7c4d02b1bb0c4ad4e53a11"
IMAGE_UUID = "cb9f4a5e-8d3c-4b53-9f8b-0d2c7b1f3a11"
PATH = "/var/lib/cyborg/images/tmp0/image"
BLANK = "/etc/cyborg/blank.xclbin"


def xclbin(function: str = NEXT, region: str = SHELL, length: int | None = None) -> bytes:
    """Return an image with the header that XRT's xclbinutil writes."""
    content = b"\xff" * 256
    total = 456 + len(content) if length is None else length
    header = struct.pack("<QQQHBBHH", total, 1_700_000_000, 0, 0, 2, 17, 0, 0)
    header += bytes.fromhex(region) + b"xilinx_u250_gen3x16_xdma_shell_4_1".ljust(64, b"\0")
    header += bytes.fromhex(function) + bytes(16) + struct.pack("<I", 1) + bytes(4)
    start = b"xclbin2\0" + struct.pack("<i", -1) + b"\xff" * 28 + bytes(256) + bytes(8)
    return start + header + content


def dashed(uuid: str) -> str:
    return "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


def host_with_cards() -> FakeHost:
    """Return a server with an Alveo U250, one with its golden image, and one without a driver."""
    host = servers.server()
    servers.add_function(host, MANAGEMENT, "10ee:5004:120000", driver="xclmgmt", node=1)
    place = servers.add_function(host, USER, "10ee:5005:120000", driver="xocl", node=1)
    host.add_file(f"{place}/xclbinuuid", f"{dashed(LOADED)}\n")
    host.add_file(f"{place}/interface_uuids", f"{SHELL}\n")
    host.add_file(f"{place}/ready", "0x1\n")
    host.add_file(f"{place}/simulated", "{}")
    servers.add_function(host, GOLDEN, "10ee:d004:120000", node=1)
    host.add_file(XRT_SMI, "")
    host.programs[XRT_SMI] = examine
    host.programs[XBMGMT] = program
    return host


def examine(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """Write the reports of a card in the form of XRT 2024.2, whose values are texts."""
    address, output = argv[3], argv[-1]
    assert argv[-3:-1] == ("JSON", "--output")
    place = host.realpath(f"/sys/bus/pci/devices/{address}")
    state = {"is_ready": "true", "level": "0", "errors": "0"}
    simulated = json.loads(host.read_text(f"{place}/simulated"))
    # A test of damaged hosts may have written any text.
    state |= simulated if isinstance(simulated, dict) else {}
    counts = {"correctable": {"count": "3"}, "uncorrectable": {"count": state["errors"]}}
    memories = [{"type": "MEM_DDR4", "tag": "bank0", "ecc": {"status": "-", "error": counts}}]
    host_report = {
        "os": {"sysname": "Linux"},
        "devices": [
            {"bdf": address, "id": "user(inst=128)", "is_ready": state["is_ready"]},
            {"bdf": "0000:17:00.1", "id": "user(inst=129)", "is_ready": "false"},
        ],
    }
    device: dict[str, Any] = {
        "interface_type": "pcie",
        "device_id": address,
        "firewall": {"firewall_level": state["level"], "firewall_status": "0x80004"},
        "mem_topology": {"board": {"memory": {"memories": memories}}},
        "dynamic_regions": [{"xclbin_uuid": host.read_text(f"{place}/xclbinuuid").strip()}],
    }
    document = {"schema_version": {"schema": "JSON"}, "system": {"host": host_report}}
    host.add_file(output, json.dumps({**document, "devices": [device]}))
    return Completed(0, f"[{address}] : Report written\n", "")


def program(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """Load an image into the part of the card that users program."""
    if "--user" in argv:
        content = host.read_bytes(argv[-1], 1 << 20)
        set_file(host, argv[3].replace(".0", ".1"), "xclbinuuid", content[416:432].hex())
    return Completed(0, "Successfully programmed\n", "")


def set_file(host: FakeHost, address: str, name: str, text: str) -> None:
    host.add_file(f"{host.realpath(f'/sys/bus/pci/devices/{address}')}/{name}", text)


def driver_on(host: FakeHost, tmp_path: Path, **options: object) -> XilinxFpgaDriver:
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    return XilinxFpgaDriver(host, written(tmp_path / "cyborg.conf", f"[xilinx_fpga]\n{lines}"))


def devices_of(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def task_for(key: str = MANAGEMENT) -> ProgramTask:
    return ProgramTask("operation", "xilinx_fpga_driver", key, "deployable", IMAGE_UUID)


@pytest.mark.proves("xilinx_fpga_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; a firewall that has tripped is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return host_with_cards()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path, guest_functions="all")

    def break_device(self, host: FakeHost, key: str) -> None:
        set_file(host, key.replace(".0", ".1"), "simulated", '{"level": "2"}')

    def mend_device(self, host: FakeHost, key: str) -> None:
        set_file(host, key.replace(".0", ".1"), "simulated", "{}")


@pytest.mark.filterwarnings("ignore:.* has room for one guest")
@pytest.mark.proves("xilinx_fpga_driver", "discover", "health", by="simulated")
class TestFunctionsForUsers(TestContract):
    """Guests get the functions for users alone."""

    def make_host(self) -> FakeHost:
        host = host_with_cards()
        host.remove(f"/sys/bus/pci/devices/{servers.FPGA}")
        host.remove(f"/sys/bus/pci/devices/{GOLDEN}")
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    driver = driver_on(host_with_cards(), tmp_path, guest_functions="all")
    device = devices_of(driver)[MANAGEMENT]
    assert (device.type, device.vendor) == (DeviceType.FPGA, "10ee")
    assert json.dumps(device.std_board_info) == (
        '{"product_id": "5004", "controller": "Processing accelerators"}'
    )
    assert device.vendor_board_info == '{"vendor_info": "fpga_vb_info"}'
    (deployable,) = device.deployables
    assert deployable.name == f"compute-1_{MANAGEMENT}"
    assert (deployable.resource_class, deployable.driver_name) == ("FPGA", "XILINX")
    handles = [(handle.key, handle.type) for handle in deployable.handles]
    assert handles == [(MANAGEMENT, AttachType.PCI), (USER, AttachType.PCI)]
    assert deployable.group_size == 2
    assert deployable.programmable
    assert deployable.traits == (
        "CUSTOM_FPGA_XILINX",
        "CUSTOM_FPGA_PRODUCT_ID_5004",
        f"CUSTOM_FPGA_FUNCTION_ID_XILINX_{LOADED.upper()}",
        f"CUSTOM_FPGA_REGION_XILINX_{SHELL.upper()}",
    )


def test_a_card_with_its_golden_image_is_listed_and_not_offered(tmp_path: Path) -> None:
    driver = driver_on(host_with_cards(), tmp_path)
    assert set(devices_of(driver)) == {MANAGEMENT, servers.FPGA}
    (entry,) = [entry for entry in look(driver).hardware() if entry.key == GOLDEN]
    assert not entry.offered
    assert entry.reason is not None
    assert entry.reason.startswith("it has its golden image")


def test_a_card_is_offered_with_all_its_functions_or_not_at_all(tmp_path: Path) -> None:
    for address in (MANAGEMENT, USER):
        host = host_with_cards()
        situations.hold(host, address)
        driver = driver_on(host, tmp_path, guest_functions="all")
        assert MANAGEMENT not in devices_of(driver)
        (entry,) = [entry for entry in look(driver).hardware() if entry.key == MANAGEMENT]
        assert entry.reason
        managed = Scan(host, managed_deployables={f"compute-1_{MANAGEMENT}"})
        devices = {device.key: device for device in driver.discover(managed)}
        assert len(devices[MANAGEMENT].deployables[0].handles) == 2


def test_the_function_for_management_stays_on_the_host(tmp_path: Path) -> None:
    """The name of the provider is that of the card with both functions."""
    driver = driver_on(host_with_cards(), tmp_path)
    (deployable,) = devices_of(driver)[MANAGEMENT].deployables
    assert [handle.key for handle in deployable.handles] == [USER]
    assert (deployable.name, deployable.group_size) == (f"compute-1_{MANAGEMENT}", 1)
    assert f"CUSTOM_FPGA_REGION_XILINX_{SHELL.upper()}" in deployable.traits


def test_a_card_whose_function_for_users_is_in_use_names_it(tmp_path: Path) -> None:
    host = host_with_cards()
    situations.hold(host, USER)
    driver = driver_on(host, tmp_path)
    assert MANAGEMENT not in devices_of(driver)
    (entry,) = [entry for entry in look(driver).hardware() if entry.key == MANAGEMENT]
    assert (entry.reason or "").startswith(f"{USER}: ")


@pytest.mark.parametrize("driver_of_host", ["xclmgmt", None])
def test_a_card_with_its_function_for_management_alone_is_not_offered(
    tmp_path: Path, driver_of_host: str | None
) -> None:
    host = servers.bare()
    servers.add_function(host, MANAGEMENT, "10ee:5004:120000", driver=driver_of_host)
    driver = driver_on(host, tmp_path)
    assert devices_of(driver) == {}
    (entry,) = look(driver).hardware()
    assert (entry.reason or "").startswith("it has no function for users")


def test_a_function_of_unknown_ids_is_not_taken_for_that_of_users(tmp_path: Path) -> None:
    """While a guest has both functions of a card, no driver of the host tells them apart."""
    host = servers.bare()
    for address in (MANAGEMENT, USER):
        servers.add_function(host, address, "10ee:fff0:120000", driver="vfio-pci")
    scan = Scan(host, managed_deployables={f"compute-1_{MANAGEMENT}"})
    (device,) = driver_on(host, tmp_path).discover(scan)
    assert [handle.key for handle in device.deployables[0].handles] == [USER]


@pytest.mark.proves("xilinx_fpga_driver", "programming", by="simulated")
def test_an_image_is_loaded_by_xbmgmt(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin())
    driver = driver_on(host, tmp_path)
    driver.program(task_for(), PATH)
    words = f"program --device {MANAGEMENT} --user {PATH}"
    assert host.commands[0] == (XBMGMT, *words.split())
    traits = devices_of(driver)[MANAGEMENT].deployables[0].traits
    assert f"CUSTOM_FPGA_FUNCTION_ID_XILINX_{NEXT.upper()}" in traits


def test_an_image_for_the_flash_memory_is_written_to_it(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin(region=OTHER_SHELL))
    driver_on(host, tmp_path, image_kind="base").program(task_for(), PATH)
    words = f"program --device {MANAGEMENT} --base --image {PATH}"
    assert host.commands == [(XBMGMT, *words.split())]


def test_an_image_or_a_shell_without_region_is_not_compared(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin(region="0" * 32))
    driver_on(host, tmp_path).program(task_for(), PATH)
    host.remove(f"{servers.place(USER)}/interface_uuids")
    host.add_file(PATH, xclbin(LOADED, region=OTHER_SHELL))
    driver_on(host, tmp_path).program(task_for(), PATH)
    assert host.read_text(f"{servers.place(USER)}/xclbinuuid") == LOADED


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (xclbin(region=OTHER_SHELL), f"for region {OTHER_SHELL}, and {MANAGEMENT} has {SHELL}"),
        (b"", "it is not an xclbin"),
        (b"\x7fELF" + bytes(1000), "it is not an xclbin"),
        (xclbin()[:400], "it ends within its header"),
        (xclbin()[:-1], "it has 711 bytes, and 712 according to its header"),
        (xclbin(length=2**64 - 1), "according to its header"),
        (xclbin(length=0), "according to its header"),
        (xclbin("0" * 32), "has no uuid"),
    ],
)
def test_an_image_that_does_not_fit_is_not_loaded(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    host = host_with_cards()
    host.add_file(PATH, content)
    with pytest.raises(exception.DriverFailed) as caught:
        driver_on(host, tmp_path).program(task_for(), PATH)
    assert reason in str(caught.value)
    assert host.commands == []


def test_a_signature_may_follow_the_image() -> None:
    content = xclbin()
    assert parse_image(content[:456], len(content) + 512) == Image((SHELL,), NEXT)


@pytest.mark.parametrize("tool", [True, False])
def test_another_function_after_the_image_was_loaded_is_an_error(
    tmp_path: Path, tool: bool
) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin())
    if not tool:
        host.remove(XRT_SMI)
    host.programs[XBMGMT] = lambda host, argv: Completed(0, "", "")
    with pytest.raises(exception.DriverFailed, match=f"{NEXT}, and after .* has {LOADED}"):
        driver_on(host, tmp_path).program(task_for(), PATH)
    host.remove(f"{servers.place(USER)}/xclbinuuid")
    host.remove(XRT_SMI)
    with pytest.raises(exception.DriverFailed, match="none that can be read"):
        driver_on(host, tmp_path).program(task_for(), PATH)


def test_a_tool_that_fails_hangs_or_is_absent_is_an_error(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin())
    driver = driver_on(host, tmp_path)
    host.programs[XBMGMT] = lambda host, argv: Completed(1, "", "ERROR: bad xclbin\n")
    with pytest.raises(exception.HostError, match="status 1: ERROR: bad xclbin"):
        driver.program(task_for(), PATH)
    host.hanging = True
    with pytest.raises(exception.HostError, match="did not end in time"):
        driver.program(task_for(), PATH)
    assert host.patience[-1] < 600
    host.hanging = False
    del host.programs[XBMGMT]
    with pytest.raises(exception.HostError, match="No such file"):
        driver.program(task_for(), PATH)
    host.foreign.add(XBMGMT)
    with pytest.raises(exception.HostError, match="others than root can change"):
        driver.program(task_for(), PATH)


def test_a_card_in_use_or_without_its_driver_is_not_programmed(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin())
    with pytest.raises(exception.DriverFailed, match="xclmgmt is not the driver"):
        driver_on(host, tmp_path).program(task_for(servers.FPGA), PATH)
    situations.hold(host, USER)
    with pytest.raises(exception.DriverFailed, match=MANAGEMENT):
        driver_on(host, tmp_path).program(task_for(), PATH)
    assert host.commands == []


@pytest.mark.proves("xilinx_fpga_driver", "cleaning", by="simulated")
def test_the_blank_image_replaces_that_of_the_last_guest(tmp_path: Path) -> None:
    host = host_with_cards()
    host.add_file(PATH, xclbin())
    host.add_file(BLANK, xclbin(LOADED))
    driver = driver_on(host, tmp_path, blank_image=BLANK)
    part = devices_of(driver)[MANAGEMENT].deployables[0]
    assert part.clean
    driver.program(task_for(), PATH)
    task = HandleTask("operation", driver.name, MANAGEMENT, part.name, USER, IMAGE_UUID)
    change(driver, "release", task)
    assert host.read_text(f"{servers.place(USER)}/xclbinuuid") == LOADED


def test_the_blank_image_cannot_be_one_for_the_flash_memory(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="image_kind = base"):
        driver_on(host_with_cards(), tmp_path, blank_image=BLANK, image_kind="base")


def health(host: FakeHost, tmp_path: Path, key: str = MANAGEMENT) -> Judgement:
    return look(driver_on(host, tmp_path)).health(key)


def test_report_that_is_nested_too_deep_is_an_error(tmp_path: Path) -> None:
    host = host_with_cards()

    def writes(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        host.add_file(argv[-1], "[" * 100_000)
        return Completed(0, "", "")

    host.programs[XRT_SMI] = writes
    with pytest.raises(exception.HostError, match="no valid JSON"):
        health(host, tmp_path)


def test_a_tool_that_fails_or_can_be_changed_gives_no_health(tmp_path: Path) -> None:
    host = host_with_cards()
    host.programs[XRT_SMI] = lambda host, argv: Completed(1, "", "no device\n")
    with pytest.raises(exception.HostError, match="no device"):
        health(host, tmp_path)
    host.foreign.add(XRT_SMI)
    with pytest.raises(exception.HostError, match="others than root can change"):
        health(host, tmp_path)


def test_card_without_its_driver_has_no_health(tmp_path: Path) -> None:
    with pytest.raises(exception.DriverCannot):
        health(host_with_cards(), tmp_path, servers.FPGA)


@pytest.mark.parametrize(("management", "user"), [("5094", "5095"), ("50b0", "50b1")])
def test_guest_gets_the_function_for_users_of_a_v70(
    tmp_path: Path, management: str, user: str
) -> None:
    host = servers.server()
    servers.add_function(host, MANAGEMENT, f"10ee:{management}:120000", driver="vfio-pci", node=1)
    servers.add_function(host, USER, f"10ee:{user}:120000", driver="vfio-pci", node=1)
    device = devices_of(driver_on(host, tmp_path))[MANAGEMENT]
    assert device.model == "Alveo V70"
    [unit] = device.deployables
    assert [handle.key for handle in unit.handles] == [USER]

# SPDX-License-Identifier: Apache-2.0
"""The ``intel_fpga_driver`` on a card that the kernel's own DFL drivers have; see ``dfl.py``.

The card has no virtual functions. OPAE's tool is replaced by one that does the same system call.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from cyborg import exception
from cyborg.drivers.host import LocalHost
from cyborg.drivers.intel_fpga import IntelFpgaDriver
from cyborg.drivers.privileged.actions import Probe, ProgramIntelFpga, Reset, Unbind
from cyborg.drivers.scan import Scan
from cyborg.model.health import Condition
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, ProgramTask
from cyborg.testing.driver_checks import change, look
from cyborg.tests.kernel import dfl, vfio
from cyborg.tests.kernel.dfl import Card
from cyborg.tests.kernel.functions import BUS, DISPLAY, Functions, catalogued
from cyborg.tests.kernel.test_reset import Root
from cyborg.tests.unit.drivers.configured import written

REGION = "8a0c1f7d9e364b52b1c0a54d2e7f1b06"
OTHER_REGION = "69528db6eb31577a8c3668f9faa081f6"
#: The last words of images.
FIRST, SECOND, BLANK = 0x101, 0x202, 0x303
FPGACONF = Path("/usr/bin/fpgaconf")
#: What OPAE's fpgaconf does with one card: the system call of its plug-in for the DFL drivers.
#: The system call is in include/uapi/linux/fpga-dfl.h, the format of images in OPAE's documents.
TOOL = f"""\
#!{sys.executable} -I
import argparse, ctypes, fcntl, glob, os, struct, sys
parser = argparse.ArgumentParser()
for name in ("segment", "bus", "device", "function"):
    parser.add_argument("--" + name, type=lambda text: int(text, 16), default=0)
parser.add_argument("image")
place = parser.parse_args()
address = f"{{place.segment:04x}}:{{place.bus:02x}}:{{place.device:02x}}.{{place.function:x}}"
with open(place.image, "rb") as file:
    image = file.read()
(length,) = struct.unpack_from("<I", image, 16)
payload = ctypes.create_string_buffer(image[20 + length :], len(image) - 20 - length)
[engine] = glob.glob(f"/sys/bus/pci/devices/{{address}}/fpga_region/region*/dfl-fme.*")
request = struct.pack("=4IQ", 24, 0, 0, len(payload), ctypes.addressof(payload))
with open(f"/dev/{{os.path.basename(engine)}}", "r+b", buffering=0) as device:
    try:
        # DFL_FPGA_FME_PORT_PR
        fcntl.ioctl(device, 0xB680, request)
    except OSError as error:
        sys.exit(f"fpgaconf: {{error.strerror}}")
"""


@pytest.fixture
def card(functions: Functions, undo: ExitStack) -> Card:
    """Return a card with the driver dfl-pci, which ``devices`` gives to the intel_fpga_driver."""
    [address] = functions.matching(DISPLAY)
    functions.write(address, "enable", 1)
    card = Card(address, undo, region=REGION, word=FIRST)
    functions.write(address, "enable", 0)
    functions.bind(address, "dfl-pci")
    FPGACONF.write_text(TOOL)
    FPGACONF.chmod(0o755)
    undo.callback(FPGACONF.unlink)
    return card


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """Return the configuration with which the intel_fpga_driver takes the display for a card."""
    return catalogued(tmp_path / "devices.d", DISPLAY, IntelFpgaDriver.name, "FPGA")


@pytest.fixture
def driver(tmp_path: Path, root: Root, devices: str) -> IntelFpgaDriver:
    return IntelFpgaDriver(LocalHost(privileged=root), written(tmp_path / "cyborg.conf", devices))


@pytest.fixture
def image(undo: ExitStack) -> Callable[..., str]:
    """Return a function that writes an image (GBS), and returns its path.

    ``word`` is the last one of the image, and says which function the card has with it.
    """

    def image(word: int, region: str = REGION) -> str:
        cluster = {"accelerator-type-uuid": str(UUID(dfl.function_of(word)))}
        description = {"interface-uuid": str(UUID(region)), "accelerator-clusters": [cluster]}
        metadata = json.dumps({"version": 1, "afu-image": description}).encode()
        # Only root can change it there.
        path = Path("/etc", f"{uuid4().hex}.gbs")
        length = struct.pack("<I", len(metadata))
        payload = bytes(range(256)) * 16 + struct.pack("<I", word)
        path.write_bytes(b"XeonFPGA\xb7GBSv001" + length + metadata + payload)
        undo.callback(path.unlink)
        return str(path)

    return image


def functions_of(driver: IntelFpgaDriver) -> list[str]:
    """Return the function ids of the only card, as its traits have them."""
    [device] = driver.discover(Scan(driver.host))
    [part] = device.deployables
    start = "CUSTOM_FPGA_FUNCTION_ID_INTEL_"
    return [trait.removeprefix(start).lower() for trait in part.traits if trait.startswith(start)]


def order(card: Card) -> ProgramTask:
    return ProgramTask("o", IntelFpgaDriver.name, card.address, "deployable", str(uuid4()))


def words(card: Card) -> list[str]:
    """Return the arguments of fpgaconf that name a card."""
    bus, device = card.address.split(":")[1:]
    number, _, function = device.partition(".")
    return ["--bus", bus, "--device", number, "--function", function]


def manager(card: Card) -> str:
    """Return the state of the only FPGA manager."""
    pattern = "fpga_region/region*/dfl-fme.*/dfl-fme-mgr.*/fpga_manager/fpga*/state"
    [file] = Path("/sys/bus/pci/devices", card.address).glob(pattern)
    return file.read_text().strip()


def bind_again(functions: Functions, host: LocalHost, card: Card, driver: str) -> None:
    """Unbind the driver that a card has, and bind one."""
    functions.write(card.address, "driver_override", driver)
    functions.write(card.address, "driver/unbind", card.address)
    host.write_text(f"{BUS}/drivers_probe", card.address)
    assert functions.link(card.address, "driver") == driver


@pytest.mark.proves("intel_fpga_driver", "discover", by="kernel")
def test_card_has_the_region_and_the_function_that_the_kernel_shows(
    card: Card, driver: IntelFpgaDriver
) -> None:
    [device] = driver.discover(Scan(driver.host))
    assert device.key == card.address
    [part] = device.deployables
    assert part.resource_class == "FPGA"
    assert part.programmable
    assert part.traits == (
        "CUSTOM_FPGA_INTEL",
        "CUSTOM_FPGA_PRODUCT_ID_1111",
        f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{dfl.function_of(FIRST).upper()}",
        f"CUSTOM_FPGA_REGION_INTEL_{REGION.upper()}",
    )
    assert [handle.key for handle in part.handles] == [card.address]


@pytest.mark.proves("intel_fpga_driver", "programming", by="kernel")
def test_card_has_the_function_of_the_image_that_was_loaded(
    card: Card, driver: IntelFpgaDriver, image: Callable[..., str], root: Root
) -> None:
    assert functions_of(driver) == [dfl.function_of(FIRST)]
    driver.program(order(card), image(SECOND))
    assert functions_of(driver) == [dfl.function_of(SECOND)]
    assert card.images == 1
    assert manager(card) == "operating"
    driver.program(order(card), image(FIRST))
    assert functions_of(driver) == [dfl.function_of(FIRST)]
    assert [type(action) for action in root.actions if action.changes] == 2 * [ProgramIntelFpga]


def test_image_for_another_region_is_refused_before_the_card_gets_it(
    card: Card, driver: IntelFpgaDriver, image: Callable[..., str], root: Root
) -> None:
    with pytest.raises(exception.DriverFailed, match=f"is for region {OTHER_REGION}"):
        driver.program(order(card), image(SECOND, OTHER_REGION))
    assert (card.images, root.actions) == (0, [])
    assert functions_of(driver) == [dfl.function_of(FIRST)]


@pytest.mark.proves("intel_fpga_driver", "programming", "health", by="kernel")
def test_card_that_refuses_an_image_is_drained_until_its_driver_is_bound_again(
    card: Card, driver: IntelFpgaDriver, image: Callable[..., str]
) -> None:
    """Until then the kernel does not enable the port, whatever is loaded. A reset binds it."""
    assert look(driver).health(card.address).condition is Condition.OK
    card.fail(dfl.CRC_ERROR)
    with pytest.raises(exception.HostError, match="Input/output error"):
        driver.program(order(card), image(SECOND))
    assert card.images == 1
    health = look(driver).health(card.address)
    assert health.condition is Condition.DRAIN
    assert health.evidence == (
        "the last image was not loaded: write complete error",
        f"the port of {card.address} is disabled",
    )
    with pytest.raises(exception.DriverFailed, match=f"port of {card.address} is disabled"):
        driver.program(order(card), image(SECOND))
    # The card gets the image, and all but the port looks well.
    subprocess.run([FPGACONF, *words(card), image(SECOND)], check=True)
    card.acknowledge_reset()
    assert (card.images, manager(card)) == (2, "operating")
    assert functions_of(driver) == []
    health = look(driver).health(card.address)
    assert health.evidence == (f"the port of {card.address} is disabled",)
    change(driver, "release", HandleTask("r", driver.name, card.address, "d", card.address, "a"))
    assert look(driver).health(card.address).condition is Condition.OK
    assert functions_of(driver) == [dfl.function_of(SECOND)]
    driver.program(order(card), image(FIRST))
    assert functions_of(driver) == [dfl.function_of(FIRST)]


@pytest.mark.proves("intel_fpga_driver", "health", by="kernel")
@pytest.mark.parametrize(
    ("register", "value", "condition", "evidence"),
    [
        (dfl.CATASTROPHIC_ERRORS, 1 << 11, Condition.DEAD, "catastrophic or fatal errors"),
        (dfl.ENGINE_ERRORS, 1, Condition.DRAIN, "errors of the management engine"),
        (dfl.NONFATAL_ERRORS, 1 << 6, Condition.DEGRADED, "errors that are not fatal"),
        (dfl.PORT_ERRORS, 1 << 40, Condition.DRAIN, "errors of the port of "),
        (dfl.PORT_STATUS, 1 << 8, Condition.DEGRADED, "AP1: it is throttled"),
        (dfl.PORT_STATUS, 6 << 8, Condition.DRAIN, "AP6: it was too hot"),
    ],
    ids=["catastrophic", "engine", "nonfatal", "port", "AP1", "AP6"],
)
def test_errors_and_power_states_of_the_card_are_its_health(
    card: Card,
    driver: IntelFpgaDriver,
    register: int,
    value: int,
    condition: Condition,
    evidence: str,
) -> None:
    card.registers[register] = value
    health = look(driver).health(card.address)
    assert health.condition is condition
    [text] = health.evidence
    assert evidence in text
    card.registers[register] = 0
    assert look(driver).health(card.address).condition is Condition.OK


@pytest.mark.proves("intel_fpga_driver", "bind", "programming", "cleaning", by="kernel")
def test_instance_gets_the_function_of_its_profile_and_the_next_one_a_blank_card(
    card: Card,
    functions: Functions,
    host: LocalHost,
    image: Callable[..., str],
    root: Root,
    tmp_path: Path,
    undo: ExitStack,
    devices: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As libvirt does, the test gives the card to VFIO while its instance has it."""
    # Only this test pays for these imports.
    from cyborg.tests.fixtures.glance import SimulatedGlance
    from cyborg.tests.kernel.deployment import Deployment

    wanted = str(UUID(dfl.function_of(SECOND)))
    glance = undo.enter_context(SimulatedGlance())
    glance.add(Path(image(SECOND)).read_bytes(), **{"accel:function_id": wanted})
    monkeypatch.setattr("socket.gethostname", lambda: Deployment.compute)
    file = tmp_path / "cyborg.conf"
    file.write_text(f"{devices}[intel_fpga]\nblank_image = {image(BLANK)}\n")
    machine = LocalHost(privileged=root)
    deployment = Deployment(
        IntelFpgaDriver.name, tmp_path, undo, machine=machine, files=[file], glance=glance
    )
    trait = f"trait:CUSTOM_FPGA_REGION_INTEL_{REGION.upper()}"
    group = {"resources:FPGA": "1", trait: "required"}
    provider, instance = deployment.provider(card.address), str(uuid4())
    deployment.wait_for_providers(group, {provider})
    state, info = deployment.bind({**group, "accel:function_id": wanted}, provider, instance)
    assert (state, info) == ("Bound", PciAddress.parse(card.address).info())
    assert card.function == dfl.function_of(SECOND)
    bind_again(functions, host, card, "vfio-pci")
    with vfio.held(functions.link(card.address, "iommu_group") or "", card.address):
        pass
    bind_again(functions, host, card, "dfl-pci")
    assert card.function == dfl.function_of(SECOND)
    deployment.delete(instance)
    _, steps = deployment.wait_for_cleaning(card.address)
    assert steps == ["function reset", "blank image"]
    assert card.function == dfl.function_of(BLANK)
    changes = [type(action) for action in root.actions if action.changes]
    assert changes == [ProgramIntelFpga, Unbind, Reset, Probe, ProgramIntelFpga]
    function = f"trait:CUSTOM_FPGA_FUNCTION_ID_INTEL_{card.function.upper()}"
    deployment.wait_for_providers({**group, function: "required"}, {provider})

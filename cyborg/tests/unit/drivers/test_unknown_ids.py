# SPDX-License-Identifier: Apache-2.0
"""Cards that a driver is for: those of the device catalogue are offered, others are listed."""

from pathlib import Path

import pytest

from cyborg.drivers.amd_gpu import AmdGpuDriver
from cyborg.drivers.card_driver import PhysicalCardDriver
from cyborg.drivers.habana import HabanaDriver
from cyborg.drivers.huawei_ascend import HuaweiAscendDriver
from cyborg.drivers.intel_fpga import IntelFpgaDriver
from cyborg.drivers.intel_gpu import IntelGpuDriver
from cyborg.drivers.intel_qat import IntelQatDriver
from cyborg.drivers.nic import IntelNicDriver, Mlx5Driver
from cyborg.drivers.pci_function import parse_name
from cyborg.drivers.scan import Scan
from cyborg.drivers.xilinx_fpga import XilinxFpgaDriver
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.tests.unit.drivers.configured import written

CARD, OTHER = "0000:41:00.0", "0000:42:00.0"

#: A card of the vendor and class of each driver that no entry names.
UNKNOWN = [
    (AmdGpuDriver, "1002:fff0:120000"),
    (AmdGpuDriver, "1002:fff0:030000"),
    (HabanaDriver, "1da3:fff0:120000"),
    (HuaweiAscendDriver, "19e5:fff0:120000"),
    (IntelFpgaDriver, "8086:fff0:120000"),
    (IntelGpuDriver, "8086:fff0:038000"),
    (IntelNicDriver, "8086:fff0:020000"),
    (IntelQatDriver, "8086:fff0:0b4000"),
    (Mlx5Driver, "15b3:fff0:020000"),
    (Mlx5Driver, "15b3:fff0:020700"),
]
#: The ids of current cards, by the driver that offers them.
CURRENT = [
    (AmdGpuDriver, "038000", "1002: 7460 7461 73a1 7360 7362"),
    (AmdGpuDriver, "120000", "1002: 738c 740f 74a1 74a2 74a5 74a9 75a0 75a3 75a8"),
    (HabanaDriver, "120000", "1da3: 0001 0030 1000 1010 1020 1060 1063"),
    (HuaweiAscendDriver, "120000", "19e5: d100 d105 d107 d500 d801 d802 d803"),
    (IntelFpgaDriver, "120000", "8086: bcbd bcc0 09c4 0b2b 0b30 bcce af00 0ddb"),
    (IntelFpgaDriver, "120000", "1c2c: 1000 1001 1002 1003"),
    (IntelGpuDriver, "038000", "8086: 56c0 56c1 56c2 0b69 0b6e 0bd0 0bd4 0bd5 0bdb"),
    (IntelGpuDriver, "030000", "8086: e20b e211 e212 e222 e223"),
    (IntelNicDriver, "020000", "8086: 1572 1581 1583 1584 1586 1589 15ff 158a 158b"),
    (IntelNicDriver, "020000", "8086: 1591 1592 1593 1599 159a 159b 579d 579e 12d2 12d3 1249 1266"),
    (IntelQatDriver, "0b4000", "8086: 0435 18a0 18ee 19e2 37c8 6f54 4940 4942 4944 4946 4948"),
    (Mlx5Driver, "020000", "15b3: 1013 1015 1017 1019 101b 101d 101f 1021 1023 1025 1027"),
]
#: Cards of the vendor and class that are something else, and that the catalogue knows.
ELSE = [
    (IntelQatDriver, "8086:225c:0b4000"),
    (IntelQatDriver, "8086:2710:0b4000"),
    (IntelFpgaDriver, "8086:7d1d:120000"),
    (HuaweiAscendDriver, "19e5:a250:120000"),
]


def driver_with(
    kind: type[PhysicalCardDriver], functions: dict[str, str], tmp_path: Path, entries: str = ""
) -> PhysicalCardDriver:
    """Return a driver on a host with these functions and these entries of the operator."""
    host = servers.bare()
    for address, ids in functions.items():
        servers.add_function(host, address, ids)
    directory = tmp_path / "devices.d"
    directory.mkdir(exist_ok=True)
    (directory / "mine.yaml").write_text(entries)
    text = f"[generic_driver]\ndevices_dir = {directory}\n"
    return kind(host, written(tmp_path / "cyborg.conf", text))


def offered(driver: PhysicalCardDriver) -> list[str]:
    return [device.key for device in look(driver).discover()]


@pytest.mark.parametrize(("kind", "ids"), UNKNOWN)
def test_card_without_an_entry_is_listed_with_the_remedy_until_the_operator_adds_one(
    tmp_path: Path, kind: type[PhysicalCardDriver], ids: str
) -> None:
    driver = driver_with(kind, {CARD: ids}, tmp_path)
    assert offered(driver) == []
    (item,) = look(driver).hardware()
    product = ids[:9]
    assert (item.key, item.offered) == (CARD, False)
    assert item.reason == (
        f"unknown id {product}: the device catalogue does not have it; to offer the card, add an "
        f"entry with pci_ids: [{product}] and driver: {kind.name} to [generic_driver] devices_dir"
    )
    # The privileged process must not touch what may be the display or the port of the host.
    assert not driver.functions(Scan(driver.host))
    remedy = f"- {{pci_ids: [{product}], driver: {kind.name}, model: New card}}\n"
    driver = driver_with(kind, {CARD: ids}, tmp_path, remedy)
    assert offered(driver) == [CARD]
    assert [item.model for item in look(driver).hardware()] == ["New card"]
    assert driver.functions(Scan(driver.host)) == {parse_name(CARD)}


@pytest.mark.parametrize(("kind", "class_code", "ids"), CURRENT)
def test_current_cards_are_offered_by_their_driver(
    tmp_path: Path, kind: type[PhysicalCardDriver], class_code: str, ids: str
) -> None:
    vendor, products = ids.split(": ")
    functions = {
        f"0000:{bus:02x}:00.0": f"{vendor}:{product}:{class_code}"
        for bus, product in enumerate(products.split(), start=0x10)
    }
    driver = driver_with(kind, functions, tmp_path)
    assert offered(driver) == list(functions)
    models = {item.model for item in look(driver).hardware()}
    assert not models & set(products.split())


@pytest.mark.parametrize(("kind", "ids"), ELSE)
def test_card_that_the_catalogue_knows_as_something_else_is_not_listed(
    tmp_path: Path, kind: type[PhysicalCardDriver], ids: str
) -> None:
    driver = driver_with(kind, {CARD: ids}, tmp_path)
    assert (offered(driver), look(driver).hardware()) == ([], [])


def test_entry_that_names_no_driver_leaves_the_card_to_its_driver(tmp_path: Path) -> None:
    entry = "- {pci_ids: [1002:74a1], model: MI300X of rack 7}\n"
    driver = driver_with(AmdGpuDriver, {CARD: "1002:74a1:120000"}, tmp_path, entry)
    assert [(device.key, device.model) for device in look(driver).discover()] == [
        (CARD, "MI300X of rack 7")
    ]


def test_operator_takes_a_card_from_its_driver_with_a_reason(tmp_path: Path) -> None:
    entry = "- {pci_ids: [1002:74a1], driver: amd_gpu_driver, refused: it is for tests}\n"
    functions = {CARD: "1002:74a1:120000", OTHER: "1002:74a5:120000"}
    driver = driver_with(AmdGpuDriver, functions, tmp_path, entry)
    assert offered(driver) == [OTHER]
    reasons = {item.key: item.reason for item in look(driver).hardware()}
    assert reasons == {CARD: "it is for tests", OTHER: None}


@pytest.mark.parametrize(
    ("kind", "ids", "reason"),
    [
        (XilinxFpgaDriver, "10ee:50b4:120000", "XRT does not drive it"),
        (XilinxFpgaDriver, "10ee:d004:120000", "it has its golden image"),
        (Mlx5Driver, "15b3:a2df:020000", "it belongs to a DPU"),
    ],
)
def test_card_that_its_driver_must_not_offer_is_listed_with_the_reason(
    tmp_path: Path, kind: type[PhysicalCardDriver], ids: str, reason: str
) -> None:
    driver = driver_with(kind, {CARD: ids}, tmp_path)
    assert offered(driver) == []
    (item,) = look(driver).hardware()
    assert reason in (item.reason or "")


def test_traits_of_the_catalogue_are_traits_of_the_card(tmp_path: Path) -> None:
    entry = "- {pci_ids: [1002:74a1], driver: amd_gpu_driver, traits: [CUSTOM_RACK_7]}\n"
    driver = driver_with(AmdGpuDriver, {CARD: "1002:74a1:120000"}, tmp_path, entry)
    (device,) = look(driver).discover()
    assert device.deployables[0].traits == ("OWNER_CYBORG", "CUSTOM_AMD_74A1", "CUSTOM_RACK_7")

# SPDX-License-Identifier: Apache-2.0
"""The ``generic_driver`` divides a real network card, through the agent's actions."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import CardLayouts
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import IGB, Functions
from cyborg.tests.kernel.test_reset import Root
from cyborg.tests.unit.drivers.configured import written

CONFIGURATION = """\
[generic_driver]
backends = ports
[generic_driver:ports]
pci_ids = 8086:10c9, 8086:10ca
resource_class = CUSTOM_PORT
layout = vfs=2
"""


@pytest.fixture
def card(functions: Functions, undo: ExitStack) -> str:
    """Return the address of a card whose virtual functions get no driver of the host."""
    [card] = functions.matching(IGB)
    undo.callback(functions.write, card, "sriov_drivers_autoprobe", 1)
    undo.callback(functions.write, card, "sriov_numvfs", 0)
    functions.write(card, "sriov_drivers_autoprobe", 0)
    return card


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def driver(root: Root, tmp_path: Path) -> GenericDriver:
    conf = written(tmp_path / "cyborg.conf", CONFIGURATION)
    return GenericDriver(LocalHost(privileged=root), conf)


def offered(driver: GenericDriver) -> list[str]:
    return [device.key for device in driver.discover(Scan(driver.host))]


def layout(driver: GenericDriver) -> CardLayouts:
    [layouts] = driver.layouts(Scan(driver.host))
    return layouts


def refusal(driver: GenericDriver, card: str, name: str) -> str:
    with pytest.raises(exception.DriverFailed) as raised:
        driver.partition(card, name)
    return str(raised.value)


@pytest.mark.proves("generic_driver", "discover", "partition", by="kernel")
def test_card_is_divided_once_and_made_whole_again(
    driver: GenericDriver, functions: Functions, card: str, root: Root
) -> None:
    assert offered(driver) == []
    [row] = driver.hardware(Scan(driver.host))
    assert row.reason == "it is being divided into 2 virtual functions"
    assert (layout(driver).current, layout(driver).desired) == ("vfs=0", "vfs=2")
    assert layout(driver).refusal is None
    driver.partition(card, "vfs=2")
    virtual = [functions.link(card, f"virtfn{index}") for index in range(2)]
    assert offered(driver) == virtual
    assert layout(driver).current == "vfs=2"
    driver.partition(card, "vfs=2")
    assert [str(action) for action in root.actions if "SetVfs" in str(action)] == [
        f"SetVfs(function={card}, count=2)"
    ]
    # The kernel goes from one number to another through 0 only.
    driver.partition(card, "vfs=1")
    assert functions.read(card, "sriov_numvfs") == "1"
    driver.partition(card, "vfs=0")
    assert functions.read(card, "sriov_numvfs") == "0"


def test_card_with_an_interface_in_use_is_not_divided(
    driver: GenericDriver, functions: Functions, card: str, command: Callable[..., str]
) -> None:
    interface = functions.interface(card)
    command("ip", "link", "set", interface, "up")
    command("ip", "address", "add", "192.0.2.1/24", "dev", interface)
    try:
        # Its address, or the default route of IPv6, which the guest's network announces later.
        text = f"its interface {interface} "
        assert text in refusal(driver, card, "vfs=2")
        assert text in str(layout(driver).refusal)
        assert functions.read(card, "sriov_numvfs") == "0"
    finally:
        command("ip", "address", "flush", "dev", interface)
        command("ip", "link", "set", interface, "down")


def test_card_with_a_virtual_function_in_a_guest_keeps_its_layout(
    driver: GenericDriver, functions: Functions, card: str
) -> None:
    driver.partition(card, "vfs=2")
    virtual = functions.link(card, "virtfn1") or ""
    functions.bind(virtual, "vfio-pci")
    group = functions.link(virtual, "iommu_group") or ""
    with vfio.held(group, virtual):
        for name in ("vfs=1", "vfs=0"):
            text = refusal(driver, card, name)
            assert f"its virtual function {virtual}: held through VFIO" in text
        assert functions.read(card, "sriov_numvfs") == "2"
    driver.partition(card, "vfs=0")
    assert functions.read(card, "sriov_numvfs") == "0"


def test_card_without_its_driver_or_with_fewer_functions_is_not_divided(
    driver: GenericDriver, functions: Functions, card: str
) -> None:
    assert "it can have 7 virtual functions at most" in refusal(driver, card, "vfs=8")
    functions.bind(card, None)
    assert "no driver of the host has it" in refusal(driver, card, "vfs=2")
    assert functions.read(card, "sriov_numvfs") == "0"

# SPDX-License-Identifier: Apache-2.0
"""Cards of the generic_driver with option layout: the contract, and what keeps them as they are."""

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from cyborg import exception
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.privileged.disk_actions import StartVirtualControllers
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachType, Hardware
from cyborg.model.pci import PciAddress
from cyborg.testing import situations
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import guest
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_generic import made

#: A controller that can have four virtual functions, one that can have none, and the functions.
CARD, PLAIN = "0000:01:00.0", "0000:02:00.0"
FIRST, SECOND = "0000:01:00.1", "0000:01:00.2"
TEXT = """\
[generic_driver]
backends = disks
[generic_driver:disks]
addresses = {address}
resource_class = CUSTOM_DISK
layout = {layout}
"""
#: The card and its functions belong to two sections, of which only the first has a layout.
TWO = """\
[generic_driver]
backends = cards, functions
[generic_driver:cards]
devices = 0000:01:00.0
resource_class = CUSTOM_CARD
layout = vfs=2
[generic_driver:functions]
devices = 0000:01:00.1, 0000:01:00.2
resource_class = CUSTOM_DISK
"""


def machine(vfs: int = 0) -> FakeHost:
    """Return a machine whose card has this number of virtual functions."""
    host = guest()
    if vfs:
        set_vfs(host, vfs)
    host.writes.clear()
    return host


def set_vfs(host: FakeHost, number: int) -> None:
    host.write_text(f"/sys/bus/pci/devices/{CARD}/sriov_numvfs", str(number))


class LateScan(Scan):
    """A scan in which the card gets ``vfs`` virtual functions before their number is read."""

    def __init__(self, host: FakeHost, vfs: int) -> None:
        super().__init__(host)
        self._change = lambda: set_vfs(host, vfs)

    def vfs(self, address: PciAddress) -> tuple[int, int]:
        """See Scan; everything else was read before."""
        self._change()
        return super().vfs(address)


class TestLayout(DriverContract):
    """A card that has its layout, and whose section also offers its functions."""

    selects_by_address = True

    @pytest.fixture(autouse=True)
    def _configured(self, tmp_path: Path) -> None:
        self.conf = written(tmp_path / "cyborg.conf", TEXT.format(address=CARD, layout="vfs=2"))

    def make_host(self) -> FakeHost:
        """Return a host whose operator has taken the controllers of the functions online."""
        host = machine(vfs=2)
        host.privileged.run(StartVirtualControllers(PciAddress.parse(CARD), "nvme0", 2))
        host.write_text("/sys/bus/pci/drivers_probe", FIRST)
        host.write_text("/sys/bus/pci/drivers_probe", SECOND)
        host.writes.clear()
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return GenericDriver(host, self.conf)

    def test_cards_are_divided_and_made_whole_again(self) -> None:
        """The operator takes controllers online, and the driver does not do so again."""
        self.make_host = lambda: machine(vfs=2)  # type: ignore[method-assign]
        super().test_cards_are_divided_and_made_whole_again()


#: Makes the driver of a host with a configuration.
Make = Callable[..., GenericDriver]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(
        host: FakeHost, layout: str = "vfs=2", *, address: str = CARD, text: str = TEXT
    ) -> GenericDriver:
        conf = written(tmp_path / "cyborg.conf", text.format(address=address, layout=layout))
        return GenericDriver(host, conf)

    return make


def offered(driver: Driver, scan: Scan | None = None) -> list[str]:
    return [device.key for device in driver.discover(scan or Scan(driver.host))]


def rows(driver: Driver, scan: Scan | None = None) -> Mapping[str, Hardware]:
    return {entry.key: entry for entry in driver.hardware(scan or Scan(driver.host))}


def reason(driver: Driver, scan: Scan | None = None, key: str = CARD) -> str:
    return rows(driver, scan)[key].reason or ""


def layouts(driver: Driver, scan: Scan | None = None) -> CardLayouts:
    [card] = driver.layouts(scan or Scan(driver.host))
    return card


def refused(driver: Driver, layout: str, key: str = CARD) -> str:
    """Return why a card cannot be divided; assert that nothing has changed."""
    host = cast(FakeHost, driver.host)
    before = host.tree()
    with pytest.raises(exception.DriverFailed) as raised:
        driver.partition(key, layout)
    assert not situations.differences(before, host.tree())
    return str(raised.value)


@pytest.mark.proves("generic_driver", "partition", by="simulated")
def test_card_is_withheld_until_it_has_its_layout_and_its_functions_are_offered_then(
    make: Make,
) -> None:
    host = machine()
    driver = make(host)
    assert offered(driver) == []
    assert reason(driver) == "it is being divided into 2 virtual functions"
    card = layouts(driver)
    assert (card.card, card.current, card.desired) == (CARD, "vfs=0", "vfs=2")
    assert card.layouts == ("vfs=0", "vfs=1", "vfs=2", "vfs=3", "vfs=4")
    assert card.deployables == {f"compute-1_{CARD}"}
    assert card.refusal is None
    steps: list[tuple[float, str]] = []
    driver.partition(CARD, "vfs=2", progress=lambda *step: steps.append(step))
    assert steps == [(0.5, "creating 2 virtual functions")]
    assert offered(driver) == [FIRST, SECOND]
    assert "it has 2 virtual functions" in reason(driver)
    assert rows(driver)[CARD].capability["layout"] == {
        "current": "vfs=2",
        "desired": "vfs=2",
        "largest": "vfs=4",
    }
    card = layouts(driver)
    assert (card.current, card.refusal) == ("vfs=2", None)
    names = {f"compute-1_{key}" for key in (CARD, FIRST, SECOND)}
    assert card.deployables == names


def test_card_that_gets_or_has_its_layout_is_no_warning(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    host = machine()
    driver = make(host)
    offered(driver)
    driver.partition(CARD, "vfs=2")
    assert offered(driver) == [FIRST, SECOND]
    assert caplog.messages == []
    whole = make(machine(), "vfs=0")
    situations.hold(cast(FakeHost, whole.host), CARD)
    assert offered(whole) == []
    assert "is not offered: held through VFIO" in caplog.text


def test_a_created_function_is_withheld_while_its_card_gets_another_layout(make: Make) -> None:
    """The agent may remove the function at any time, unless the conductor keeps it."""
    driver = make(machine(vfs=2), "vfs=4", address="0000:01:00.*")
    driver.operator_created = made("disks", FIRST)
    assert offered(driver) == []
    assert reason(driver, key=FIRST) == f"its card {CARD} does not have its layout"
    kept = Scan(driver.host, managed_deployables={f"compute-1_{FIRST}"})
    assert offered(driver, kept) == [FIRST]
    driver.partition(CARD, "vfs=4")
    assert FIRST in offered(driver)


def test_another_number_of_functions_is_reached_through_none(make: Make) -> None:
    host = machine(vfs=2)
    driver = make(host, "vfs=4")
    file = f"{host.realpath(f'/sys/bus/pci/devices/{CARD}')}/sriov_numvfs"
    driver.partition(CARD, "vfs=4")
    assert host.writes == [(file, "0"), (file, "4")]
    driver.partition(CARD, "vfs=4")
    assert len(host.writes) == 2


def test_division_that_stopped_in_the_middle_is_completed(make: Make) -> None:
    host = machine(vfs=4)
    driver = make(host)
    kernel = cast(SimulatedKernel, host.kernel)

    class Refuses:
        check_read = kernel.check_read
        read_again = kernel.read_again

        def write(self, path: str, text: str) -> bool:
            if path.endswith("sriov_numvfs") and text == "2":
                raise OSError(errno.EIO, "Input/output error")
            return kernel.write(path, text)

    host.kernel = Refuses()
    with pytest.raises(exception.HostError, match="Input/output error"):
        driver.partition(CARD, "vfs=2")
    assert layouts(driver).current == "vfs=0"
    assert reason(driver).startswith("it could not be divided into 2 virtual functions: ")
    assert "Input/output error" in reason(driver)
    host.kernel = kernel
    driver.partition(CARD, "vfs=2")
    assert offered(driver) == [FIRST, SECOND]
    set_vfs(host, 0)
    assert reason(driver) == "it is being divided into 2 virtual functions"


@pytest.mark.parametrize(
    ("layout", "address", "text"),
    [
        ("vfs=5", CARD, "it can have 4 virtual functions at most; lower option layout"),
        ("vfs=1", PLAIN, "the host shows no SR-IOV; enable it in the firmware, or remove option"),
    ],
)
def test_layout_that_the_card_cannot_have_is_a_reason(
    make: Make, layout: str, address: str, text: str
) -> None:
    driver = make(machine(), layout, address=address)
    assert offered(driver) == []
    assert text in reason(driver, key=address)
    assert text in str(layouts(driver).refusal)
    assert text in refused(driver, layout, address)


def test_card_without_a_driver_is_not_divided(make: Make) -> None:
    host = machine()
    host.write_text(f"/sys/bus/pci/devices/{CARD}/driver/unbind", CARD)
    driver = make(host)
    assert "no driver of the host has it" in reason(driver)
    assert "no driver of the host has it" in refused(driver, "vfs=2")


def test_number_that_cannot_be_read_is_a_reason(make: Make) -> None:
    host = machine()
    driver = make(host)
    host.add_file(f"{host.realpath(f'/sys/bus/pci/devices/{CARD}')}/sriov_numvfs", "two\n")
    card = layouts(driver)
    assert (card.current, card.layouts) == (None, ("vfs=0",))
    assert "sriov_numvfs reads 'two'" in str(card.refusal)
    assert "sriov_numvfs reads 'two'" in refused(driver, "vfs=2")


def test_card_whose_functions_are_not_all_known_keeps_its_layout(make: Make) -> None:
    host = machine(vfs=2)
    host.remove(f"/sys/bus/pci/devices/{SECOND}")
    assert "1 of its 2 virtual functions can be read" in refused(make(host, "vfs=0"), "vfs=0")


def test_card_that_is_divided_during_a_scan_is_not_offered_whole(make: Make) -> None:
    host = machine()
    driver = make(host)
    scan = LateScan(host, vfs=2)
    assert offered(driver, scan) == []
    assert "0 of its 2 virtual functions can be read" in reason(driver, scan)
    assert offered(driver) == [FIRST, SECOND]


def test_functions_that_go_during_a_scan_are_not_offered(make: Make) -> None:
    host = machine(vfs=2)
    driver = make(host, layout="vfs=0")
    assert offered(driver, LateScan(host, vfs=0)) == []
    assert offered(driver) == [CARD]


@pytest.mark.parametrize("use", situations.uses(), ids=lambda use: use.reason)
def test_card_in_use_is_not_divided(make: Make, use: situations.Situation) -> None:
    host = machine()
    driver = make(host)
    use.arrange(host, CARD)
    scan = Scan(host, claims=use.claims(CARD))
    if "IOMMU group" in use.reason:
        # It matters when a guest gets the card or its functions.
        assert layouts(driver, scan).refusal is None
        return
    assert layouts(driver, scan).refusal
    assert reason(driver, scan).startswith("it cannot be divided into 2 virtual functions: ")
    if not use.claimed:
        refused(driver, "vfs=2")


@pytest.mark.parametrize("layout", ["vfs=0", "vfs=3"])
def test_card_keeps_the_functions_that_guests_have(make: Make, layout: str) -> None:
    host = machine(vfs=2)
    driver = make(host, layout)
    situations.hold(host, SECOND)
    text = f"its virtual function {SECOND}: held through VFIO by qemu-system-x86"
    assert text in refused(driver, layout)
    kept = frozenset({f"compute-1_{SECOND}"})
    scan = Scan(host, managed_deployables=kept)
    assert text in reason(driver, scan)
    assert offered(driver, scan) == [SECOND]


def test_functions_that_the_conductor_keeps_stay_and_the_others_are_withheld(make: Make) -> None:
    """They would be offered just before they are removed."""
    host = machine(vfs=2)
    driver = make(host, "vfs=4")
    assert offered(driver) == []
    assert reason(driver, key=FIRST) == f"its card {CARD} does not have its layout"
    scan = Scan(host, managed_deployables=frozenset({f"compute-1_{FIRST}"}))
    assert offered(driver, scan) == [FIRST]
    assert reason(driver, scan) == (
        "it is divided into 4 virtual functions as soon as the conductor keeps no device of it; "
        f"now it keeps compute-1_{FIRST}"
    )


def test_functions_of_another_section_wait_for_the_layout_of_their_card(make: Make) -> None:
    host = machine(vfs=1)
    driver = make(host, text=TWO)
    assert offered(driver) == []
    driver.partition(CARD, "vfs=2")
    assert offered(driver) == [FIRST, SECOND]
    [device, _] = driver.discover(Scan(host))
    assert device.deployables[0].resource_class == "CUSTOM_DISK"


def test_layout_of_a_section_without_the_card_is_a_reason(make: Make) -> None:
    host = machine(vfs=2)
    driver = make(host, address="*:*:*.1")
    assert offered(driver) == []
    assert f"no section with this option selects its card {CARD}" in reason(driver, key=FIRST)
    assert list(driver.layouts(Scan(host))) == []
    assert "the configuration requests no layout of" in refused(driver, "vfs=0", FIRST)


def test_whole_card_is_offered_and_functions_that_another_program_created_go(make: Make) -> None:
    host = machine(vfs=2)
    driver = make(host, "vfs=0")
    assert offered(driver) == []
    assert reason(driver) == "it is being made whole, without virtual functions"
    driver.partition(CARD, "vfs=0")
    assert offered(driver) == [CARD]
    assert layouts(driver).current == "vfs=0"
    plain = make(host, "vfs=0", address=PLAIN)
    assert offered(plain) == [PLAIN]
    assert layouts(plain).layouts == ("vfs=0",)


def test_card_of_a_section_without_layout_is_left_alone(make: Make) -> None:
    host = machine()
    driver = make(host, text=TEXT.replace("layout = {layout}\n", ""))
    assert list(driver.layouts(Scan(host))) == []
    assert offered(driver) == [CARD]
    assert "the configuration requests no layout of" in refused(driver, "vfs=2")


def test_created_accelerator_is_a_whole_card(make: Make) -> None:
    host = machine()
    driver = make(host)
    driver.operator_created = made("disks", CARD, kind=AttachType.PCI)
    assert offered(driver) == [CARD]
    assert list(driver.layouts(Scan(host))) == []


@pytest.mark.parametrize("layout", ["whole", "vfs=256", "vfs=2 "])
def test_unknown_layout_is_refused(make: Make, layout: str) -> None:
    assert "it is not vfs=N with N from 0 to 255" in refused(make(machine()), layout)


def test_kernel_driver_without_virtual_functions_is_named(make: Make) -> None:
    host = machine()
    host.write_text(f"/sys/bus/pci/devices/{CARD}/driver_override", "vfio-pci")
    host.write_text(f"/sys/bus/pci/devices/{CARD}/driver/unbind", CARD)
    host.write_text("/sys/bus/pci/drivers_probe", CARD)
    driver = make(host)
    with pytest.raises(exception.CyborgError, match="vfio-pci"):
        driver.partition(CARD, "vfs=2")
    assert "vfio-pci" in reason(driver)


def test_look_reads_the_layouts(make: Make) -> None:
    assert list(look(make(machine())).layouts()) == [layouts(make(machine()))]

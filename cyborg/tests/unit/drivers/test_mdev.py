# SPDX-License-Identifier: Apache-2.0
"""The mdev_driver on a simulated kernel whose functions make mediated devices."""

from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver, ResetLevel
from cyborg.drivers.mdev import MdevDriver
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import HostClean
from cyborg.model.device import AttachType, Device, DeviceType, Hardware
from cyborg.model.work import HandleTask, Unit
from cyborg.testing import servers
from cyborg.testing.driver_checks import change, look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver, MdevProfile, MdevType
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

PARENT, OTHER = "0000:3b:00.0", "0000:86:00.0"
SMALL, LARGE = "i915-GVTg_V5_4", "i915-GVTg_V5_2"
NAME = f"compute-1_{PARENT}"
UUID = "0e6a3b6c-95f2-4d6b-8f3c-1c2d3e4f5a6b"
STRANGER = "7b1d9f6e-0c55-4f0e-9d0a-2f4c6b8a1e3d"
BUS = "/sys/bus/mdev/devices"
PROCESS = 4321


def conf_of(
    addresses: str = f"{PARENT}, {OTHER}", *, driver: str = "create = prepare", section: str = ""
) -> str:
    return (
        f"[mdev_driver]\nenabled_types = {SMALL}\n{driver}\n"
        f"[mdev_{SMALL}]\ndevice_addresses = {addresses}\n{section}\n"
    )


def host_with_parents(*, homogeneous: bool = False) -> FakeHost:
    host = servers.bare()
    for address in (PARENT, OTHER):
        servers.add_function(host, address, "8086:5a85:038000", driver="i915", node=0)
        # The host driver registers the types when it is bound.
        host.remove(f"{servers.place(address)}/driver")
    types = {"GVTg_V5_4": MdevType(1, "GVTg_V5_4"), "GVTg_V5_2": MdevType(2, "GVTg_V5_2")}
    profile = MdevProfile(4, types, homogeneous=homogeneous)
    SimulatedKernel(host, [HostDriver("i915", ids=frozenset({"8086:5a85"}), mdev=profile)]).boot()
    # The directories that the first mediated device brings stay after it.
    for path in ("/sys/class/vfio", "/sys/class/vfio-dev", "/sys/devices/virtual/vfio"):
        host.add_dir(path)
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str | None = None) -> MdevDriver:
    return MdevDriver(host, written(tmp_path / "cyborg.conf", conf_of() if text is None else text))


def make(host: FakeHost, uuid: str, kind: str = SMALL, address: str = PARENT) -> None:
    """Create a mediated device as Nova, libvirt or an operator does."""
    path = f"/sys/bus/pci/devices/{address}/mdev_supported_types/{kind}/create"
    host.write_text(path, uuid)


def hold(host: FakeHost, uuid: str) -> None:
    """Let a process have a mediated device open."""
    group = host.realpath(f"{BUS}/{uuid}/iommu_group").rpartition("/")[2]
    servers.open_vfio(host, group, PROCESS, "qemu-system-x86")


def task(number: int = 0, *, uuid: str = UUID, kind: str = SMALL) -> HandleTask:
    key = f"{PARENT}/{kind}_{number}"
    return HandleTask("r", MdevDriver.name, PARENT, NAME, key, uuid)


def found(driver: Driver, *, managed: bool = False) -> dict[str, Device]:
    kept = frozenset({NAME} if managed else ())
    devices = driver.discover(Scan(driver.host, managed_deployables=kept))
    return {device.key: device for device in devices}


def numbers(driver: Driver, *, managed: bool = False) -> list[int]:
    """Return the numbers of the units of the parent; none if it is not offered."""
    device = found(driver, managed=managed).get(PARENT)
    handles = device.deployables[0].handles if device is not None else ()
    return [int(handle.key.rpartition("_")[2]) for handle in handles]


def row(driver: Driver, key: str = PARENT) -> Hardware:
    [item] = [item for item in look(driver).hardware() if item.key == key]
    return item


@pytest.mark.proves("mdev_driver", "discover", by="simulated")
class TestContract(DriverContract):
    """The driver contract, with parents by address."""

    selects_by_address = True

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return host_with_parents()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


class TestContractOfAnyParent(TestContract):
    """The driver contract, with all parents that have the type."""

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path, conf_of("*"))


def test_device_is_as_nova_attaches_it(tmp_path: Path) -> None:
    section = "resource_class = VGPU\ntraits = CUSTOM_FAST"
    driver = driver_on(host_with_parents(), tmp_path, conf_of(section=section))
    device = found(driver)[PARENT]
    assert (device.type, device.vendor) == (DeviceType.MDEV, "8086")
    [deployable] = device.deployables
    assert (deployable.name, deployable.resource_class) == (NAME, "VGPU")
    assert deployable.traits == ("OWNER_CYBORG", "CUSTOM_MDEV_I915_GVTG_V5_4", "CUSTOM_FAST")
    assert deployable.prepare
    assert deployable.clean is HostClean.DEFAULT
    assert [handle.key for handle in deployable.handles] == [
        f"{PARENT}/{SMALL}_{number}" for number in range(4)
    ]
    assert deployable.handles[1].type is AttachType.MDEV
    assert deployable.handles[1].info == {
        "domain": "0000",
        "bus": "3b",
        "device": "00",
        "function": "0",
        "asked_type": SMALL,
        "vgpu_mark": f"{SMALL}_1",
    }


def test_resource_class_is_custom_by_default(tmp_path: Path) -> None:
    [deployable] = found(driver_on(host_with_parents(), tmp_path))[PARENT].deployables
    assert deployable.resource_class == "CUSTOM_MDEV"


def test_parent_without_a_section_is_listed_with_a_reason(tmp_path: Path) -> None:
    driver = driver_on(host_with_parents(), tmp_path, conf_of(PARENT))
    assert list(found(driver)) == [PARENT]
    assert row(driver, OTHER).reason == "no section of [mdev_driver] enabled_types names it"


def test_star_selects_the_parents_that_no_section_names(tmp_path: Path) -> None:
    text = (
        f"[mdev_driver]\nenabled_types = {LARGE}, {SMALL}\n"
        f"[mdev_{LARGE}]\ndevice_addresses = {PARENT}\n"
        f"[mdev_{SMALL}]\ndevice_addresses = *\n"
    )
    devices = found(driver_on(host_with_parents(), tmp_path, text))
    types = {
        key: {handle.info["asked_type"] for handle in device.deployables[0].handles}
        for key, device in devices.items()
    }
    assert types == {PARENT: {LARGE}, OTHER: {SMALL}}


def test_star_of_a_type_that_a_parent_does_not_have_is_no_match(tmp_path: Path) -> None:
    text = (
        f"[mdev_driver]\nenabled_types = nvidia-222, {SMALL}\n"
        f"[mdev_nvidia-222]\ndevice_addresses = *\n[mdev_{SMALL}]\ndevice_addresses = *\n"
    )
    assert list(found(driver_on(host_with_parents(), tmp_path, text))) == [PARENT, OTHER]


def test_parent_that_is_no_pci_function_is_listed_with_a_reason(tmp_path: Path) -> None:
    host = host_with_parents()
    host.add_dir("/sys/devices/virtual/mtty/mtty")
    host.add_link("/sys/class/mdev_bus/mtty", "/sys/devices/virtual/mtty/mtty")
    driver = driver_on(host, tmp_path, conf_of("*"))
    assert list(found(driver)) == [PARENT, OTHER]
    assert "it is no PCI function" in str(row(driver, "mtty").reason)


@pytest.mark.proves("mdev_driver", "bind", "cleaning", by="simulated")
def test_agent_creates_the_mediated_device_and_removes_it(tmp_path: Path) -> None:
    host = host_with_parents()
    driver = driver_on(host, tmp_path)
    driver.prepare(task())
    driver.prepare(task())
    assert host.list_dir(BUS) == [UUID]
    assert host.readlink(f"{BUS}/{UUID}/mdev_type").rpartition("/")[2] == SMALL
    assert driver.prepared(Scan(host)) == [Unit(NAME, UUID)]
    [step] = driver.clean_steps(task())
    assert step.name == "removal of the mediated device"
    change(driver, "release", task())
    assert host.list_dir(BUS) == []
    assert driver.prepared(Scan(host)) == []


def test_nova_creates_the_mediated_device_and_the_agent_removes_it(tmp_path: Path) -> None:
    host = host_with_parents()
    # The default: libvirt may not list a device yet that another program has created.
    driver = driver_on(host, tmp_path, conf_of(driver=""))
    driver.prepare(task())
    assert host.list_dir(BUS) == []
    make(host, UUID)
    driver.prepare(task())
    assert numbers(driver, managed=True) == [0, 1, 2, 3]
    change(driver, "release", task())
    assert host.list_dir(BUS) == []


def test_mediated_device_in_a_guest_is_not_removed(tmp_path: Path) -> None:
    host = host_with_parents()
    driver = driver_on(host, tmp_path)
    driver.prepare(task())
    hold(host, UUID)
    with pytest.raises(exception.DriverFailed, match="is held through VFIO by qemu-system-x86"):
        driver.release(task())
    assert host.list_dir(BUS) == [UUID]
    host.remove(f"/proc/{PROCESS}")
    driver.release(task())
    assert host.list_dir(BUS) == []


def test_instances_of_another_type_take_units(tmp_path: Path) -> None:
    host = host_with_parents()
    make(host, STRANGER, LARGE)
    driver = driver_on(host, tmp_path)
    assert numbers(driver) == [0, 1]
    assert row(driver).num == 2
    assert row(driver, f"{PARENT}/{STRANGER}").reason == (
        f"it has the type {LARGE}, and {PARENT} is split into {SMALL}; no attach handle has its "
        f"UUID; remove it with mdevctl stop -u {STRANGER} to offer its capacity"
    )


def test_parent_without_capacity_is_refused(tmp_path: Path) -> None:
    host = host_with_parents(homogeneous=True)
    make(host, STRANGER, LARGE)
    driver = driver_on(host, tmp_path)
    assert numbers(driver) == []
    assert row(driver).reason == (
        f"it can make no mediated device of type {SMALL} now; it has 1 of type {LARGE}"
    )
    with pytest.raises(exception.DriverFailed, match="can make no mediated device"):
        driver.prepare(task())
    assert host.list_dir(BUS) == [STRANGER]


def test_left_over_is_not_offered_before_and_after_the_parent_is_kept(tmp_path: Path) -> None:
    host = host_with_parents()
    make(host, STRANGER)
    driver = driver_on(host, tmp_path)
    assert numbers(driver) == [0, 1, 2]
    # The agent has asked for the handles that the conductor made of this report.
    driver.attach_handles = {UUID: Unit(NAME, f"{PARENT}/{SMALL}_0")}
    assert numbers(driver, managed=True) == [0, 1, 2]
    assert "no attach handle has its UUID" in str(row(driver, f"{PARENT}/{STRANGER}").reason)


def test_unit_of_a_former_type_is_no_left_over(tmp_path: Path) -> None:
    host = host_with_parents()
    make(host, UUID, LARGE)
    driver = driver_on(host, tmp_path)
    driver.attach_handles = {UUID: Unit(NAME, f"{PARENT}/{LARGE}_0")}
    assert numbers(driver, managed=True) == [0, 1]
    scan = Scan(host, managed_deployables=frozenset({NAME}))
    [item] = [item for item in driver.hardware(scan) if item.key == f"{PARENT}/{UUID}"]
    assert item.reason == f"it has the type {LARGE}, and {PARENT} is split into {SMALL}"


def test_unit_in_a_guest_stays_while_a_left_over_takes_a_free_one(tmp_path: Path) -> None:
    host = host_with_parents()
    driver = driver_on(host, tmp_path)
    driver.prepare(task(3))
    make(host, STRANGER)
    driver.attach_handles = {UUID: Unit(NAME, f"{PARENT}/{SMALL}_3")}
    assert numbers(driver, managed=True) == [0, 1, 3]


def test_unit_prepared_since_the_agent_asked_is_no_left_over(tmp_path: Path) -> None:
    driver = driver_on(host_with_parents(), tmp_path)
    driver.attach_handles = {}
    driver.prepare(task(1))
    assert numbers(driver, managed=True) == [0, 1, 2, 3]


def test_units_in_guests_count_before_the_agent_knows_the_handles(tmp_path: Path) -> None:
    host = host_with_parents()
    make(host, UUID)
    assert numbers(driver_on(host, tmp_path), managed=True) == [0, 1, 2, 3]


def test_uuid_on_another_parent_is_an_error(tmp_path: Path) -> None:
    host = host_with_parents()
    make(host, UUID, address=OTHER)
    driver = driver_on(host, tmp_path)
    for verb in (driver.prepare, driver.release):
        with pytest.raises(exception.DriverFailed, match="exists elsewhere"):
            verb(task())
    assert host.list_dir(BUS) == [UUID]


def test_uuid_with_another_type_is_an_error(tmp_path: Path) -> None:
    host = host_with_parents()
    make(host, UUID, LARGE)
    with pytest.raises(exception.DriverFailed, match=f"exists with the type {LARGE}"):
        driver_on(host, tmp_path).prepare(task())


def test_unit_of_a_former_type_is_not_prepared(tmp_path: Path) -> None:
    host = host_with_parents()
    with pytest.raises(exception.DriverFailed, match="has another type than its function"):
        driver_on(host, tmp_path).prepare(task(kind=LARGE))
    assert host.list_dir(BUS) == []


def test_type_that_the_function_does_not_have_is_refused(tmp_path: Path) -> None:
    text = conf_of().replace(SMALL, "i915-GVTg_V5_8")
    assert row(driver_on(host_with_parents(), tmp_path, text)).reason == (
        f"it has no type i915-GVTg_V5_8, but {LARGE}, {SMALL}"
    )


def test_parent_of_which_nova_owns_the_parts_is_refused(tmp_path: Path) -> None:
    driver = driver_on(host_with_parents(), tmp_path)
    scan = Scan(driver.host, claims={PARENT: "Nova offers it"})
    assert [device.key for device in driver.discover(scan)] == [OTHER]
    [item] = [item for item in driver.hardware(scan) if item.key == PARENT]
    assert item.reason == "Nova offers it"


def test_parent_is_not_reset(tmp_path: Path) -> None:
    host = host_with_parents()
    with pytest.raises(exception.DriverCannot):
        driver_on(host, tmp_path).reset(PARENT, ResetLevel.FUNCTION)
    assert host.writes == []


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"addresses": ""}, f"Option [mdev_{SMALL}] device_addresses must be set"),
        ({"addresses": "3b:00.0"}, "'3b:00.0' is not a PCI address"),
        ({"addresses": f"{PARENT}, *"}, "'*' is not a PCI address"),
        ({"addresses": f"{PARENT}, {PARENT}"}, f"{PARENT} is in [mdev_{SMALL}] already"),
        ({"section": "resource_class = vgpu"}, f"Option [mdev_{SMALL}] resource_class"),
        ({"section": "traits = fast"}, "'fast' is not the name of a trait"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    tmp_path: Path, changes: dict[str, Any], flaw: str
) -> None:
    with pytest.raises(exception.ConfigError) as raised:
        driver_on(servers.bare(), tmp_path, conf_of(**changes))
    assert flaw in str(raised.value)

# SPDX-License-Identifier: Apache-2.0
"""Mediated devices and vendor-specific VFIO: types of one card share its capacity.

The ``mdev_driver`` creates, counts and destroys real mediated devices.
"""

import errno
import json
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.host import LocalHost
from cyborg.drivers.mdev import MdevDriver
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit
from cyborg.testing.driver_checks import change
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import CARD, Functions, eventually, refused
from cyborg.tests.kernel.test_reset import Root
from cyborg.tests.unit.drivers.configured import written

#: The types of simaccel: one needs one of four slices, the other needs all four.
SMALL, LARGE = "simaccel-1", "simaccel-4"


def available(functions: Functions, card: str) -> list[int]:
    """Return how many devices of the small and of the large type can be created."""
    texts = (
        functions.read(card, f"mdev_supported_types/{kind}/available_instances")
        for kind in (SMALL, LARGE)
    )
    return [int(text) for text in texts]


def test_device_of_one_type_takes_instances_of_the_others(functions: Functions) -> None:
    """A unit of an MDEV deployable may be gone although its own type was never used."""
    card, other = functions.matching(CARD)
    assert available(functions, card) == [4, 1]
    functions.create_mdev(card, SMALL)
    assert available(functions, card) == [3, 0]
    assert available(functions, other) == [4, 1]


def test_card_without_capacity_refuses_a_further_device(functions: Functions) -> None:
    """Preparing a unit that was offered can fail: siblings may have used the capacity."""
    card, _ = functions.matching(CARD)
    functions.create_mdev(card, LARGE)
    with refused(errno.ENOSPC):
        functions.write(card, f"mdev_supported_types/{SMALL}/create", uuid.uuid4())
    assert available(functions, card) == [0, 0]


def test_uuid_is_refused_twice(functions: Functions) -> None:
    """UUIDs are unique on a host: a repeated preparation must look for the device first."""
    card, other = functions.matching(CARD)
    name = functions.create_mdev(card, SMALL)
    with refused(errno.EEXIST):
        functions.write(other, f"mdev_supported_types/{SMALL}/create", name)


def test_device_is_a_child_of_its_card(functions: Functions, host: LocalHost) -> None:
    """A card with a child of the bus mdev is carved: it is not offered as a whole."""
    card, _ = functions.matching(CARD)
    name = functions.create_mdev(card, SMALL)
    path = host.realpath(f"/sys/bus/mdev/devices/{name}")
    assert path == host.realpath(functions.path(card, name))
    assert functions.link(card, f"{name}/iommu_group")


def test_mdevctl_shows_the_types_and_devices(
    functions: Functions, command: Callable[..., str]
) -> None:
    """Operators read the same numbers with mdevctl as drivers do in sysfs."""
    card, _ = functions.matching(CARD)
    name = functions.create_mdev(card, SMALL)
    [types] = json.loads(command("mdevctl", "types", "--parent", card, "--dumpjson"))
    [kinds] = types.values()
    shown = {
        kind: fields["available_instances"] for entry in kinds for kind, fields in entry.items()
    }
    assert shown == {SMALL: 3, LARGE: 0}
    [devices] = json.loads(command("mdevctl", "list", "--dumpjson"))
    [[entry]] = devices.values()
    assert entry[name]["mdev_type"] == SMALL


def creatable(functions: Functions, vf: str) -> list[str]:
    """Return the ids of the vGPU types that a VF can have; the first line is a heading."""
    lines = functions.read(vf, "nvidia/creatable_vgpu_types").splitlines()[1:]
    return [line.partition(":")[0].strip() for line in lines]


def test_vgpu_type_of_one_vf_shrinks_the_lists_of_the_others(functions: Functions) -> None:
    """The lists are read each time; that a type was there in the last scan tells nothing."""
    first, second = functions.create_vfs(functions.nvme("SRIOV0001"), 2)
    for vf in (first, second):
        functions.bind(vf, "simaccel")
    assert creatable(functions, second) == ["1430", "1429", "1428"]
    functions.write(first, "nvidia/current_vgpu_type", 1429)
    assert creatable(functions, first) == []
    assert creatable(functions, second) == ["1429", "1428"]
    with refused(errno.ENOSPC):
        functions.write(second, "nvidia/current_vgpu_type", 1430)
    with refused(errno.EEXIST):
        functions.write(first, "nvidia/current_vgpu_type", 1428)
    functions.write(first, "nvidia/current_vgpu_type", 0)
    assert creatable(functions, second) == ["1430", "1429", "1428"]


CONFIGURATION = """\
[mdev_driver]
enabled_types = {kind}
create = {create}
[mdev_{kind}]
device_addresses = {card}
"""


def offering(
    root: Root, file: Path, card: str, *, kind: str = SMALL, create: str = "prepare"
) -> tuple[MdevDriver, HandleTask]:
    """Return a driver that offers a card, and a task for the last of its units."""
    text = CONFIGURATION.format(kind=kind, create=create, card=card)
    driver = MdevDriver(LocalHost(privileged=root), written(file, text))
    [device] = driver.discover(Scan(driver.host))
    [part] = device.deployables
    unit = part.handles[-1].key
    task = HandleTask("r", driver.name, card, part.name, unit, str(uuid.uuid4()))
    driver.attach_handles = {task.handle_uuid: task.unit}
    return driver, task


def units(driver: MdevDriver) -> int:
    """Return how many units the driver offers; the conductor keeps all of its deployables."""
    devices = driver.discover(Scan(driver.host, all_managed=True))
    return sum(len(part.handles) for device in devices for part in device.deployables)


@pytest.mark.proves("mdev_driver", "discover", "bind", "cleaning", by="kernel")
def test_unit_is_created_at_the_bind_and_destroyed_at_the_release(
    functions: Functions, tmp_path: Path
) -> None:
    card, other = functions.matching(CARD)
    root = Root()
    driver, task = offering(root, tmp_path / "cyborg.conf", card)
    assert units(driver) == 4
    driver.prepare(task)
    driver.prepare(task)
    assert functions.names(card, f"mdev_supported_types/{SMALL}/devices") == [task.handle_uuid]
    assert (available(functions, card), available(functions, other)) == ([3, 0], [4, 1])
    assert driver.prepared(Scan(driver.host)) == [Unit(task.deployable, task.handle_uuid)]
    assert units(driver) == 4
    change(driver, "release", task)
    assert driver.prepared(Scan(driver.host)) == []
    assert available(functions, card) == [4, 1]
    assert [str(action).partition("(")[0] for action in root.actions] == [
        "CreateMdev",
        "RemoveMdev",
    ]


def test_unit_in_a_guest_is_destroyed_after_the_guest_has_closed_it(
    functions: Functions, tmp_path: Path
) -> None:
    """The kernel would let the write to ``remove`` wait, so the driver refuses before it."""
    card, _ = functions.matching(CARD)
    driver, task = offering(Root(), tmp_path / "cyborg.conf", card)
    driver.prepare(task)
    group = functions.link(card, f"{task.handle_uuid}/iommu_group") or ""
    with vfio.held(group, task.handle_uuid):
        with pytest.raises(exception.DriverFailed, match="is held through VFIO by"):
            driver.release(task)
        assert available(functions, card) == [3, 0]
        assert units(driver) == 4
    driver.release(task)
    assert available(functions, card) == [4, 1]


def test_unit_that_nova_created_is_destroyed_at_the_release(
    functions: Functions, tmp_path: Path
) -> None:
    card, _ = functions.matching(CARD)
    driver, task = offering(Root(), tmp_path / "cyborg.conf", card, create="nova")
    driver.prepare(task)
    assert available(functions, card) == [4, 1]
    functions.write(card, f"mdev_supported_types/{SMALL}/create", task.handle_uuid)
    driver.prepare(task)
    assert units(driver) == 4
    change(driver, "release", task)
    assert available(functions, card) == [4, 1]


def test_device_without_a_handle_takes_units_until_it_is_removed(
    functions: Functions, host: LocalHost, tmp_path: Path
) -> None:
    card, _ = functions.matching(CARD)
    driver, task = offering(Root(), tmp_path / "cyborg.conf", card)
    driver.prepare(task)
    for kind, left in ((SMALL, 3), (SMALL, 2)):
        functions.create_mdev(card, kind)
        assert units(driver) == left
    reasons = [row.reason for row in driver.hardware(Scan(host, all_managed=True)) if row.reason]
    assert sum("no attach handle has its UUID" in reason for reason in reasons) == 2
    driver.release(task)


def test_card_whose_capacity_another_type_has_is_refused(
    functions: Functions, host: LocalHost, tmp_path: Path
) -> None:
    card, _ = functions.matching(CARD)
    driver, task = offering(Root(), tmp_path / "cyborg.conf", card, kind=LARGE)
    assert units(driver) == 1
    functions.create_mdev(card, SMALL)
    assert units(driver) == 0
    [row] = [row for row in driver.hardware(Scan(host, all_managed=True)) if row.key == card]
    assert row.reason == (
        f"it can make no mediated device of type {LARGE} now; it has 1 of type {SMALL}"
    )
    with pytest.raises(exception.DriverFailed, match="can make no mediated device"):
        driver.prepare(task)


def test_unit_is_bound_and_released_through_the_whole_service(
    functions: Functions, tmp_path: Path, undo: ExitStack
) -> None:
    """From the API to the kernel; a device that libvirt creates again is removed as a left-over."""
    # Only this test pays for this import.
    from cyborg.tests.kernel.deployment import Deployment

    card, _ = functions.matching(CARD)
    file = tmp_path / "cyborg.conf"
    file.write_text(CONFIGURATION.format(kind=SMALL, create="prepare", card=card))
    deployment = Deployment(
        MdevDriver.name, tmp_path, undo, machine=LocalHost(privileged=Root()), files=[file]
    )

    def made() -> list[str]:
        return functions.names(card, f"mdev_supported_types/{SMALL}/devices")

    group = {"resources:CUSTOM_MDEV": "1", "trait:CUSTOM_MDEV_SIMACCEL_1": "required"}
    provider, instance = deployment.provider(card), str(uuid.uuid4())
    deployment.wait_for_providers(group, {provider})
    state, info = deployment.bind(group, provider, instance)
    assert state == "Bound"
    assert info == {
        **PciAddress.parse(card).info(),
        "asked_type": SMALL,
        "vgpu_mark": f"{SMALL}_0",
    }
    [name] = made()
    assert available(functions, card) == [3, 0]
    deployment.delete(instance)
    eventually(lambda: made() == [])

    def is_created_again() -> bool:
        """Whether the kernel takes the name; it knows it until the removal has ended."""
        try:
            functions.write(card, f"mdev_supported_types/{SMALL}/create", name)
        except exception.HostError as error:
            if error.fields.get("errno") != errno.EEXIST:
                raise
            return False
        return True

    # libvirt keeps the definition, and starts it when the host boots.
    eventually(is_created_again)
    stranger = functions.create_mdev(card, SMALL)
    eventually(lambda: made() == [stranger])
    assert available(functions, card) == [3, 0]

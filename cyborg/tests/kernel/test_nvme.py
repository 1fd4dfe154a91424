# SPDX-License-Identifier: Apache-2.0
"""NVMe: a virtual function becomes a controller when its physical function gives it resources."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.drivers.nvme_disk import NvmeDriver
from cyborg.drivers.privileged.actions import Reset, SetVfs
from cyborg.drivers.privileged.disk_actions import (
    ReadVirtualControllers,
    ReleaseQueues,
    StartVirtualControllers,
)
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel.functions import Functions, eventually
from cyborg.tests.kernel.test_cleaning import CANARY, PLACES, read, write
from cyborg.tests.kernel.test_lives import DISK, use
from cyborg.tests.kernel.test_reset import Root
from cyborg.tests.unit.drivers.configured import written


@pytest.fixture
def disk(functions: Functions, undo: ExitStack) -> str:
    """Return the disk with SR-IOV; it has no virtual functions after the test."""
    address = functions.nvme("SRIOV0001")
    undo.callback(functions.write, address, "sriov_drivers_autoprobe", 1)
    undo.callback(functions.write, address, "sriov_numvfs", 0)
    return address


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def driver(disk: str, root: Root, tmp_path: Path) -> NvmeDriver:
    """Return a driver that divides the disk."""
    conf = written(tmp_path / "cyborg.conf", configuration(disk))
    return NvmeDriver(LocalHost(privileged=root), conf)


def configuration(disk: str) -> str:
    return f'[nvme]\ndevice_spec = {{"address": "{disk}"}}\nvirtual_functions = 2\n'


def is_live(functions: Functions, function: str) -> bool:
    """Return whether the host's driver has the function, and its controller works."""
    names = functions.names(function, "nvme")
    return [functions.read(function, f"nvme/{name}/state") for name in names] == ["live"]


def has_disk(functions: Functions, function: str) -> bool:
    """Return whether the host shows a namespace of the function."""
    [controller] = functions.names(function, "nvme") or [""]
    names = functions.names(function, f"nvme/{controller}") if controller else []
    return any(re.fullmatch(r"nvme\d+(c\d+)?n\d+", name) for name in names)


@pytest.mark.proves("nvme_driver", "discover", "partition", by="kernel")
def test_functions_of_a_disk_get_controllers_that_work(
    functions: Functions, disk: str, driver: NvmeDriver, root: Root
) -> None:
    """The driver ``nvme`` of the host can use them, so that of a guest can."""
    assert driver.discover(Scan(driver.host)) == []
    driver.partition(disk, "vfs=2")
    virtual = [str(functions.link(disk, f"virtfn{index}")) for index in range(2)]
    [device] = driver.discover(Scan(driver.host))
    assert [unit.handles[0].key for unit in device.deployables] == virtual
    changes = [type(action) for action in root.actions if action.changes]
    # QEMU's disk holds nothing itself that its functions could have: it need not be reset.
    assert changes == [SetVfs, ReleaseQueues, StartVirtualControllers]
    [name] = functions.names(disk, "nvme")
    action = ReadVirtualControllers(PciAddress.parse(disk), name)
    states = {one.vf: one for one in root.run(action)}
    assert [states[vf].online for vf in sorted(states)] == [True, True, False, False]
    for number, vf in enumerate(virtual, 1):
        functions.bind(vf, "nvme")
        eventually(partial(is_live, functions, vf))
        [controller] = functions.names(vf, "nvme")
        cntlid = functions.read(vf, f"nvme/{controller}/cntlid")
        assert cntlid == str(states[number].identifier)


def test_functions_that_stopped_with_a_reset_of_their_disk_are_started_again(
    functions: Functions, disk: str, driver: NvmeDriver, root: Root
) -> None:
    driver.partition(disk, "vfs=2")
    root.run(Reset(PciAddress.parse(disk), "flr"))
    assert driver.discover(Scan(driver.host)) == []
    reasons = {item.key: str(item.reason) for item in driver.hardware(Scan(driver.host))}
    virtual = [str(functions.link(disk, f"virtfn{index}")) for index in range(2)]
    assert all("its NVMe controller is offline" in reasons[vf] for vf in virtual)
    [layouts] = driver.layouts(Scan(driver.host))
    assert (layouts.current, layouts.refusal) == ("vfs=2, stopped", None)
    driver.partition(disk, "vfs=2")
    [device] = driver.discover(Scan(driver.host))
    assert [unit.handles[0].key for unit in device.deployables] == virtual


@pytest.mark.proves("nvme_driver", "bind", "cleaning", by="kernel")
def test_next_instance_finds_no_data_of_the_first_on_its_function(
    functions: Functions,
    disk: str,
    tmp_path: Path,
    undo: ExitStack,
    command: Callable[..., str],
) -> None:
    """The agent divides the disk as its configuration says, and only the namespace is given.

    Between its guests a function has no driver of the host.
    """
    # Only these tests pay for these imports.
    from cyborg.service import wait_until
    from cyborg.tests.kernel.deployment import Deployment

    file = tmp_path / "cyborg.conf"
    file.write_text(configuration(disk))
    root = Root()
    deployment = Deployment(
        NvmeDriver.name, tmp_path, undo, machine=LocalHost(privileged=root), files=[file]
    )
    wait_until(lambda: functions.link(disk, "virtfn1") is not None, timeout=120)
    virtual = [str(functions.link(disk, f"virtfn{index}")) for index in range(2)]
    providers = [deployment.provider(vf) for vf in virtual]
    deployment.wait_for_providers(DISK, set(providers))
    [name] = functions.names(disk, "nvme")
    listed = root.run(ReadVirtualControllers(PciAddress.parse(disk), name))
    [controller] = [part.identifier for part in listed if part.vf == 1]
    for verb, owner in (("detach-ns", 0), ("attach-ns", controller)):
        command("nvme", verb, f"/dev/{name}", "-n", "1", "-c", str(owner))
    undo.callback(command, "nvme", "attach-ns", f"/dev/{name}", "-n", "1", "-c", "0")
    undo.callback(command, "nvme", "detach-ns", f"/dev/{name}", "-n", "1", "-c", str(controller))
    cleaned = ""
    for instance in (str(uuid4()), str(uuid4())):
        state, info = deployment.bind(DISK, providers[0], instance)
        assert (state, info) == ("Bound", PciAddress.parse(virtual[0]).info())
        with ExitStack() as guest:
            # What the guest reads and writes: here the driver of this kernel does it.
            Functions(LocalHost(), guest).bind(virtual[0], "nvme")
            eventually(partial(has_disk, functions, virtual[0]))
            node = Path("/dev", functions.disk(virtual[0]))
            assert read(node) == [bytes(len(CANARY))] * len(PLACES)
            write(node)
            assert read(node) == [CANARY] * len(PLACES)
        use(functions, virtual[0])
        deployment.delete(instance)
        cleaned, steps = deployment.wait_for_cleaning(virtual[0], cleaned)
        assert steps == ["function reset", "NVMe erase"]
        deployment.wait_for_providers(DISK, set(providers))
        assert functions.link(virtual[0], "driver") is None

# SPDX-License-Identifier: Apache-2.0
"""The ``pci_driver`` cleans real functions after their guests: what a guest wrote is gone."""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.drivers.host import LocalHost
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.privileged.actions import Reset
from cyborg.drivers.privileged.disk_actions import FormatNamespace
from cyborg.drivers.scan import Scan
from cyborg.model.work import HandleTask
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import Functions
from cyborg.tests.kernel.test_reset import Root
from cyborg.tests.unit.drivers.configured import configured

CANARY = b"canary of the first tenant"
PLACES = (0, 1 << 20, 3 << 20)


class Impatient(LocalHost):
    """This machine, for a driver that does not wait for it."""

    def pause(self, seconds: float) -> None:
        pass


def clean(address: str) -> tuple[Root, list[str]]:
    """Run the clean steps of a disk, those of a higher priority first; return their names."""
    root = Root()
    driver = PciDriver(LocalHost(privileged=root), configured(f'{{"address": "{address}"}}'))
    devices = driver.discover(Scan(driver.host))
    [part] = [one for device in devices for one in device.deployables]
    assert part.clean == "default"
    assert not part.prepare
    task = HandleTask("r", driver.name, address, part.name, address, str(uuid4()))
    steps = sorted(driver.clean_steps(task), key=lambda step: -step.priority)
    for step in steps:
        assert callable(step.work)
        step.work(lambda done, text: None)
    assert driver.discover(Scan(driver.host)) == devices
    return root, [step.name for step in steps]


def write(node: Path) -> None:
    with node.open("r+b") as file:
        for place in PLACES:
            file.seek(place)
            file.write(CANARY)
        file.flush()
        os.fsync(file.fileno())


def read(node: Path) -> list[bytes]:
    """Return what is in the disk itself, at the places of the canary."""
    return [
        subprocess.run(
            ["dd", f"if={node}", "iflag=direct", "bs=4096", "count=1", f"skip={place // 4096}"],
            capture_output=True,
            check=True,
        ).stdout[: len(CANARY)]
        for place in PLACES
    ]


@pytest.mark.proves("pci_driver", "discover", "cleaning", by="kernel")
def test_disk_has_nothing_of_its_guest_after_it_was_cleaned(functions: Functions) -> None:
    address = functions.nvme("PLAIN0001")
    # As libvirt does for a guest, and after it.
    with ExitStack() as stack:
        Functions(LocalHost(), stack).bind(address, "vfio-pci")
        group = functions.link(address, "iommu_group") or ""
        with vfio.held(group, address):
            pass
    node = Path("/dev", functions.disk(address))
    write(node)
    assert read(node) == [CANARY] * len(PLACES)
    root, names = clean(address)
    assert names == ["function reset", "NVMe erase"]
    assert read(node) == [bytes(len(CANARY))] * len(PLACES)
    changes = [action for action in root.actions if action.changes]
    assert [type(action) for action in changes] == [Reset, FormatNamespace]
    assert "method=flr" in str(changes[0])


def test_disk_that_the_host_has_mounted_keeps_its_data(
    functions: Functions, mounted: Callable[[str], Path]
) -> None:
    address = functions.nvme("PLAIN0001")
    host = Impatient(privileged=Root())
    driver = PciDriver(host, configured(f'{{"address": "{address}"}}'))
    [part] = [one for device in driver.discover(Scan(driver.host)) for one in device.deployables]
    task = HandleTask("r", driver.name, address, part.name, address, str(uuid4()))
    steps = driver.clean_steps(task)
    kept = mounted(functions.disk(address)) / "kept"
    kept.write_bytes(CANARY)
    for step in steps:
        assert callable(step.work)
        with pytest.raises(exception.DriverFailed, match="is mounted at"):
            step.work(lambda done, text: None)
    assert kept.read_bytes() == CANARY

# SPDX-License-Identifier: Apache-2.0
"""The ``generic_driver`` resets real functions after their guests, through the agent's actions."""

import errno
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.host import LocalHost
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import Reset
from cyborg.drivers.privileged.guard import Guard
from cyborg.drivers.privileged.kernel import LinuxKernel
from cyborg.drivers.scan import Scan
from cyborg.model.work import HandleTask
from cyborg.testing.driver_checks import change
from cyborg.tests.kernel.functions import IGB, Functions
from cyborg.tests.unit.drivers.configured import written

T = TypeVar("T")
CONFIGURATION = """\
[generic_driver]
backends = cards
[generic_driver:cards]
pci_ids = 8086:10ca
resource_class = CUSTOM_PORT
reset = {level}
reset_after_release = true
"""


class Root:
    """Runs actions in this process, which is root and has listed all functions.

    It refuses what the privileged process refuses; ``actions`` are those that it ran.
    """

    def __init__(self) -> None:
        self.actions: list[Action[object]] = []
        functions = Path("/etc/test-functions")
        functions.write_text("{}\n")
        self._guard = Guard(LocalHost(), LinuxKernel(), str(functions))

    def run(self, action: Action[T]) -> T:
        self._guard.check(action)
        self.actions.append(action)  # type: ignore[arg-type]
        return action.run(LinuxKernel())


def release(functions: Functions, file: Path, level: str) -> tuple[Root, str]:
    """Release one of two virtual functions; return what ran the actions, and its address."""
    [card] = functions.matching(IGB)
    address, _ = functions.create_vfs(card, 2)
    root = Root()
    driver = GenericDriver(
        LocalHost(privileged=root), written(file, CONFIGURATION.format(level=level))
    )
    devices = driver.discover(Scan(driver.host))
    [device] = [device for device in devices if device.key == address]
    [part] = device.deployables
    assert part.prepare
    task = HandleTask("r", driver.name, address, part.name, address, str(uuid4()))
    before = functions.read(address, "reset_method")
    try:
        change(driver, "release", task)
    finally:
        assert functions.read(address, "reset_method") == before
    assert driver.discover(Scan(driver.host)) == devices
    return root, address


@pytest.mark.proves("generic_driver", "discover", "cleaning", by="kernel")
def test_function_is_reset_after_its_guest(functions: Functions, tmp_path: Path) -> None:
    root, address = release(functions, tmp_path / "cyborg.conf", "FUNCTION")
    assert [str(action) for action in root.actions if isinstance(action, Reset)] == [
        f"Reset(function={address})"
    ]


def test_kernel_refuses_to_reset_a_bus_with_other_functions(
    functions: Functions, tmp_path: Path
) -> None:
    """The neighbour may have a guest."""
    with pytest.raises(exception.HostError) as refusal:
        release(functions, tmp_path / "cyborg.conf", "BUS")
    assert refusal.value.fields["errno"] in {errno.EINVAL, errno.ENOTTY}

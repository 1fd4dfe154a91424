# SPDX-License-Identifier: Apache-2.0
"""What the contract of drivers must know about a driver: how to make hosts with it, and limits."""

import abc
from typing import ClassVar

import pytest

from cyborg.drivers.base import Driver
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device
from cyborg.model.work import HandleTask
from cyborg.testing.driver_calls import Limit
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.nvme_tool import has_data, write_data
from cyborg.testing.subject import HOST


class DriverSetup(abc.ABC):
    """The hooks and limits of a contract; ``rounds`` and ``seed`` steer the random corruption.

    ``moments`` is at how many moments of a scan hardware is pulled, one after the other.
    ``longest_look`` is how long, in seconds, a verb that only looks may wait for commands and files
    that hang, all together; ``longest_command`` the most that any command may be given.
    Both are seconds of the clock of the host. ``longest_call`` is how long a call of a method may
    really take, in seconds; ``worker`` carries the calls out.
    ``calls`` and ``calls_per_device`` bound how often a verb that only looks calls the host beside
    what the scan reads. ``commands_in_discover`` says that ``discover`` runs commands.
    ``selects_by_address`` says that the options of the driver name addresses, so that a card in
    another slot is not offered. ``host_name`` is option ``[DEFAULT] host`` of the drivers that
    ``make_driver`` makes.
    """

    rounds = 50
    moments = 40
    seed = 2027
    longest_look = 60.0
    longest_command = 3600.0
    longest_call = 20.0
    worker: ClassVar[Worker] = Worker()
    calls = 40
    calls_per_device = 20
    commands_in_discover = False
    selects_by_address = False
    host_name = HOST

    @abc.abstractmethod
    def make_host(self) -> FakeHost:
        """Return a new host on which the driver offers at least one device."""

    @abc.abstractmethod
    def make_driver(self, host: FakeHost) -> Driver:
        """Return a new driver on this host, as after a restart of the agent."""

    def driver(self, host: FakeHost) -> Driver:
        """Return a new driver on this host, whose calls end within ``longest_call`` seconds."""
        limit = Limit(self.longest_call, self.worker)
        return limit.driver(limit.call("the constructor", self.make_driver)(host))

    def break_device(self, host: FakeHost, key: str) -> None:
        """Let the host show that a device is broken, as ``signals`` would see it on a machine."""
        pytest.fail(
            f"signals({key}) cannot be tested: derive a class from DriverContract that defines "
            "break_device(host, key) and mend_device(host, key), and name it with "
            "--cyborg-contract=module:Class"
        )

    def mend_device(self, host: FakeHost, key: str) -> None:
        """Take back what ``break_device`` did."""
        self.break_device(host, key)

    def dirty_unit(self, host: FakeHost, task: HandleTask) -> bool:
        """Leave data on the unit of the task, as its guest would, and return True.

        Return False if that cannot be simulated: the kit then says which steps it cannot judge. By
        default the data is written to the namespaces of an NVMe disk.
        """
        return write_data(host, task.handle_key)

    def is_clean(self, host: FakeHost, task: HandleTask) -> bool:
        """Return whether nothing is left of the data of ``dirty_unit``."""
        return not has_data(host, task.handle_key)

    def found(self, driver: Driver) -> list[Device]:
        """Return the devices that the driver offers, at least one."""
        devices = look(driver).discover()
        assert devices, "discover() finds no device on the host of the test (see --cyborg-host)"
        return devices

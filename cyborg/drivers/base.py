# SPDX-License-Identifier: Apache-2.0
"""The base class of every driver, and the types that its methods take and return.

A driver reaches the machine through its ``Host`` only, returns frozen objects and keeps no state of
its own: after a restart it reads everything it needs from the machine. Only ``discover`` is
mandatory. Every method that changes something is idempotent: the agent may call it again at any
time, with the same or another request key, and a driver whose work is already done returns as if
it had just done it.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NoReturn

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.host import Host
from cyborg.drivers.scan import Scan
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.work import HandleTask, ProgramTask, Unit


@dataclass(frozen=True)
class Health:
    """Whether a device works; ``reason`` says why it does not, and is None for a healthy one."""

    healthy: bool
    reason: str | None = None


class Driver(abc.ABC):
    """One kind of accelerator on one host.

    ``name`` is the name of the entry point in ``cyborg.accelerator.driver``. ``device_type`` names
    the hardware that the driver supports, None for several kinds. A constructor reads the options
    it needs once, touches no hardware, and raises exception.ConfigError with one sentence when it
    cannot use them. The other methods report a failure with exception.HostError,
    exception.DriverFailed or exception.DriverCannot.

    ``operator_created`` maps keys to the devices that operators created on those backends of the
    driver that allow it (``Backend.creates``); the agent sets it. ``discover`` and ``hardware``
    return these devices too: unchanged, except for the fields that only the driver can fill in. A
    created device that the host cannot offer now is treated like any other that is not offered.

    ``scan`` is what the current round reads from the host, once for all drivers; it also has the
    facts that no driver can read. The methods that change something read their device again.
    """

    name: ClassVar[str]
    device_type: str | None = None
    can_program: bool = False
    #: Names of options that only the host's own configuration files may set, such as commands.
    local_options: ClassVar[frozenset[str]] = frozenset()

    operator_created: Mapping[str, Device] = MappingProxyType({})

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        self.host = host

    @abc.abstractmethod
    def discover(self, scan: Scan) -> list[Device]:
        """Return the devices that this driver offers now, ordered by key.

        The method only reads: two calls on an unchanged machine return equal results. It leaves out
        a device that vanishes while it is read. A device that cannot be read does not hide the
        others. Raises exception.HostError only when nothing at all can be read from the host.
        """

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all devices of this driver's kind; those that it does not offer have a reason."""
        return [Hardware.of(device) for device in self.discover(scan)]

    def backends(self, scan: Scan) -> Sequence[Backend]:
        """Return the backends attached to this host with their services, in a stable order.

        The method only reads, like ``discover``; most hardware has no backends.
        """
        return ()

    def install(self, device_key: str, request_key: str) -> None:
        """Set up a device, so that it can be offered."""
        self._cannot(f"install {device_key}")

    def prepare(self, task: HandleTask) -> None:  # noqa: B027 - doing nothing is the answer
        """Prepare one attach handle for its guest; most hardware needs nothing."""

    def release(self, task: HandleTask) -> None:  # noqa: B027 - doing nothing is the answer
        """Release one attach handle after its guest; most hardware needs nothing."""

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """Return the units of this driver that the host shows as prepared; the method only reads.

        With this method, the agent prepares the units again after a reboot, and releases those that
        no request holds. A unit whose preparation is incomplete may be left out. Units that another
        program prepared on the host are left out, as far as they can be distinguished.
        """
        self._cannot("list the prepared units")

    def health(self, scan: Scan, device_key: str) -> Health:
        """Return the health of one device.

        The agent calls the method periodically for every device, in one thread per driver, also
        while other methods run; the method must return within a limited time. The conductor
        reserves the units of an unhealthy device until the device is healthy again. After an error
        the last result stays valid.
        """
        self._cannot(f"check the health of {device_key}")

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """Return the statistics of a device by name; the end of each name is its unit.

        The names in ``cyborg.model.report.FIGURES`` become metrics; all names are in the
        notifications. The method only reads. The agent calls it at any time, also while other
        methods run, in a separate thread: a call that hangs delays only the statistics of its
        driver.
        """
        self._cannot(f"measure {device_key}")

    def program(self, task: ProgramTask, image_path: str) -> None:
        """Load the image file into the deployable; the same image may be loaded again."""
        self._cannot(f"program {task.deployable}")

    def _cannot(self, verb: str) -> NoReturn:
        raise exception.DriverCannot(driver=self.name, verb=verb)

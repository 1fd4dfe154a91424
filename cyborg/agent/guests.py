# SPDX-License-Identifier: Apache-2.0
"""Tell the conductors which guests run on the host, and which units they have."""

import contextlib
import logging

from cyborg import exception
from cyborg.drivers import guests
from cyborg.drivers.host import Host
from cyborg.drivers.worker import Worker
from cyborg.model.device import AttachType
from cyborg.model.guests import HostGuests, UnitInUse
from cyborg.model.pci import PciAddress
from cyborg.model.report import Report
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import SendGuests

LOG = logging.getLogger(__name__)


class GuestReports:
    """Reads the processes of the host after each scan, and sends what has changed.

    A host without PCI functions to attach sends nothing. Where the open files of other processes
    cannot be seen, no guest counts as running, so that no unit is missed in one. Conductors forget
    what an earlier process of the agent has sent.
    """

    def __init__(
        self, *, host: str, machine: Host, conductor: ConductorClient, worker: Worker
    ) -> None:
        self._host = host
        self._machine = machine
        self._conductor = conductor
        self._worker = worker
        #: What conductors have, and the epoch of this agent in which it was sent.
        self._sent: tuple[int, HostGuests] | None = None
        self._trouble = ""

    def send(self, epoch: int, report: Report) -> None:
        """Read and send; a failure is logged once, and the next scan tries again."""
        units = _units(report)
        if not units and self._sent is None:
            return
        try:
            now = self._worker.read("the open files", lambda: guests.read(self._machine, units))
            trouble = ""
        except exception.HostError as error:
            now, trouble = HostGuests(guests.boot_id(self._machine)), str(error)
        if trouble and trouble != self._trouble:
            LOG.warning(
                "Guests of host %s are not known, so a guest without its accelerators is not "
                "found: %s",
                *(self._host, trouble),
            )
        self._trouble = trouble
        if self._sent == (epoch, now) or (trouble and self._sent is None):
            return
        try:
            self._conductor.request(SendGuests(self._host, epoch, now))
        except exception.CyborgError as error:
            LOG.debug("The guests of host %s were not sent: %s", self._host, error)
        else:
            self._sent = epoch, now


def _units(report: Report) -> dict[UnitInUse, PciAddress]:
    """Return the PCI function of each unit that a guest gets as one."""
    units = {}
    for driver in report.drivers:
        for device in driver.devices:
            for deployable in device.deployables:
                for handle in deployable.handles:
                    if handle.type is AttachType.PCI:
                        # The driver of a vendor may give an address that is none.
                        with contextlib.suppress(ValueError):
                            unit = UnitInUse(deployable.name, handle.key)
                            units[unit] = PciAddress.from_info(handle.info)
    return units

# SPDX-License-Identifier: Apache-2.0
"""The processes of a host that are guests, or that have units in use, as its agent sees them."""

from dataclasses import dataclass
from typing import ClassVar, Final

from cyborg.model.device import flaw_of_text

#: The largest numbers in one message. A host has a hundred times fewer.
MOST_PROCESSES: Final = 4_096
MOST_UNITS: Final = 65_536


@dataclass(frozen=True)
class UnitInUse:
    """A unit, by its deployable as the driver names it and the key of its attach handle."""

    deployable: str
    handle_key: str


@dataclass(frozen=True)
class GuestProcess:
    """A process: its name and number, the server that it runs, and the units that it has.

    ``instance_uuid`` None: it is no guest, or not one that libvirt has started.
    """

    name: str
    instance_uuid: str | None
    units: tuple[UnitInUse, ...] = ()


@dataclass(frozen=True)
class HostGuests:
    """The guests that run on a host now, and every process that has a unit of a PCI function.

    ``boot_id`` identifies the boot of the host; empty: it is not known.
    """

    KIND: ClassVar[str] = "HostGuests"

    boot_id: str
    processes: tuple[GuestProcess, ...] = ()

    def validate(self) -> str | None:
        """Return why this cannot be stored, as a clause; None if it can."""
        units = sum(len(process.units) for process in self.processes)
        for what, count, most in (
            ("processes", len(self.processes), MOST_PROCESSES),
            ("units", units, MOST_UNITS),
        ):
            if count > most:
                return f"it has {count} {what}, and at most {most} are stored"
        texts = [("its boot", self.boot_id, 36)] if self.boot_id else []
        for process in self.processes:
            texts.append(("the name of a process", process.name, 255))
            if process.instance_uuid is not None:
                texts.append(("the server of a process", process.instance_uuid, 36))
        return next(filter(None, (flaw_of_text(*text) for text in texts)), None)

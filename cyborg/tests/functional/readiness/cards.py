# SPDX-License-Identifier: Apache-2.0
"""Cards that have to be set up before anybody can use them."""

import threading
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.db.models import Hardware, Host
from cyborg.drivers.base import ALONE, Surroundings
from cyborg.model import device as facts
from cyborg.tests.functional.life.cards import CardDriver

_SET_UP = "/set-up"


class BareCardDriver(CardDriver):
    """A card is ready when a file named like it stands below ``/set-up``; its set-up puts it there.

    ``refusal`` is what a set-up throws; ``useless`` ones end well and change nothing; ``gate``
    keeps them from ending; ``reboot`` tells that the host has to be started anew after them.
    """

    refusal: Exception | None = None
    useless = False
    reboot = False

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.gate = threading.Event()
        self.gate.set()
        self.installed: list[str] = []

    def hardware(self, surroundings: Surroundings = ALONE) -> list[facts.Hardware]:
        """See Driver."""
        return [self._entry(one) for one in self.discover(surroundings)]

    def install(self, device_key: str, operation: str) -> None:
        """See Driver."""
        if not self.gate.wait(20):
            raise exception.DriverFailed(driver=self.name, verb="install", reason="a test forgot")
        if self.refusal is not None:
            raise self.refusal
        self.installed.append(device_key)
        if not self.useless:
            self._machine.add_file(f"{_SET_UP}/{device_key}", "")

    def _entry(self, device: facts.Device) -> facts.Hardware:
        ready = self.host.exists(f"{_SET_UP}/{device.key}")
        return facts.Hardware(
            key=device.key,
            kind=device.type.value,
            vendor=device.vendor,
            model=device.model,
            offered=ready,
            reason=None if ready else "no image is loaded",
            setup_required=not ready,
            reboot_required=self.reboot,
        )


def note_hardware(database: Database, compute: str, driver: BareCardDriver) -> None:
    """Store what the driver says of its hardware, as a report of it does."""
    with database.writer() as tx:
        host = tx.execute(sa.select(Host.id).where(Host.name == compute)).scalar_one()
        for one in driver.hardware():
            tx.execute(sa.delete(Hardware).where(Hardware.hardware_key == one.key))
            tx.execute(
                sa.insert(Hardware).values(
                    uuid=str(uuid4()),
                    host_id=host,
                    driver=driver.name,
                    hardware_key=one.key,
                    device_type=one.kind,
                    offered=one.offered,
                    setup_required=one.setup_required,
                    reboot_required=one.reboot_required,
                    reason=one.reason,
                    seen_ms=0,
                )
            )

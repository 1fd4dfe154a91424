# SPDX-License-Identifier: Apache-2.0
"""Cards that have to be set up before anybody can use them."""

from cyborg.drivers.base import Progress, no_progress
from cyborg.drivers.scan import Scan
from cyborg.model import device as facts
from cyborg.tests.fixtures.waiting import Gate
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
        self.gate = Gate()
        self.gate.set()
        self.installed: list[str] = []

    def hardware(self, scan: Scan) -> list[facts.Hardware]:
        """See Driver."""
        return [self._entry(one) for one in self.discover(scan)]

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver."""
        progress(0.5, "writing the flash memory")
        self.gate.hold()
        if self.refusal is not None:
            raise self.refusal
        self.installed.append(device_key)
        if not self.useless:
            self._machine.add_file(f"{_SET_UP}/{device_key}", "")

    def boot(self) -> None:
        """Start the machine anew: no card is set up any more."""
        if self.host.exists(_SET_UP):
            self._machine.remove(_SET_UP)

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

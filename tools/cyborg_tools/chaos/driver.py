# SPDX-License-Identifier: Apache-2.0
"""A packaged driver of a vendor, and its machine: cards as directories of files.

The machine shows what is prepared, whoever was killed on the way, and takes its time for it.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg

from cyborg.drivers.base import Driver, ImageFile, Progress, no_progress
from cyborg.drivers.host import Host
from cyborg.drivers.loader import NAMESPACE
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType, Attribute, Deployable, Device, DeviceType
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit

#: Where the agent finds this module.
_TOOLS = Path(__file__).resolve().parents[2]
_READY, _IDLE = "ready", "idle"
_METADATA = "Metadata-Version: 2.1\nName: cyborg-chaos-driver\nVersion: 1\n"


class Machine:
    """The cards of a host below ``directory``; who looks from outside reads the same files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cards = directory / "cards"
        self._cards.mkdir(parents=True)

    def plug(self, address: str, resource_class: str, *, units: int, seconds: float) -> None:
        """Put a card in that takes ``seconds`` for a preparation."""
        card = self._cards / address
        (card / "units").mkdir(parents=True)
        (card / "class").write_text(resource_class)
        place = PciAddress.parse(address)
        for number in range(1, units + 1):
            unit = PciAddress(place.domain, place.bus, *divmod(number, 8))
            (card / "units" / str(unit)).write_text(_IDLE)
        self.take(address, seconds)

    def take(self, address: str, seconds: float) -> None:
        """Let each preparation, and each release, of a card take this long from now on."""
        file = self.directory / "new"
        file.write_text(str(seconds))
        file.replace(self._cards / address / "seconds")

    @property
    def prepared(self) -> set[tuple[str, str]]:
        files = sorted(self._cards.glob("*/units/*"))
        return {(one.parts[-3], one.name) for one in files if one.read_text() == _READY}

    @property
    def units(self) -> dict[str, str]:
        """The card of each unit there is; no two cards have units of one name."""
        return {one.name: one.parts[-3] for one in sorted(self._cards.glob("*/units/*"))}


class ChaosDriver(Driver):
    """Offers every card of ``[chaos] machine``; its units need preparation."""

    name = "chaos_driver"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        conf.register_opts([cfg.StrOpt("machine", required=True)], group="chaos")
        self._compute: str = conf.host
        self._machine: str = conf.chaos.machine

    def discover(self, scan: Scan) -> list[Device]:
        return [self._device(PciAddress.parse(one)) for one in self._cards()]

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self._bring(task, _READY)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self._bring(task, _IDLE)

    def prepared(self, scan: Scan) -> list[Unit]:
        return [
            Unit(f"{self._compute}_{card}", unit)
            for card in self._cards()
            for unit in self.host.list_dir(self._place(card, "units"))
            if self.host.read_text(self._place(card, "units", unit)) == _READY
        ]

    def _cards(self) -> list[str]:
        return self.host.list_dir(f"{self._machine}/cards")

    def _place(self, card: object, *names: str) -> str:
        return "/".join((f"{self._machine}/cards/{card}", *names))

    def _bring(self, task: HandleTask, state: str) -> None:
        unit = self._place(task.device_key, "units", str(task.handle_key))
        if self.host.read_text(unit) != state:
            time.sleep(float(self.host.read_text(self._place(task.device_key, "seconds"))))
            self.host.write_text(unit, state)

    def _device(self, address: PciAddress) -> Device:
        resource_class = self.host.read_text(self._place(address, "class"))
        handles = tuple(
            AttachHandle(key=one, type=AttachType.PCI, info=PciAddress.parse(one).info())
            for one in self.host.list_dir(self._place(address, "units"))
        )
        deployable = Deployable(
            name=f"{self._compute}_{address}",
            resource_class=resource_class,
            driver_name="chaos",
            handles=handles,
            attributes=(Attribute("rc", resource_class),),
            prepare=True,
        )
        return Device(
            key=str(address),
            type=DeviceType.FPGA,
            vendor="1d22",
            model=resource_class,
            control_path=address.info(),
            deployables=(deployable,),
        )


def install(directory: Path) -> Mapping[str, str]:
    """Announce the driver as an installed distribution does; answers where to look for it."""
    announced = directory / "cyborg_chaos_driver-1.dist-info"
    announced.mkdir(parents=True)
    (announced / "METADATA").write_text(_METADATA)
    entry_point = f"{ChaosDriver.__module__}:{ChaosDriver.__qualname__}"
    (announced / "entry_points.txt").write_text(
        f"[{NAMESPACE}]\n{ChaosDriver.name} = {entry_point}\n"
    )
    return {"PYTHONPATH": os.pathsep.join((str(directory), str(_TOOLS)))}

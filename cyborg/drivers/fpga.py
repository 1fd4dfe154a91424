# SPDX-License-Identifier: Apache-2.0
"""The base class of drivers for FPGA cards that load images."""

import abc
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, NoReturn

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.base import CleanStep, Progress, no_progress
from cyborg.drivers.card_driver import PhysicalCardDriver
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.device import Deployable, DeviceType
from cyborg.model.work import HandleTask, ProgramTask

_UUID = re.compile(r"[0-9a-f]{32}")
#: How long a clean step may take, in seconds: longer than the limit of the tool that it runs.
_CLEAN_TIMEOUT = 900.0
#: The name of the step that loads the blank image.
_BLANK = "blank image"


class FpgaDriver(PhysicalCardDriver):
    """A driver whose cards are one deployable each, into which images can be loaded.

    ``group`` is the section with its options; its ``blank_image`` is loaded after each guest.
    """

    type = DeviceType.FPGA
    can_program = True
    group: ClassVar[str]
    driver_name: ClassVar[str]

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._blank_image: str = conf[self.group].blank_image
        if self._blank_image and not self._blank_image.startswith("/"):
            raise exception.ConfigError(
                reason=f"Option [{self.group}] blank_image must be the absolute path of a file, "
                f"not {self._blank_image!r}."
            )

    @abc.abstractmethod
    def load(self, card: Card, image_path: str, progress: Progress) -> None:
        """Check an image, load it into a card, and check that the card then has it.

        Raises exception.DriverFailed or exception.HostError, and before the check has passed the
        card is not changed.
        """

    def card_deployable(
        self, card: Card, product: Sequence[str], loaded: Sequence[str]
    ) -> Deployable:
        """Return the deployable of a card, with an attach handle for each of its functions.

        ``product`` are the traits that name the product, ``loaded`` those that come from the image.
        """
        units = [
            self.deployable(
                guest,
                resource_class="FPGA",
                driver_name=self.driver_name,
                traits=(*product, *loaded),
                product=product,
            )
            for guest in card.guests
        ]
        return replace(
            units[0],
            name=str(card.unit),
            handles=tuple(handle for unit in units for handle in unit.handles),
            programmable=True,
            group_size=len(units) if self.together else 1,
        )

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; a card is not changed while something on the host uses a part of it."""
        self._load(task.device_key, image_path, progress)

    def clean_names(self, scan: Scan, card: Card, function: PciFunction) -> Sequence[str]:
        """See CardDriver; the blank image replaces that of the last guest.

        Guests of several virtual functions share an image, so it stays when one of them ends.
        """
        blank = self._blank_image and function.parent is None and not function.vfs
        return (*super().clean_names(scan, card, function), *((_BLANK,) if blank else ()))

    def clean_step(self, name: str, card: Card, task: HandleTask) -> CleanStep:
        if name != _BLANK:
            return super().clean_step(name, card, task)
        path = self._blank_image

        def run(progress: Progress) -> None:
            writable = self.host.writable_by_others(path)
            if writable is not None:
                self.failed("clean_steps", f"others than root can change {writable}")
            self._load(card.key, path, progress)

        return CleanStep(_BLANK, run, timeout=_CLEAN_TIMEOUT)

    def _load(self, device_key: str, path: str, progress: Progress) -> None:
        """Load an image into a card of which nothing is in use."""
        card = self.card(device_key, "program")
        if card.reason is not None:
            self.failed("program", f"{card.key}: {card.reason}")
        for address, reason in card.refused.items():
            self.failed("program", f"{address} would change, too, and must not: {reason}")
        self.load(card, path, progress)

    def failed(self, verb: str, reason: str) -> NoReturn:
        """Raise exception.DriverFailed."""
        raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)

    def text(self, path: str) -> str | None:
        """Return a file without white space around it, None if it cannot be read."""
        try:
            text = read_if_exists(self.host.read_text, path)
        except exception.HostError:
            return None
        return None if text is None else text.strip()

    def names_in(self, path: str) -> list[str]:
        """Return the names in a directory, none if it cannot be read."""
        try:
            return self.host.list_dir(path)
        except exception.HostError:
            return []


def uuids(texts: Iterable[str | None]) -> tuple[str, ...]:
    """Return the UUIDs among texts, as 32 hexadecimal digits in order; others are left out.

    A UUID of zeros or ones is what an empty register has, and is left out, too.
    """
    plain = {(text or "").strip().lower().replace("-", "") for text in texts}
    return tuple(sorted(text for text in plain if _UUID.fullmatch(text) and len(set(text)) > 1))

# SPDX-License-Identifier: Apache-2.0
"""The intel_qat_driver: offers the engines of QuickAssist cards for encryption and compression.

Guests get virtual functions, or the whole card if it has none. Devices of generations 4 and 6 run
the services that the configuration requests.

Source: Documentation/ABI/testing/sysfs-driver-qat, sysfs-driver-qat_ras and debugfs-driver-qat of
Linux 6.12; names of the kernel's drivers in drivers/crypto/intel/qat.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import vf_layout
from cyborg.drivers.base import CardLayouts, Progress, no_progress
from cyborg.drivers.card_driver import PhysicalCardDriver, info_of
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Signal

#: The drivers of the kernel for cards whose services can be set, with the most services that one
#: card can combine. Those of older generations are fixed.
_MOST_SERVICES = {"4xxx": 2, "420xx": 2, "6xxx": 3}
_SERVICES = ("sym", "asym", "dc", "dcc", "decomp")
_RESOURCE_CLASS = "CUSTOM_QAT"
_GROUP = "intel_qat"
#: Files with the number of errors since the start, and a word for these errors.
_ERRORS = (("errors_fatal", "fatal"), ("errors_nonfatal", "uncorrectable"))


class IntelQatDriver(PhysicalCardDriver):
    """Cards of all generations; see module."""

    name = "intel_qat_driver"
    type = DeviceType.QAT
    group = _GROUP
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x8086: ("0b40",)}
    named_after_machine: ClassVar[bool] = True

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._services = _read_services(conf[_GROUP].services)
        self._vfs_wanted: int | None = conf[_GROUP].virtual_functions

    def desired_vfs(self, function: PciFunction) -> int | None:
        return self._vfs_wanted

    def device(self, scan: Scan, card: Card) -> Device:
        function, names = card.function, self.names(scan)
        # Profiles in the field request the class alone; a card tells more since it can.
        product = f"CUSTOM_QAT_{function.product:04X}"
        traits = ["OWNER_CYBORG", product]
        traits += [f"CUSTOM_QAT_SVC_{name.upper()}" for name in self._running(card)]
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"0x{function.vendor:04x}",
            model=self.model(function, names),
            control_path=info_of(function.address),
            deployables=tuple(
                self.deployable(
                    guest,
                    resource_class=_RESOURCE_CLASS,
                    driver_name="intel",
                    traits=traits,
                    product=(product,),
                )
                for guest in card.guests
            ),
            std_board_info={"product_id": f"0x{function.product:04x}"},
            vendor_board_info="miss_vb_info",
        )

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the heartbeat of the firmware, the state and the counters of errors."""
        card = self.card(device_key, "health", scan)
        path = f"/sys/bus/pci/devices/{device_key}"
        if card.function.host_driver is not None and self._heartbeat(card) == "-1":
            text = "its firmware does not respond to the heartbeat"
            yield Signal("qat", "heartbeat", -1, text)
        state = self._text(f"{path}/qat/state")
        if state is not None:
            yield Signal("qat", "state", state, f"its state is {state}")
        for file, word in _ERRORS:
            text = self._text(f"{path}/qat_ras/{file}") or "0"
            if text.isdecimal() and int(text):
                plural = "s" if int(text) > 1 else ""
                yield Signal("qat", "ras", file, f"{int(text)} {word} error{plural}")

    def _heartbeat(self, card: Card) -> str | None:
        """Return the status of the firmware: 0 it runs, -1 it does not; None if nothing tells it.

        Only root can read the files below /sys/kernel/debug.
        """
        try:
            return self.host.privileged.run(actions.ReadQatHeartbeat(card.function.address)).strip()
        except exception.HostError:
            return None

    def layouts(self, scan: Scan) -> Sequence[CardLayouts]:
        """See Driver; a layout also names the services, of a card whose services can be set."""
        layouts = []
        divided = {layouts.card: layouts for layouts in super().layouts(scan)}
        for card in self.cards(scan):
            requested, running = self._services, self._running(card)
            listed = divided.get(card.key)
            most = _MOST_SERVICES.get(card.function.host_driver or "")
            if requested is None or most is None:
                layouts += [listed] if listed is not None else []
                continue
            vfs = card.function.vfs
            whole = listed or CardLayouts(
                card=card.key,
                layouts=(f"vfs={vfs}",),
                current=f"vfs={vfs}",
                desired=f"vfs={vfs}",
                deployables=frozenset(
                    self.name_of(function.address) for function in (card.function, *card.guests)
                ),
            )
            refusal = whole.refusal
            if len(requested) > most:
                refusal = f"it can run {most} services at once; shorten [{_GROUP}] services"
            elif refusal is None and requested != running:
                refusal = vf_layout.use(scan, card.function)
            texts = [";".join(services) for services in (running, requested)]
            layouts.append(
                replace(
                    whole,
                    layouts=tuple(
                        f"{name},services={text}" for text in texts for name in whole.layouts
                    ),
                    current=whole.current and f"{whole.current},services={texts[0]}",
                    desired=whole.desired and f"{whole.desired},services={texts[1]}",
                    refusal=refusal,
                )
            )
        return layouts

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        """See Driver; services change while the device is down and has no virtual functions."""
        vfs, _, services = layout.partition(",services=")
        card = self.card(card_key, "partition", Scan(self.host))
        requested = _read_services(services) if services else None
        if requested is not None and requested != self._running(card):
            address = card.function.address
            if (reason := vf_layout.use(Scan(self.host), card.function)) is not None:
                raise exception.DriverFailed(
                    driver=self.name, verb="partition", reason=f"{card_key}: {reason}"
                )
            progress(0.0, f"setting the services {services}")
            if card.function.vfs:
                self.host.privileged.run(actions.SetVfs(address, 0))
            self.host.privileged.run(actions.SetQatState(address, "down"))
            try:
                self.host.privileged.run(actions.SetQatServices(address, requested))
            finally:
                self.host.privileged.run(actions.SetQatState(address, "up"))
            if self._vfs_wanted is None and card.function.vfs:
                self.host.privileged.run(actions.SetVfs(address, card.function.vfs))
        if self._vfs_wanted is not None:
            super().partition(card_key, vfs, progress=progress)

    def _running(self, card: Card) -> tuple[str, ...]:
        """Return the services of a device, in order; none where they are fixed or not readable."""
        text = self._text(f"/sys/bus/pci/devices/{card.key}/qat/cfg_services") or ""
        return tuple(name for name in _SERVICES if name in text.split(";"))

    def _text(self, path: str) -> str | None:
        try:
            text = read_if_exists(self.host.read_text, path)
        except exception.HostError:
            return None
        return text.strip() if text is not None else None


def _read_services(text: str) -> tuple[str, ...] | None:
    """Return the services of a text such as "sym;dc" in their order; None for an empty one.

    Raises exception.ConfigError for words that name no service.
    """
    if not text:
        return None
    words = re.split(r"\s*;\s*", text.strip())
    unknown = [word for word in words if word not in _SERVICES]
    if unknown or len(set(words)) < len(words):
        raise exception.ConfigError(
            reason=f"Option [{_GROUP}] services cannot be {text!r}: it must be different names of "
            f"{', '.join(_SERVICES)}, separated by semicolons."
        )
    return tuple(name for name in _SERVICES if name in words)

# SPDX-License-Identifier: Apache-2.0
"""The driver of the Example card: it offers whole cards, each to one guest."""

import contextlib
from pathlib import Path

from cyborg import exception
from cyborg.drivers.base import Driver, no_progress
from cyborg.model.device import AttachHandle, AttachType, Attribute, Deployable, Device, DeviceType
from cyborg.model.health import Signal
from cyborg.model.work import Unit

VENDOR, PRODUCT = 0x1D55, 0x0001
RESOURCE_CLASS = "CUSTOM_EXAMPLE"
TRAITS = ("OWNER_CYBORG", "CUSTOM_EXAMPLE_CARD")
# The files of the card's kernel module, with their text for a guest and for an idle card. The last
# one tells that the card is prepared.
SETTINGS = (("scheduler", "exclusive", "shared"), ("mode", "guest", "host"))


class MyDriver(Driver):
    name = "my_driver"
    remote_options = frozenset()  # no option that names devices, commands or files
    health_entries = Path(__file__).with_name("health.d")

    def __init__(self, host, conf):
        super().__init__(host, conf)
        self.node = conf.host

    def discover(self, scan):
        devices = []
        for card in self.cards(scan):
            managed = scan.is_managed(self.name_of(card))
            if scan.refusal(card, managed=managed) is None:
                # An error means that the card has just been removed.
                with contextlib.suppress(exception.HostError):
                    devices.append(scan.with_facts(self.device(card), card))
        return sorted(devices, key=lambda device: device.key)

    # Absolute values, written in one order and taken back in the other: each call can be repeated,
    # also after one that was interrupted.
    def prepare(self, task, image=None, *, progress=no_progress):
        for file, guest, _ in SETTINGS:
            self.host.write_text(self.path(task.device_key, file), guest)

    def release(self, task, *, progress=no_progress):
        for file, _, idle in reversed(SETTINGS):
            self.host.write_text(self.path(task.device_key, file), idle)

    def prepared(self, scan):
        file, guest, _ = SETTINGS[-1]
        return [
            Unit(self.name_of(card), str(card.address))
            for card in self.cards(scan)
            if self.read(str(card.address), file) == guest
        ]

    def signals(self, scan, device_key):
        text = self.read(device_key, "health")
        yield Signal("example", "health", text, f"the card reports {text or 'nothing'}")

    def cards(self, scan):
        cards = scan.functions.values()
        return [card for card in cards if (card.vendor, card.product) == (VENDOR, PRODUCT)]

    def path(self, key, file):
        return f"/sys/bus/pci/devices/{key}/{file}"

    def read(self, key, file):
        return self.host.read_text(self.path(key, file)).strip()

    def name_of(self, card):
        return f"{self.node}_{card.address}"

    def device(self, card):
        key, info = str(card.address), card.address.info()
        deployable = Deployable(
            name=self.name_of(card),
            resource_class=RESOURCE_CLASS,
            driver_name="EXAMPLE",
            handles=(AttachHandle(key, AttachType.PCI, info),),
            traits=TRAITS,
            attributes=(
                Attribute("rc", RESOURCE_CLASS),
                *(Attribute(f"trait{number}", trait) for number, trait in enumerate(TRAITS)),
            ),
            prepare=True,
        )
        return Device(key, DeviceType.AICHIP, f"{VENDOR:04x}", "Example card", info, (deployable,))

# SPDX-License-Identifier: Apache-2.0
"""The driver of the Example card: it offers whole cards, each to one guest."""

import contextlib

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.model.device import AttachHandle, AttachType, Attribute, Deployable, Device, DeviceType

VENDOR, PRODUCT = 0x1D55, 0x0001
RESOURCE_CLASS = "CUSTOM_EXAMPLE"
TRAITS = ("OWNER_CYBORG", "CUSTOM_EXAMPLE_CARD")


class MyDriver(Driver):
    name = "my_driver"

    def __init__(self, host, conf):
        super().__init__(host, conf)
        self.node = conf.host

    def discover(self, scan):
        devices = []
        for card in scan.functions.values():
            if (card.vendor, card.product) == (VENDOR, PRODUCT):
                managed = scan.is_managed(self.name_of(card))
                if scan.refusal(card, managed=managed) is None:
                    # An error means that the card has just been removed.
                    with contextlib.suppress(exception.HostError):
                        devices.append(scan.with_facts(self.device(card), card))
        return sorted(devices, key=lambda device: device.key)

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
        )
        return Device(key, DeviceType.AICHIP, f"{VENDOR:04x}", "Example card", info, (deployable,))

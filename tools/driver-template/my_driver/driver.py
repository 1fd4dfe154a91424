# SPDX-License-Identifier: Apache-2.0
"""The driver of the Example card: it offers whole cards, each to one guest."""

from cyborg.drivers import ownership, pci_scan
from cyborg.drivers.base import EMPTY_CONTEXT, Driver
from cyborg.drivers.pci_function import parse_function
from cyborg.model.device import AttachHandle, AttachType, Attribute, Deployable, Device, DeviceType

VENDOR, PRODUCT = 0x1D55, 0x0001
RESOURCE_CLASS = "CUSTOM_EXAMPLE"
TRAITS = ("OWNER_CYBORG", "CUSTOM_EXAMPLE_CARD")


class MyDriver(Driver):
    name = "my_driver"

    def __init__(self, host, conf):
        super().__init__(host, conf)
        self.node = conf.host

    def discover(self, context=EMPTY_CONTEXT):
        snapshot = pci_scan.read(self.host)
        uses = ownership.host_uses(snapshot)
        devices = []
        for raw in snapshot.functions:
            try:
                card = parse_function(raw)
            except ValueError:
                continue  # it is not known which card this is, so it is not offered
            if (card.vendor, card.product) == (VENDOR, PRODUCT):
                managed = self.name_of(card) in context.managed_deployables
                reason = ownership.refusal_reason(
                    card, uses, snapshot.open_vfio, context, managed=managed
                )
                if reason is None:
                    devices.append(self.device(card))
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

# SPDX-License-Identifier: Apache-2.0
"""The driver of the Example card: whole cards, one for each guest."""

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
        busy = ownership.host_uses(snapshot)
        found = []
        for raw in snapshot.functions:
            try:
                card = parse_function(raw)
            except ValueError:
                continue  # nobody can tell what it is: it is not offered
            if (card.vendor, card.product) == (VENDOR, PRODUCT):
                ours = self.name_of(card) in context.managed_deployables
                if not ownership.refusal_reason(card, busy, snapshot.open_vfio, context, ours=ours):
                    found.append(self.device(card))
        return sorted(found, key=lambda one: one.key)

    def name_of(self, card):
        return f"{self.node}_{card.address}"

    def device(self, card):
        key, info = str(card.address), card.address.info()
        unit = Deployable(
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
        return Device(key, DeviceType.AICHIP, f"{VENDOR:04x}", "Example card", info, (unit,))

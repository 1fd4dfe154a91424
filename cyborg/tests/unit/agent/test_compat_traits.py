# SPDX-License-Identifier: Apache-2.0
"""The traits that the existing service published, beside those of this service."""

from dataclasses import replace

import pytest

from cyborg.agent.compat_traits import with_compat_traits
from cyborg.model.device import Attribute, Deployable, Device, DeviceType

INTEL, ARRIA10 = "CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_INTEL_PAC_ARRIA10"
D5005 = "CUSTOM_FPGA_PRODUCT_ID_0B2B"
DRIVER = "intel_fpga_driver"


def card(*traits: str) -> Device:
    unit = Deployable(
        "unit",
        "FPGA",
        "intel",
        (),
        traits=traits,
        attributes=(Attribute("rc", "FPGA"),),
        product_traits=traits,
    )
    return Device("key", DeviceType.FPGA, "0x8086", "model", {}, (unit,))


def test_card_also_has_the_trait_of_the_existing_service() -> None:
    (unit,) = with_compat_traits(DRIVER, card(INTEL, D5005)).deployables
    assert unit.traits == (INTEL, D5005, ARRIA10)
    # The conductor publishes the attributes whose key begins with trait.
    assert unit.attributes == (Attribute("rc", "FPGA"), Attribute("trait_existing", ARRIA10))
    assert unit.product_traits == (INTEL, D5005)


@pytest.mark.parametrize(
    ("driver", "device"),
    [
        (DRIVER, card(INTEL, ARRIA10)),
        (DRIVER, card()),
        (DRIVER, replace(card(INTEL, D5005), operator_created=True)),
        ("xilinx_fpga_driver", card("CUSTOM_FPGA_XILINX")),
        ("other_driver", card(INTEL)),
    ],
)
def test_other_devices_do_not_change(driver: str, device: Device) -> None:
    assert with_compat_traits(driver, device) == device

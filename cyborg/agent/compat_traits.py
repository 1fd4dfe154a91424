# SPDX-License-Identifier: Apache-2.0
"""The traits that the existing service published too, for ``[agent] compat_traits``; pure.

Most traits have not changed. The table has those of release 17.0.0 that differ. A device keeps its
own traits, and these do not name its product.
"""

from collections.abc import Mapping
from typing import Final

from cyborg.agent.topology_traits import with_traits
from cyborg.model.device import Device

#: Driver → trait of a deployable → the trait that the existing service published beside it.
_PUBLISHED: Final[Mapping[str, Mapping[str, str]]] = {
    # The existing service gives all cards of Intel the trait of one of them.
    "intel_fpga_driver": {"CUSTOM_FPGA_INTEL": "CUSTOM_FPGA_INTEL_PAC_ARRIA10"},
}


def with_compat_traits(driver: str, device: Device) -> Device:
    """Return a device of a driver whose deployables also have the traits of the existing service.

    Deployables that an operator created keep the traits of the operator.
    """
    published = _PUBLISHED.get(driver, {})
    if not published or device.operator_created:
        return device
    return with_traits(
        device,
        lambda deployable: [
            ("trait_existing", published[trait])
            for trait in deployable.traits
            if trait in published
        ],
    )

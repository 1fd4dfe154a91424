# SPDX-License-Identifier: Apache-2.0
"""The inspur_fpga_driver: offers FPGA boards of Inspur, such as the F10A, as whole functions.

The boards run OpenCL kernels, which the software in the guest loads.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from cyborg.drivers.card_driver import ListedCardDriver
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.device import DeviceType

_INSPUR = 0x1BD4
#: The class code in 16 bits, and the name that it has in pci.ids. SSDs of Inspur have another one.
_CLASS, _CLASS_NAME = 0x1200, "Processing accelerators"


class InspurFpgaDriver(ListedCardDriver):
    """All processing accelerators of Inspur; see module."""

    name = "inspur_fpga_driver"
    type = DeviceType.FPGA
    resource_class: ClassVar[str] = "FPGA"
    vf_resource_class: ClassVar[str] = "FPGA"
    vendor_word: ClassVar[str] = "INSPUR"
    trait_word: ClassVar[str] = "FPGA_PRODUCT_ID"
    group: ClassVar[str] = "inspur_fpga"
    divisible: ClassVar[bool] = False
    vendor_board_info: ClassVar[str | None] = '{"vendor_info": "fpga_vb_info"}'

    def selects(self, function: PciFunction) -> bool:
        return function.vendor == _INSPUR and function.class_code >> 8 == _CLASS

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        return "CUSTOM_FPGA_INSPUR", *super().product_traits(function)

    def traits(self, function: PciFunction) -> Sequence[str]:
        """Return the traits of the existing service, under their keys, and the owner."""
        return *self.product_traits(function), "OWNER_CYBORG"

    def std_board_info(self, function: PciFunction) -> Mapping[str, str | None]:
        return {**super().std_board_info(function), "controller": _CLASS_NAME}

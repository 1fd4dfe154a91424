# SPDX-License-Identifier: Apache-2.0
"""PCI addresses: one canonical spelling, whatever form they arrive in; and names made of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-fA-F]{1,8}):)?(?P<bus>[0-9a-fA-F]{1,2}):"
    r"(?P<device>[0-9a-fA-F]{1,2})\.(?P<function>[0-9a-fA-F])"
)


@dataclass(frozen=True, order=True)
class PciAddress:
    """One PCI function; ``str()`` gives the kernel's form ``dddd:bb:dd.f`` in lower-case hex."""

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"

    @classmethod
    def parse(cls, text: str) -> "PciAddress":
        """Read ``[dddd:]bb:dd.f``; raises ValueError when it is none."""
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a PCI address (dddd:bb:dd.f)")
        parts = match.groupdict(default="0")
        return cls(*(int(parts[name], 16) for name in ("domain", "bus", "device", "function")))

    @classmethod
    def from_info(cls, info: Mapping[str, str]) -> "PciAddress":
        """Read the four hexadecimal strings of an attach handle or a control path.

        Raises ValueError when one is missing or no hexadecimal number.
        """
        try:
            return cls(
                *(int(str(info[name]), 16) for name in ("domain", "bus", "device", "function"))
            )
        except KeyError as missing:
            raise ValueError(f"a PCI address needs {missing}") from missing

    def info(self) -> dict[str, str]:
        """Return the four strings that Nova's libvirt driver reads (hex, no ``0x``)."""
        return {
            "domain": f"{self.domain:04x}",
            "bus": f"{self.bus:02x}",
            "device": f"{self.device:02x}",
            "function": f"{self.function:x}",
        }


def deployable_name(node: str, address: PciAddress) -> str:
    """Return the name of a function's deployable, and of its provider in Placement.

    The format must not change, because existing allocations refer to the name.
    """
    return f"{node}_{address}"

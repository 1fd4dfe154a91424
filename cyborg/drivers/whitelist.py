# SPDX-License-Identifier: Apache-2.0
"""The operator's word which PCI functions may be offered: ``[pci] passthrough_whitelist``.

The forms are those of Nova's device specification, which deployers write for both services.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cyborg import exception
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.pci import PciAddress

_OPTION = "[pci] passthrough_whitelist"
#: The parts of an address, the most that each can be, and how many digits the kernel prints.
_PARTS = (("domain", 0xFFFFFFFF, 4), ("bus", 0xFF, 2), ("slot", 0x1F, 2), ("function", 7, 1))
_HEXADECIMAL = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,8})")
_KEYS = frozenset({"vendor_id", "product_id", "address", "devname", "force"})
#: Neutron keeps 64 characters of such a name.
_NETWORK = re.compile(r"[!-~]{1,64}")


@dataclass(frozen=True)
class Glob:
    """An address in which None stands for anything, in the order of ``_PARTS``."""

    parts: tuple[int | None, int | None, int | None, int | None]

    def matches(self, address: PciAddress) -> bool:
        """Whether every given part is that of the address."""
        return all(
            want is None or want == have
            for want, have in zip(self.parts, _split(address), strict=True)
        )

    @property
    def is_full(self) -> bool:
        """Whether it names exactly one function."""
        return None not in self.parts


@dataclass(frozen=True)
class Patterns:
    """An address by one regular expression per part, matched from the part's beginning."""

    parts: tuple[re.Pattern[str], ...]

    #: A pattern never names one physical function, so that no virtual one is meant by it.
    is_full = False

    def matches(self, address: PciAddress) -> bool:
        """Whether every part matches, in lower-case digits as the kernel prints them."""
        texts = (
            f"{value:0{digits}x}"
            for value, (_, _, digits) in zip(_split(address), _PARTS, strict=True)
        )
        return all(one.match(text) for one, text in zip(self.parts, texts, strict=True))


@dataclass(frozen=True)
class Entry:
    """One entry: everything that is given must match. ``force`` overrules the ownership guard.

    ``physical_network`` is Neutron's name of what the functions are cabled to.
    """

    vendor: int | None = None
    product: int | None = None
    address: Glob | Patterns | None = None
    devname: str | None = None
    force: bool = False
    physical_network: str | None = None

    def matches(
        self, function: PciFunction, interfaces: Mapping[str, PciAddress], *, ours: bool
    ) -> bool:
        """Whether the entry means this function.

        An entry that names one physical function means its virtual ones too. ``interfaces`` tells
        which function each network interface belongs to.
        """
        if self.vendor not in {None, function.vendor}:
            return False
        if self.product not in {None, function.product}:
            return False
        if self.devname is None:
            return self.address is None or _reaches(self.address, function)
        named = interfaces.get(self.devname)
        if named is None:
            # A function in a guest has no interface here. If it was ours before, it stays so:
            # nothing else could have matched it.
            return ours and function.on_vfio
        return _reaches(Glob(_split(named)), function)


def network_of(
    matching: Sequence[Entry], function: PciFunction, interfaces: Mapping[str, PciAddress]
) -> str | None:
    """The physical network of a function that these entries match, None when nothing tells.

    The first entry that gives one counts. Where only interfaces that are not here could tell, for
    guests have them, all these entries must agree: a guest in the wrong network is worse than
    none.
    """
    sure = [one for one in matching if one.matches(function, interfaces, ours=False)]
    if sure:
        return next((one.physical_network for one in sure if one.physical_network), None)
    networks = {one.physical_network for one in matching}
    return networks.pop() if len(networks) == 1 else None


def parse(texts: Sequence[str]) -> tuple[Entry, ...]:
    """Read the values of the option; each is a JSON object or a list of them.

    Raises exception.ConfigError with one sentence that names option, value and what is wrong.
    """
    entries: list[Entry] = []
    for text in texts:
        try:
            value = json.loads(text)
            entries.extend(_entry(one) for one in (value if isinstance(value, list) else [value]))
        except json.JSONDecodeError as error:
            raise _refuse(text, f"it is not JSON ({error})") from None
        except ValueError as error:
            raise _refuse(text, str(error)) from None
    return tuple(entries)


def _refuse(text: str, reason: str) -> exception.ConfigError:
    return exception.ConfigError(reason=f"Option {_OPTION} cannot be {text!r}: {reason}.")


def _entry(value: Any) -> Entry:
    """Read one object; keys that are not named here are the operator's own tags."""
    if not isinstance(value, dict):
        raise ValueError(f"{json.dumps(value)} is not a JSON object")
    if value and not _KEYS & value.keys():
        # A typing error in the only key would otherwise offer everything.
        raise ValueError(f"it has none of the keys {', '.join(sorted(_KEYS))}")
    devname, force = value.get("devname"), value.get("force", False)
    if devname is not None and "address" in value:
        raise ValueError("address and devname exclude each other")
    if devname is not None and (not isinstance(devname, str) or not devname):
        raise ValueError("devname is not the name of a network interface")
    if not isinstance(force, bool):
        raise ValueError("force is neither true nor false")
    return Entry(
        vendor=_id(value, "vendor_id"),
        product=_id(value, "product_id"),
        address=_address(value["address"]) if "address" in value else None,
        devname=devname,
        force=force,
        physical_network=network_name(value["physical_network"])
        if "physical_network" in value
        else None,
    )


def network_name(given: object) -> str:
    """The name of a physical network; raises ValueError with a clause when it is none."""
    if not isinstance(given, str) or _NETWORK.fullmatch(given) is None:
        raise ValueError(
            "physical_network is no name of 1 to 64 ASCII characters without blanks; leave it "
            "out for functions that ports of Neutron do not use"
        )
    return given


def _id(value: dict[str, Any], key: str) -> int | None:
    text = value.get(key, "*")
    # A blank here is more likely a template's mistake than the wish to offer everything.
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key} is no string of hexadecimal digits or '*'")
    return _part(text, key, 0xFFFF)


def _part(text: str, name: str, most: int) -> int | None:
    """One number in hexadecimal digits; None for ``*`` and blank."""
    text = text.strip()
    if text in {"", "*"}:
        return None
    match = _HEXADECIMAL.fullmatch(text)
    if match is None or int(match[1], 16) > most:
        raise ValueError(f"{name} {text!r} is neither '*' nor hexadecimal up to {most:x}")
    return int(match[1], 16)


def _address(value: Any) -> Glob | Patterns:
    if isinstance(value, str):
        return glob(value)
    if not isinstance(value, dict):
        raise ValueError("address is neither a string nor an object of regular expressions")
    known = [name for name, _, _ in _PARTS]
    for name, pattern in value.items():
        if name not in known:
            raise ValueError(f"address has no part {name!r}, only {', '.join(known)}")
        if not isinstance(pattern, str):
            raise ValueError(f"{name} of address is not a regular expression")
    return Patterns(tuple(_pattern(name, value.get(name, "")) for name in known))


def _pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{name} {text!r} is not a regular expression ({error})") from None


def glob(text: str) -> Glob:
    """Read ``domain:bus:slot.function``; parts may be missing from the left, or be blank.

    Raises ValueError with a clause that tells what is wrong.
    """
    place, _, function = text.partition(".")
    fields = place.split(":")
    if len(fields) > 3:
        raise ValueError(f"address {text!r} is not of the form domain:bus:slot.function")
    texts = [*[""] * (3 - len(fields)), *fields, function]
    domain, bus, slot, last = (
        _part(part, f"{name} of address", most)
        for part, (name, most, _) in zip(texts, _PARTS, strict=True)
    )
    return Glob((domain, bus, slot, last))


def _split(address: PciAddress) -> tuple[int, int, int, int]:
    return address.domain, address.bus, address.device, address.function


def _reaches(spec: Glob | Patterns, function: PciFunction) -> bool:
    if spec.matches(function.address):
        return True
    return spec.is_full and function.parent is not None and spec.matches(function.parent)

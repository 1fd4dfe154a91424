# SPDX-License-Identifier: Apache-2.0
"""Parse ``[pci] passthrough_whitelist``, which names the PCI functions that may be offered.

The syntax is that of Nova's device specification, because deployers write it for both services.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cyborg import exception
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.pci import PciAddress

_OPTION = "[pci] passthrough_whitelist"
#: The parts of an address: name, maximum value and number of digits that the kernel prints.
_PARTS = (("domain", 0xFFFFFFFF, 4), ("bus", 0xFF, 2), ("slot", 0x1F, 2), ("function", 7, 1))
_HEXADECIMAL = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,8})")
_KEYS = frozenset({"vendor_id", "product_id", "address", "devname", "force"})
#: Neutron stores at most 64 characters of a physical network's name.
_NETWORK = re.compile(r"[!-~]{1,64}")


@dataclass(frozen=True)
class Glob:
    """An address whose parts, in the order of ``_PARTS``, may be None for any value."""

    parts: tuple[int | None, int | None, int | None, int | None]

    def matches(self, address: PciAddress) -> bool:
        """Return whether every part is None or equal to that of the address."""
        return all(
            expected is None or expected == actual
            for expected, actual in zip(self.parts, _split(address), strict=True)
        )

    @property
    def is_full(self) -> bool:
        """Return whether the address names exactly one function."""
        return None not in self.parts


@dataclass(frozen=True)
class Patterns:
    """An address with one regular expression per part, matched from the start of the part."""

    parts: tuple[re.Pattern[str], ...]

    #: A pattern never names exactly one physical function, so it does not include its VFs.
    is_full = False

    def matches(self, address: PciAddress) -> bool:
        """Return whether every part matches, in lower-case digits as the kernel prints them."""
        texts = (
            f"{value:0{digits}x}"
            for value, (_, _, digits) in zip(_split(address), _PARTS, strict=True)
        )
        return all(part.match(text) for part, text in zip(self.parts, texts, strict=True))


@dataclass(frozen=True)
class Entry:
    """One entry: all fields that are set must match. ``force`` skips the ownership check.

    ``physical_network`` is Neutron's name of the network to which the functions are connected.
    ``others`` are the keys that this module does not know, with their values.
    """

    vendor: int | None = None
    product: int | None = None
    address: Glob | Patterns | None = None
    devname: str | None = None
    force: bool = False
    physical_network: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def matches(
        self, function: PciFunction, interfaces: Mapping[str, PciAddress], *, managed: bool
    ) -> bool:
        """Return whether the entry includes this function.

        An entry that names one physical function includes its virtual functions. ``interfaces``
        maps each network interface to its function. ``managed`` says that the conductor keeps the
        function as a deployable.
        """
        if self.vendor not in {None, function.vendor}:
            return False
        if self.product not in {None, function.product}:
            return False
        if self.devname is None:
            return self.address is None or _includes(self.address, function)
        address = interfaces.get(self.devname)
        if address is None:
            # A function in a guest has no interface on the host. A managed function still matches:
            # only an entry with this devname can have matched it before.
            return managed and function.on_vfio
        return _includes(Glob(_split(address)), function)


def network_of(
    matching: Sequence[Entry], function: PciFunction, interfaces: Mapping[str, PciAddress]
) -> str | None:
    """Return the physical network of a function that these entries match, or None.

    The first entry with a network decides. If the entries match only because the function's
    interface may be in a guest, all of them must have the same network: a guest in a wrong network
    is worse than a function without one.
    """
    certain = [entry for entry in matching if entry.matches(function, interfaces, managed=False)]
    if certain:
        return next((entry.physical_network for entry in certain if entry.physical_network), None)
    networks = {entry.physical_network for entry in matching}
    return networks.pop() if len(networks) == 1 else None


def parse(
    texts: Sequence[str],
    option: str = _OPTION,
    check: Callable[[Entry], None] = lambda entry: None,
) -> tuple[Entry, ...]:
    """Parse the values of an option; each is a JSON object or a list of them.

    ``check`` raises ValueError with a clause for an entry that the option cannot have. Raises
    exception.ConfigError with one sentence that contains option, value and reason.
    """
    entries: list[Entry] = []
    for text in texts:
        try:
            value = json.loads(text)
            objects = value if isinstance(value, list) else [value]
            parsed = [_parse_entry(item) for item in objects]
            for entry in parsed:
                check(entry)
            entries.extend(parsed)
        except json.JSONDecodeError as error:
            raise _invalid(option, text, f"it is not JSON ({error})") from None
        except ValueError as error:
            raise _invalid(option, text, str(error)) from None
        except RecursionError:
            raise _invalid(option, text, "it is nested too deeply") from None
    return tuple(entries)


def _invalid(option: str, text: str, reason: str) -> exception.ConfigError:
    return exception.ConfigError(reason=f"Option {option} cannot be {text!r}: {reason}.")


def _parse_entry(value: Any) -> Entry:
    """Parse one object; other keys than the ones here are the operator's own tags."""
    if not isinstance(value, dict):
        raise ValueError(f"{json.dumps(value)} is not a JSON object")
    if value and not _KEYS & value.keys():
        # Otherwise a typing error in the only key would offer all functions.
        raise ValueError(f"it has none of the keys {', '.join(sorted(_KEYS))}")
    devname, force = value.get("devname"), value.get("force", False)
    if devname is not None and "address" in value:
        raise ValueError("address and devname exclude each other")
    if devname is not None and (not isinstance(devname, str) or not devname):
        raise ValueError("devname is not the name of a network interface")
    if not isinstance(force, bool):
        raise ValueError("force is neither true nor false")
    return Entry(
        vendor=_parse_id(value, "vendor_id"),
        product=_parse_id(value, "product_id"),
        address=_parse_address(value["address"]) if "address" in value else None,
        devname=devname,
        force=force,
        physical_network=network_name(value["physical_network"])
        if "physical_network" in value
        else None,
        others={key: value[key] for key in value.keys() - _KEYS - {"physical_network"}},
    )


def network_name(value: object) -> str:
    """Return the name of a physical network; raises ValueError with a clause if it is not valid."""
    if not isinstance(value, str) or _NETWORK.fullmatch(value) is None:
        raise ValueError(
            "physical_network is not a name of 1 to 64 ASCII characters without blanks; omit it "
            "for functions that no port of Neutron uses"
        )
    return value


def network_trait(network: str) -> str:
    """Return the trait with which a device profile requests a function on a physical network."""
    return "CUSTOM_" + re.sub(r"[^A-Z0-9_]", "_", network.upper())


def _parse_id(value: dict[str, Any], key: str) -> int | None:
    text = value.get(key, "*")
    # A blank is more likely a template's mistake than the intention to offer all functions.
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key} is not a string of hexadecimal digits or '*'")
    return _parse_part(text, key, 0xFFFF)


def _parse_part(text: str, name: str, maximum: int) -> int | None:
    """Return the value of hexadecimal digits, None for ``*`` and blank."""
    text = text.strip()
    if text in {"", "*"}:
        return None
    match = _HEXADECIMAL.fullmatch(text)
    if match is None or int(match[1], 16) > maximum:
        raise ValueError(f"{name} {text!r} is neither '*' nor hexadecimal up to {maximum:x}")
    return int(match[1], 16)


def _parse_address(value: Any) -> Glob | Patterns:
    if isinstance(value, str):
        return glob(value)
    if not isinstance(value, dict):
        raise ValueError("address is neither a string nor an object of regular expressions")
    names = [name for name, _, _ in _PARTS]
    for name, pattern in value.items():
        if name not in names:
            raise ValueError(f"address has no part {name!r}, only {', '.join(names)}")
        if not isinstance(pattern, str):
            raise ValueError(f"{name} of address is not a regular expression")
    patterns = []
    for name in names:
        text = value.get(name, "")
        try:
            patterns.append(re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{name} {text!r} is not a regular expression ({error})") from None
    return Patterns(tuple(patterns))


def glob(text: str) -> Glob:
    """Parse ``domain:bus:slot.function``; parts may be blank, or be missing from the left.

    Raises ValueError with a clause that says what is not valid.
    """
    prefix, _, function = text.partition(".")
    fields = prefix.split(":")
    if len(fields) > 3:
        raise ValueError(f"address {text!r} is not of the form domain:bus:slot.function")
    texts = [*[""] * (3 - len(fields)), *fields, function]
    domain, bus, slot, last = (
        _parse_part(part, f"{name} of address", maximum)
        for part, (name, maximum, _) in zip(texts, _PARTS, strict=True)
    )
    return Glob((domain, bus, slot, last))


def _split(address: PciAddress) -> tuple[int, int, int, int]:
    return address.domain, address.bus, address.device, address.function


def _includes(spec: Glob | Patterns, function: PciFunction) -> bool:
    if spec.matches(function.address):
        return True
    return spec.is_full and function.parent is not None and spec.matches(function.parent)

# SPDX-License-Identifier: Apache-2.0
"""Read the options that describe a kind of device, from a file of either form.

A section of the configuration and an entry of the device catalogue have the same options. Both are
a ``Source`` of the functions here, so that a value is valid in both or in neither.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, Protocol, TypeVar

from cyborg.drivers import generic_match
from cyborg.drivers.generic_match import PciIds
from cyborg.model.device import DeviceType
from cyborg.model.provider import is_resource_class_name, is_trait_name

T = TypeVar("T")

#: Width of the database columns for texts that are shown.
_TEXT_WIDTH = 255
#: The name of a driver: that of its entry point.
_DRIVER_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_BACKEND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: The functions of a card that share domain, bus and device number: most, and if nothing is set.
_MOST_OF_CARD, _USUAL_OF_CARD = 8, 2
_KIND = re.compile(r"[A-Za-z0-9_]{1,64}")
#: The units of memory, in bytes.
_BYTES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MEMORY = re.compile(rf"([1-9][0-9]{{0,8}}) ?({'|'.join(_BYTES)})")
#: The most levels of a JSON object of capabilities.
_MOST_LEVELS = 32


class Reset(StrEnum):
    """How the data of the last guest leaves a device.

    VFIO resets a function when its last user closes it, by the first working method of the
    function's ``reset_method`` (sysfs-bus-pci in the kernel's ABI documents). FUNCTION: this is
    enough. BUS: only a reset of the bus above the card is. NONE: the device has no reset.
    """

    FUNCTION = "FUNCTION"
    BUS = "BUS"
    NONE = "NONE"


class UnitScope(StrEnum):
    """Which functions of a section make one unit for a guest; see ``cyborg.conf.generic``."""

    FUNCTION = "FUNCTION"
    CARD = "CARD"
    ALL = "ALL"


class Source(Protocol):
    """Where options have their values, converted to the types of ``cyborg.conf.generic``."""

    def value(self, option: str) -> Any:
        """Return the value of an option; its default if it is not set."""
        ...

    def invalid(self, option: str, reason: str) -> NoReturn:
        """Raise exception.ConfigError with one sentence; ``reason`` is a clause."""
        ...


@dataclass(frozen=True)
class Description:
    """The options that a section and an entry of the catalogue have in common.

    ``classes`` are the first digits of class codes. ``group_size`` is the number of functions that
    guests get together; with ``unit`` FUNCTION it is 1. None and empty: not set.
    """

    ids: tuple[PciIds, ...] = ()
    subsystems: tuple[PciIds, ...] = ()
    classes: tuple[str, ...] = ()
    device_type: DeviceType | None = None
    kind: str | None = None
    vendor: str | None = None
    model: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    capabilities: dict[str, Any] = field(default_factory=dict)
    reset: Reset | None = None
    unit: UnitScope = UnitScope.FUNCTION
    group_size: int = 1


def read_description(source: Source) -> Description:
    """Return the description from a source; raises exception.ConfigError."""
    unit, group_size = _read_unit(source)
    return Description(
        ids=parse_list(source, "pci_ids", generic_match.parse_pci_id),
        subsystems=parse_list(source, "subsystem_ids", generic_match.parse_pci_id),
        classes=parse_list(source, "pci_classes", generic_match.parse_class_code),
        device_type=parse_optional(source, "device_type", member_of(DeviceType)),
        kind=parse_optional(
            source, "kind", word_of(_KIND, "it is not a word of 1 to 64 letters, digits and _")
        ),
        vendor=parse_optional(source, "vendor", parse_text),
        model=parse_optional(source, "model", parse_text),
        resource_class=parse_optional(source, "resource_class", parse_resource_class),
        traits=parse_list(source, "traits", parse_trait),
        capabilities=parse(source, "capabilities", _parse_json_object),
        reset=parse_optional(source, "reset", member_of(Reset)),
        unit=unit,
        group_size=group_size,
    )


def _read_unit(source: Source) -> tuple[UnitScope, int]:
    """Return which functions make a unit, and their number."""
    unit = parse_optional(source, "unit", member_of(UnitScope)) or UnitScope.FUNCTION
    number: int | None = source.value("unit_functions")
    if unit is UnitScope.FUNCTION:
        if number is not None:
            source.invalid("unit_functions", "it has an effect only with unit CARD or ALL")
        return unit, 1
    if number is None and unit is UnitScope.ALL:
        source.invalid("unit", "unit_functions must be set, too")
    if unit is UnitScope.CARD and (number or 0) > _MOST_OF_CARD:
        source.invalid("unit_functions", f"a card has at most {_MOST_OF_CARD} functions")
    return unit, number or _USUAL_OF_CARD


def parse(source: Source, option: str, parser: Callable[[Any], T]) -> T:
    """Return the parsed value of an option; a ValueError of the parser has a clause."""
    try:
        return parser(source.value(option))
    except ValueError as error:
        source.invalid(option, str(error))


def parse_optional(source: Source, option: str, parser: Callable[[Any], T]) -> T | None:
    """Return the parsed value of an option, None if it is not set."""
    return None if source.value(option) is None else parse(source, option, parser)


def parse_list(source: Source, option: str, parser: Callable[[str], T]) -> tuple[T, ...]:
    """Return the parsed items of an option that is a list."""
    return parse(source, option, lambda values: tuple(parser(value) for value in values))


def member_of(enumeration: type[T]) -> Callable[[str], T]:
    """Return a function that parses the name of a member of an enumeration."""

    def parse_member(text: str) -> T:
        members: dict[str, T] = {str(member): member for member in enumeration}  # type: ignore[attr-defined]
        if text.upper() not in members:
            raise ValueError(f"it is none of {', '.join(members)}")
        return members[text.upper()]

    return parse_member


def word_of(pattern: re.Pattern[str], reason: str) -> Callable[[str], str]:
    """Return a function that returns a text if it matches, and raises ValueError if not."""

    def parse_word(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(reason)
        return text

    return parse_word


def parse_backend_name(text: str) -> str:
    """Return the name of a backend; raises ValueError with a clause for any other text."""
    if _BACKEND.fullmatch(text) is None:
        raise ValueError("it is not a name of letters, digits, - and _")
    return text


def parse_driver_name(text: str) -> str:
    """Return the name of a driver; raises ValueError with a clause for any other text."""
    if not _DRIVER_NAME.fullmatch(text):
        raise ValueError("it is not the name of a driver, such as amd_gpu_driver")
    return text


def parse_memory(text: str) -> int:
    """Return a size such as ``80 GiB`` in bytes; raises ValueError with a clause."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"it is not a size such as 80 GiB, with one of {', '.join(_BYTES)}")
    return int(match[1]) * _BYTES[match[2]]


def parse_text(text: str) -> str:
    """Return a text that can be shown; raises ValueError with a clause for any other."""
    if not 0 < len(text) <= _TEXT_WIDTH or not text.isprintable():
        raise ValueError(f"{text!r} is not a text of 1 to {_TEXT_WIDTH} printable characters")
    return text


def parse_resource_class(text: str) -> str:
    if not is_resource_class_name(text):
        raise ValueError("it is not the name of a resource class")
    return text


def parse_trait(text: str) -> str:
    if not is_trait_name(text):
        raise ValueError(f"{text!r} is not the name of a trait")
    return text


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
        # Python reads NaN and Infinity, and 1e999 as infinite; the report of the agent cannot have
        # them.
        json.dumps(value, allow_nan=False)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    except ValueError:
        raise ValueError("it has a number that JSON does not have") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    level: list[Any] = [value]
    for _ in range(_MOST_LEVELS):
        containers = (item for item in level if isinstance(item, dict | list))
        level = [
            child
            for item in containers
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise ValueError(f"it is nested too deeply, in more than {_MOST_LEVELS} levels")
    return value

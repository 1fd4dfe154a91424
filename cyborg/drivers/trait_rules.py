# SPDX-License-Identifier: Apache-2.0
"""Rules for traits: which facts of a unit give it which trait, whatever driver reports it.

An entry of the device catalogue with the key ``trait`` is a rule. It has these keys:

``trait``
    The trait to publish. It begins with ``CUSTOM_``: Placement defines the meaning of the others,
    and refuses a provider with a standard trait that it does not have.
``when``
    A mapping of facts (``FACTS``) to values, at least one. All of them must hold. A fact that is
    not known of a unit does not hold.
``compat``
    ``true``: the rule has an effect only with ``[agent] compat_traits``.

This module reads the rules and judges units by them. ``cyborg.agent.trait_rules`` gathers the facts
and applies the rules.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import yaml
from oslo_config import types

from cyborg.drivers import entry_files, generic_match
from cyborg.drivers.device_options import (
    member_of,
    parse_driver_name,
    parse_memory,
    parse_resource_class,
    parse_text,
    parse_trait,
)
from cyborg.drivers.entry_files import MOST_SHOWN, Member, members
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.device import Deployable, Device, DeviceType
from cyborg.model.provider import is_custom

T = TypeVar("T")

_KEYS: Final = ("trait", "when", "compat")
#: The members of the value of a number, both inclusive.
_LIMITS: Final = ("min", "max")
#: The key of an attribute has the name of the trait in it, and a column of the database has the
#: key.
_LONGEST: Final = 200
#: The most values of a fact.
_MOST_VALUES: Final = 1000
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
#: The value of ``switch_nics`` for network cards of all kinds.
ANY: Final = "any"


@dataclass(frozen=True)
class Unit:
    """The units of a deployable with what is known of them; None: it is not known.

    ``function`` is the PCI function that the device is, ``memory`` the size of the memory of one
    unit in bytes. ``nics`` are vendor and product of the network cards behind the PCIe switch of
    the device. ``island_size`` is the number of devices that fast links join with the device, which
    counts itself.
    """

    driver: str
    device: Device
    deployable: Deployable
    function: PciFunction | None = None
    memory: int | None = None
    nics: Collection[tuple[int, int]] = ()
    island_size: int | None = None


#: Whether a fact holds for a unit.
_Test = Callable[[Unit], bool]


@dataclass(frozen=True)
class Rule:
    """A trait, and what must hold for the units that have it; ``place`` is file and line.

    ``facts`` are the names of the facts that it needs.
    """

    trait: str
    facts: frozenset[str]
    tests: tuple[_Test, ...]
    compat: bool
    place: str

    def holds(self, unit: Unit) -> bool:
        """Return whether units have the trait by this rule."""
        return all(test(unit) for test in self.tests)


@dataclass(frozen=True)
class _Value:
    """The value of a fact in a file: one text, several, or the limits of a number by name."""

    texts: tuple[str, ...] = ()
    limits: Mapping[str, str] | None = None

    def parsed(self, parser: Callable[[str], T]) -> tuple[T, ...]:
        """Return the texts parsed; raises ValueError with a clause."""
        if self.limits is not None:
            raise ValueError("min and max are limits of numbers, and it is no number")
        return tuple(map(parser, self.texts))


#: Makes the test of a value; raises ValueError with a clause.
_Reader = Callable[[_Value], _Test]


def _one_of(parser: Callable[[str], T], fact: Callable[[Unit], T]) -> _Reader:
    def read_values(value: _Value) -> _Test:
        values = frozenset(value.parsed(parser))
        return lambda unit: fact(unit) in values

    return read_values


def _number(parser: Callable[[str], int], fact: Callable[[Unit], int | None]) -> _Reader:
    def read_limits(value: _Value) -> _Test:
        limits = value.limits
        if limits is None:
            if len(value.texts) != 1:
                raise ValueError("it is one number, or has the members min and max")
            limits = dict.fromkeys(_LIMITS, value.texts[0])
        least, most = (parser(limits[name]) if name in limits else None for name in _LIMITS)
        if least is not None and most is not None and least > most:
            raise ValueError("min is larger than max")

        def within(unit: Unit) -> bool:
            number = fact(unit)
            return (
                number is not None
                and (least is None or least <= number)
                and (most is None or number <= most)
            )

        return within

    return read_limits


def _ids(pairs: Callable[[Unit], Collection[tuple[int, int] | None]]) -> _Reader:
    """Read ids of PCI, of which one of the ``pairs`` must have one."""

    def read_ids(value: _Value) -> _Test:
        ids = value.parsed(generic_match.parse_pci_id)
        return lambda unit: any(
            pair is not None and generic_match.includes(ids, pair) for pair in pairs(unit)
        )

    return read_ids


def _nics(value: _Value) -> _Test:
    if value.texts == (ANY,):
        return lambda unit: bool(unit.nics)
    return _ids(lambda unit: unit.nics)(value)


def _traits(value: _Value) -> _Test:
    traits = frozenset(value.parsed(parse_trait))
    return lambda unit: traits <= {*unit.deployable.traits}


def _class(value: _Value) -> _Test:
    classes = value.parsed(generic_match.parse_class_code)
    return lambda unit: (
        unit.function is not None and f"{unit.function.class_code:06x}".startswith(classes)
    )


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("it is not a whole number")
    return int(text)


def _product(unit: Unit) -> Collection[tuple[int, int]]:
    return () if unit.function is None else [(unit.function.vendor, unit.function.product)]


def _board(unit: Unit) -> Collection[tuple[int, int] | None]:
    return () if unit.function is None else [unit.function.subsystem]


#: The facts by their names in files, in the order of the page for operators.
FACTS: Final[Mapping[str, _Reader]] = {
    "driver": _one_of(parse_driver_name, lambda unit: unit.driver),
    "device_type": _one_of(member_of(DeviceType), lambda unit: unit.device.type),
    "pci_ids": _ids(_product),
    "subsystem_ids": _ids(_board),
    "pci_classes": _class,
    "vendor": _one_of(parse_text, lambda unit: unit.device.vendor),
    "model": _one_of(parse_text, lambda unit: unit.device.model),
    "resource_class": _one_of(parse_resource_class, lambda unit: unit.deployable.resource_class),
    "traits": _traits,
    "memory": _number(parse_memory, lambda unit: unit.memory),
    "units": _number(_parse_number, lambda unit: len(unit.deployable.handles)),
    "numa_node": _number(_parse_number, lambda unit: unit.device.numa_node),
    "switch_nics": _nics,
    "island_size": _number(_parse_number, lambda unit: unit.island_size),
}


def is_rule(node: yaml.MappingNode) -> bool:
    """Return whether an entry of a file is a rule, valid or not."""
    return any(isinstance(key, yaml.ScalarNode) and key.value == "trait" for key, _ in node.value)


def read(file: Path, node: yaml.MappingNode) -> Rule:
    """Return the rule of an entry; raises exception.ConfigError with file, line and key."""
    line = node.start_mark.line + 1
    keys = {member.key: member for member in members(file, node, _KEYS, what="a rule")}
    if "when" not in keys:
        entry_files.refuse(file, line, "the rule must set when, the facts that give the trait")
    trait = _parse_text(keys["trait"], _parse_custom)
    compat = "compat" in keys and _parse_text(keys["compat"], types.Boolean())
    when = keys["when"].node
    if not isinstance(when, yaml.MappingNode) or not when.value:
        keys["when"].refuse(f"is not a mapping of facts: {', '.join(FACTS)}")
    tests = {}
    for member in members(file, when, FACTS, what="when"):
        value = _value(member)
        try:
            tests[member.key] = FACTS[member.key](value)
        except ValueError as error:
            _refuse(member, value, error)
    return Rule(trait, frozenset(tests), tuple(tests.values()), compat, f"{file}:{line}")


def _parse_custom(text: str) -> str:
    if not is_custom(parse_trait(text)) or len(text) > _LONGEST:
        raise ValueError(
            f"the trait of a rule begins with CUSTOM_ and has at most {_LONGEST} characters"
        )
    return text


def _parse_text(member: Member, parser: Callable[[str], T]) -> T:
    """Return the parsed text of a key."""
    if not isinstance(member.node, yaml.ScalarNode):
        member.refuse("is not one value")
    value = _Value((str(member.node.value),))
    try:
        return parser(value.texts[0])
    except ValueError as error:
        _refuse(member, value, error)


def _value(member: Member) -> _Value:
    """Return the value of a fact."""
    file, fact, _, node = member
    if isinstance(node, yaml.MappingNode):
        limits = {
            limit.key: _parse_text(limit._replace(key=f"{limit.key} of {fact}"), str)
            for limit in members(file, node, _LIMITS, what=fact)
        }
        if not limits:
            member.refuse("has neither min nor max")
        return _Value(limits=limits)
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in nodes):
        member.refuse("is not a list of values")
    if not 0 < len(nodes) <= _MOST_VALUES:
        member.refuse(f"has {len(nodes)} values and not 1 to {_MOST_VALUES}")
    return _Value(tuple(str(item.value) for item in nodes))


def _refuse(member: Member, value: _Value, error: ValueError) -> NoReturn:
    texts = value.texts if value.limits is None else map(": ".join, value.limits.items())
    shown = ", ".join(texts)[:MOST_SHOWN]
    # Some reasons repeat a value, which may be very long.
    reason = str(error)[: 2 * MOST_SHOWN]
    member.refuse(f"cannot be {shown!r}: {reason}")

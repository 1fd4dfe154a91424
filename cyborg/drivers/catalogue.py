# SPDX-License-Identifier: Apache-2.0
"""The device catalogue: what a PCI function is, by its ids first and by its class code otherwise.

The data is in YAML files: those of this package in ``devices.d`` and those of the operator in
``[generic_driver] devices_dir``. A file is a list of entries. An entry has the options of a section
``[generic_driver:<name>]`` that describe a kind of device (``device_options.Description``), and the
keys ``name``, ``platform``, ``enable``, ``driver``, ``refused`` and ``memory``. An entry with the
key ``trait`` is a rule for traits (``trait_rules``).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from oslo_config import cfg, types

from cyborg import conf as configuration
from cyborg import exception
from cyborg.conf import generic as options
from cyborg.drivers import entry_files, pci_ids, trait_rules
from cyborg.drivers.device_options import (
    Description,
    parse,
    parse_backend_name,
    parse_driver_name,
    parse_memory,
    parse_optional,
    parse_text,
    read_description,
)
from cyborg.drivers.entry_files import MOST_SHOWN
from cyborg.drivers.generic_match import PciIds, includes
from cyborg.drivers.trait_rules import Rule
from cyborg.model.device import DeviceType

#: The files of this package.
SHIPPED = Path(__file__).with_name("devices.d")
#: The options of a section that an entry can have, too.
_OPTIONS = (
    "pci_ids",
    "subsystem_ids",
    "pci_classes",
    "device_type",
    "kind",
    "vendor",
    "model",
    "resource_class",
    "traits",
    "capabilities",
    "reset",
    "unit",
    "unit_functions",
)
_KEYS = ("name", *_OPTIONS, "platform", "enable", "driver", "refused", "memory")
#: The keys that have an effect only if the generic_driver can offer the devices of the entry.
_OFFER = (
    *("resource_class", "capabilities", "reset", "unit", "unit_functions"),
    "enable",
)
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("pci_ids", "subsystem_ids", "pci_classes", "traits"), ()),
    "capabilities": "{}",
}


@dataclass(frozen=True)
class Entry:
    """One entry of a file.

    ``platform`` says that only the host can use the functions. ``name`` is the name of the backend
    with which the generic_driver offers the devices, None if it cannot; with ``enable`` it does so
    without being asked. ``driver`` is the name of the driver that has the cards for its own;
    ``refused`` says, as a clause, why that driver does not offer them. ``memory`` is the nominal
    size of the memory of a function that is used as a whole, in bytes. ``options`` are the options
    that the entry sets, as ``cyborg.conf.generic`` declares them. ``place`` is file and line.
    """

    description: Description = field(default_factory=Description)
    name: str | None = None
    platform: bool = False
    enable: bool = False
    driver: str | None = None
    refused: str | None = None
    memory: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    @property
    def type(self) -> DeviceType:
        """Return the type of the devices in the API."""
        return self.description.device_type or DeviceType.PCI

    @property
    def rank(self) -> tuple[bool, int]:
        """Return how closely the conditions other than ``pci_ids`` select; larger is closer."""
        return bool(self.description.subsystems), max(map(len, self.description.classes), default=0)

    def names(self, vendor: int, device: int) -> bool:
        """Return whether the entry has this product, and not only all products of the vendor."""
        return any(
            ids.includes(vendor, device) and not ids.is_vendor for ids in self.description.ids
        )

    def accepts(self, digits: str, subsystem: tuple[int, int] | None) -> bool:
        """Return whether class code and board satisfy the entry; ``pci_ids`` are not compared."""
        classes = self.description.classes
        return (not classes or digits.startswith(classes)) and includes(
            self.description.subsystems, subsystem
        )

    def conflicts_with(self, other: "Entry") -> bool:
        """Return whether both can accept the same function, and neither selects more closely."""
        mine, theirs = self.description, other.description
        return (
            self.rank == other.rank
            and (not mine.subsystems or _overlap(mine.subsystems, theirs.subsystems))
            and (not mine.classes or not set(mine.classes).isdisjoint(theirs.classes))
        )


class Catalogue:
    """All entries; ``named`` has those with a name, ``enabled`` the names of those with enable.

    ``rules`` are the rules for traits: for each trait those of the layer with precedence.
    """

    def __init__(self, layers: Sequence["_Layer"]) -> None:
        self._layers = tuple(layers)
        self.named: Mapping[str, Entry] = {
            name: entry for layer in reversed(self._layers) for name, entry in layer.named.items()
        }
        self.enabled = tuple(name for name, entry in self.named.items() if entry.enable)
        rules: dict[str, list[Rule]] = {}
        for layer in reversed(self._layers):
            rules |= layer.rules
        self.rules = tuple(rule for same in rules.values() for rule in same)
        #: The answers of ``entry``: a host has many functions of few kinds.
        self._entries: dict[tuple[int, int, int, tuple[int, int] | None], Entry] = {}

    @classmethod
    def load(cls, directories: Iterable[str | os.PathLike[str]]) -> "Catalogue":
        """Return the catalogue from all files ``*.yaml`` of the directories.

        An entry of a later directory has precedence over those of earlier ones, by id, by class
        code and by name. A directory that does not exist is empty. Raises exception.ConfigError
        with one sentence that begins with file and line.
        """
        return cls([_Layer.load(directory) for directory in directories][::-1])

    def entry(
        self,
        vendor: int,
        device: int,
        class_code: int,
        *,
        subsystem: tuple[int, int] | None = None,
    ) -> Entry:
        """Return the entry of a PCI function; its type and kind may come from the class code.

        ``class_code`` has 24 bits; ``subsystem`` is vendor and id of the board, None if it is not
        known. Without an entry for the ids, it is that of the class code. A function that the
        catalogue does not know has an entry without values. An entry that names no driver leaves
        the card to the driver that a less exact one, or one of this package, names.
        """
        function = vendor, device, class_code, subsystem
        if function not in self._entries:
            self._entries[function] = self._find(*function)
        return self._entries[function]

    def _find(
        self, vendor: int, device: int, class_code: int, subsystem: tuple[int, int] | None
    ) -> Entry:
        digits = f"{class_code:06x}"
        by_ids = [
            entry
            for layer in self._layers
            for entry in layer.candidates(vendor, device)
            if entry.accepts(digits, subsystem)
        ]
        keys = (digits, digits[:4], digits[:2])
        by_class = next(
            (layer.classes[key] for layer in self._layers for key in keys if key in layer.classes),
            Entry(),
        )
        if not by_ids:
            return by_class
        owner = next((entry for entry in by_ids if entry.driver is not None), by_ids[0])
        mine, theirs = by_ids[0].description, by_class.description
        return replace(
            by_ids[0],
            driver=owner.driver,
            refused=owner.refused,
            memory=next((entry.memory for entry in by_ids if entry.memory is not None), None),
            description=replace(
                mine,
                device_type=mine.device_type or theirs.device_type,
                kind=mine.kind or theirs.kind,
            ),
        )

    def platform_reason(
        self,
        vendor: int,
        device: int,
        class_code: int,
        *,
        subsystem: tuple[int, int] | None = None,
    ) -> str | None:
        """Return a clause that says why a function of the platform is not offered, or None.

        The arguments are those of ``entry``. None: it is not a function of the platform.
        """
        entry = self.entry(vendor, device, class_code, subsystem=subsystem)
        if not entry.platform:
            return None
        model = entry.description.model or pci_ids.kind(class_code)
        return (
            f"a function of the platform ({model}), which only the host can use; if this is wrong, "
            f"add an entry for {vendor:04x}:{device:04x} to [generic_driver] devices_dir"
        )


def read(conf: cfg.ConfigOpts) -> Catalogue:
    """Return the catalogue of this host: the files of this package and of the operator.

    Raises exception.ConfigError. Only the default of ``[generic_driver] devices_dir`` may be
    missing.
    """
    directory: str = configuration.read(conf, "devices_dir", options.GROUP)
    if directory != options.DEVICES_DIR and not Path(directory).is_dir():
        reason = (
            f"Option [{options.GROUP}] devices_dir cannot be {directory!r}: it is no directory."
        )
        raise exception.ConfigError(reason=reason)
    return Catalogue((_Layer.load(directory), _shipped()))


def shipped() -> Catalogue:
    """Return the catalogue of the files of this package alone."""
    return Catalogue((_shipped(),))


def _overlap(mine: Sequence[PciIds], theirs: Sequence[PciIds]) -> bool:
    return any(first.overlaps(second) for first in mine for second in theirs)


class _Layer:
    """The entries of one directory; a lookup reads one short list of the vendor."""

    def __init__(self) -> None:
        self.named: dict[str, Entry] = {}
        self.classes: dict[str, Entry] = {}
        #: The rules by their trait.
        self.rules: dict[str, list[Rule]] = {}
        self._exact: dict[tuple[int, int], list[Entry]] = {}
        self._ranges: dict[int, list[tuple[PciIds, Entry]]] = {}

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "_Layer":
        """Return the entries of a directory; see ``Catalogue.load``."""
        layer = cls()
        declared = {option.name: option for option in options.backend_options()}
        for file in entry_files.files(Path(directory)):
            for node in entry_files.nodes(file):
                if trait_rules.is_rule(node):
                    layer.add_rule(trait_rules.read(file, node))
                else:
                    layer.add(_Source(file, node, declared))
        return layer

    def candidates(self, vendor: int, device: int) -> Iterator[Entry]:
        """Yield the entries with these ids, those that select most closely first."""
        yield from self._exact.get((vendor, device), ())
        for ids, entry in self._ranges.get(vendor, ()):
            if ids.includes(vendor, device):
                yield entry

    def add(self, source: "_Source") -> None:
        """Add an entry; raises ConfigError if another entry has the same name, ids or class."""
        entry = source.entry()
        if entry.name is not None:
            if entry.name in self.named:
                source.invalid("name", f"{self.named[entry.name].place} has it, too")
            self.named[entry.name] = entry
        for ids in entry.description.ids:
            if ids.size == 1:
                same = self._exact.setdefault((ids.vendor, ids.first), [])
                self._refuse_conflict(source, entry, same)
                same.append(entry)
                same.sort(key=lambda item: item.rank, reverse=True)
            else:
                ranges = self._ranges.setdefault(ids.vendor, [])
                same = [
                    item for other, item in ranges if other.size == ids.size and other.overlaps(ids)
                ]
                self._refuse_conflict(source, entry, same)
                ranges.append((ids, entry))
                ranges.sort(key=lambda item: (-item[0].size, item[1].rank), reverse=True)
        if not entry.description.ids:
            for digits in entry.description.classes:
                if digits in self.classes:
                    source.invalid("pci_classes", f"{self.classes[digits].place} has {digits}, too")
                self.classes[digits] = entry

    def add_rule(self, rule: Rule) -> None:
        """Add a rule; several rules may have one trait."""
        self.rules.setdefault(rule.trait, []).append(rule)

    def _refuse_conflict(self, source: "_Source", entry: Entry, others: Sequence[Entry]) -> None:
        for other in others:
            if entry.conflicts_with(other):
                source.invalid("pci_ids", f"{other.place} has the same ids")


@cache
def _shipped() -> _Layer:
    """Return the entries of this package: every driver needs them, and they do not change."""
    return _Layer.load(SHIPPED)


class _Source:
    """An entry of a file, as a ``device_options.Source``."""

    def __init__(self, file: Path, node: yaml.MappingNode, declared: Mapping[str, cfg.Opt]) -> None:
        self._file = file
        self._declared = declared
        self._lines: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._line = node.start_mark.line + 1
        self.place = f"{file}:{self._line}"
        for _, key, line, value_node in entry_files.members(file, node, _KEYS, hint=self._hint):
            self._lines[key] = line
            self._values[key] = self._parse_node(key, value_node)

    def entry(self) -> Entry:
        """Return the validated entry."""
        description = read_description(self)
        name = parse_optional(self, "name", parse_backend_name)
        platform, enable = self.value("platform") or False, self.value("enable") or False
        driver = parse_optional(self, "driver", parse_driver_name)
        memory = parse_optional(self, "memory", parse_memory)
        refused = parse_optional(self, "refused", parse_text)
        if refused is not None and driver is None:
            self.invalid("refused", "it has an effect only together with driver")
        if driver is not None and not description.ids:
            self.invalid("driver", "it has an effect only together with pci_ids")
        if not description.ids and (description.subsystems or not description.classes):
            entry_files.refuse(
                self._file, self._line, "the entry must set pci_ids, or pci_classes alone"
            )
        if name is None:
            for key in _OFFER:
                if key in self._values:
                    self.invalid(key, "it has an effect only together with name")
            if description.traits and driver is None:
                self.invalid("traits", "it has an effect only together with name or driver")
        elif description.resource_class is None:
            self.invalid("name", "resource_class must be set, too")
        if platform and name is not None:
            self.invalid("platform", "functions of the platform are never offered, so name must go")
        if memory is not None and not description.ids:
            self.invalid("memory", "it has an effect only together with pci_ids")
        set_options = {key: value for key, value in self._values.items() if key in _OPTIONS}
        return Entry(
            *(description, name, platform, enable, driver, refused, memory),
            *(set_options, self.place),
        )

    def _hint(self, key: str) -> str:
        declared = key in self._declared
        return f"; only a section of the configuration can set {key}" if declared else ""

    def value(self, option: str) -> Any:
        """See device_options.Source."""
        return self._values.get(option, _DEFAULTS.get(option))

    def invalid(self, option: str, reason: str) -> NoReturn:
        """See device_options.Source."""
        value = self.value(option)
        if isinstance(value, list):
            # Aliases can make a short file a list of very many long texts.
            value = ", ".join(item[:MOST_SHOWN] for item in value[:MOST_SHOWN])
        text = value[:MOST_SHOWN] if isinstance(value, str) else value
        line = self._lines.get(option, self._line)
        entry_files.refuse(self._file, line, f"{option} cannot be {text!r}: {reason}")

    def _parse_node(self, key: str, node: yaml.Node) -> Any:
        """Return the value of a key, converted as oslo.config converts the text of an option."""
        option = self._declared.get(key)
        is_list = isinstance(option, cfg.ListOpt)
        if is_list and isinstance(node, yaml.SequenceNode):
            items: list[yaml.Node] = node.value
            if all(isinstance(item, yaml.ScalarNode) for item in items):
                return [str(item.value) for item in items]
        if not isinstance(node, yaml.ScalarNode):
            form = "a list of values" if is_list else "one value"
            entry_files.refuse(self._file, node.start_mark.line + 1, f"{key} is not {form}")
        # The text, and not what YAML makes of it: 1e36 is not a number here.
        self._values[key] = str(node.value)
        if key in ("name", "driver", "refused", "memory"):
            return self._values[key]
        return parse(self, key, types.Boolean() if option is None else option.type)

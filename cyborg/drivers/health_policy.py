# SPDX-License-Identifier: Apache-2.0
"""The health policy: which condition a fault of the hardware means, and what to do about it.

The data is in YAML files: those of this package in ``health.d``, those that a driver of another
package has (``Driver.health_entries``), and those of the operator in ``[agent]
health_policy_dirs``. Drivers tell signals; ``HealthPolicy.judge`` alone says what they mean. A file
is a list of entries with these keys:

``kind``, ``signal``
    What has told the fault: ``nvidia`` and ``xid``, for example.
``codes``
    The values of the signal that mean the same, in any case of letters; ``*`` stands for all that
    no other entry names.
``condition``
    ``ignore``, ``degraded``, ``drain`` or ``dead``.
``action``
    A sentence for the operator; ``drain`` and ``dead`` must have one.
``until``
    For a fault that lasts, what recovers the device: ``bind``, ``reset`` and ``replug``, or some of
    them. Without the key, a fault ends when it is not told any more.
``source``
    Where the meaning of the codes is documented.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from cyborg import exception
from cyborg.drivers import entry_files
from cyborg.model.health import (
    Condition,
    Finding,
    Judgement,
    Recovery,
    Signal,
    legible,
    offered,
)

LOG = logging.getLogger(__name__)

#: The files of this package.
SHIPPED: Final = Path(__file__).with_name("health.d")
_KEYS: Final = ("kind", "signal", "codes", "condition", "action", "until", "source")
#: The keys whose values are lists.
_LISTS: Final = frozenset({"codes", "until"})
_CONDITIONS: Final = {
    "ignore": Condition.OK,
    **{word.value: word for word in Condition if word is not Condition.OK},
}
#: The code of an entry for all values that no other entry names.
_ANY: Final = "*"


@dataclass(frozen=True)
class Ruling:
    """What one fault means; ``ok``: it is ignored. ``action`` is a sentence, None: none is needed.
    ``until`` is what recovers the device, see ``Finding``.

    ``source`` says where the meaning is documented, ``place`` the file and line of the entry.
    """

    condition: Condition
    action: str | None = None
    until: frozenset[Recovery] = frozenset()
    source: str = ""
    place: str = ""


class HealthPolicy:
    """All entries; entries of a later directory replace those of an earlier one, code by code."""

    def __init__(self, rulings: Mapping[tuple[str, str, str], Ruling]) -> None:
        self.rulings = dict(rulings)

    @classmethod
    def load(cls, directories: Iterable[str | os.PathLike[str]]) -> "HealthPolicy":
        """Return the policy from all files ``*.yaml`` of the directories.

        A directory that does not exist is empty. Raises exception.ConfigError with one sentence
        that begins with file and line.
        """
        rulings: dict[tuple[str, str, str], Ruling] = {}
        for directory in directories:
            layer: dict[tuple[str, str, str], Ruling] = {}
            for file in entry_files.files(Path(directory)):
                for node in entry_files.nodes(file):
                    _add(layer, file, node)
            rulings |= layer
        return cls(rulings)

    def with_entries(self, directory: Path | None) -> "HealthPolicy":
        """Return this policy with the entries of a driver's package; those that it has stay.

        Raises exception.ConfigError as ``load``.
        """
        return self if directory is None else HealthPolicy({**_load(directory), **self.rulings})

    def ruling(self, kind: str, name: str, code: str | int) -> Ruling:
        """Return the entry for a signal.

        A signal that no entry names makes the device ``degraded``: it is shown and still offered.
        """
        for key in (str(code).casefold(), _ANY):
            ruling = self.rulings.get((kind, name, key))
            if ruling is not None:
                return ruling
        return Ruling(Condition.DEGRADED)

    def judge(self, signals: Iterable[Signal]) -> Judgement:
        """Return what signals about one device mean; raises the errors of ``findings``."""
        return Judgement.of(self.findings(signals))

    def findings(self, signals: Iterable[Signal]) -> Iterator[Finding]:
        """Yield what each of the signals about one device means.

        Raises TypeError for what is no signal: drivers are not type-checked by all vendors.
        """
        for signal in signals:
            if not isinstance(signal, Signal):
                raise TypeError(f"{signal!r} is not a cyborg.drivers.base.Signal")
            ruling = self.ruling(signal.kind, signal.name, signal.code)
            name = f"{signal.kind} {signal.name} {signal.code}"
            evidence = legible(str(signal.evidence)) or legible(name) or "a signal without a name"
            yield Finding(ruling.condition, evidence, ruling.action, ruling.until, signal)


@cache
def _load(directory: Path) -> Mapping[tuple[str, str, str], Ruling]:
    """Return the entries of a driver's package, which do not change while a process runs."""
    return HealthPolicy.load([directory]).rulings


@cache
def shipped() -> HealthPolicy:
    """Return the policy of this package alone."""
    return HealthPolicy.load([SHIPPED])


def read(directories: Iterable[str]) -> HealthPolicy:
    """Return the policy of this host; each directory of the operator must exist.

    An entry for a signal that this service does not tell is logged: it may be misspelled. Raises
    exception.ConfigError.
    """
    directories = tuple(directories)
    for directory in directories:
        if not Path(directory).is_dir():
            raise exception.ConfigError(
                reason=f"Option [agent] health_policy_dirs cannot have {directory!r}: it is no "
                "directory."
            )
    own = HealthPolicy.load(directories).rulings
    signals = {fault[:2] for fault in shipped().rulings}
    for place, (kind, name, _) in {own[fault].place: fault for fault in own}.items():
        if (kind, name) not in signals:
            LOG.warning(
                "%s: this service does not tell signal %s of kind %s; the entry has an effect only "
                "if a driver of another package does",
                *(place, name, kind),
            )
    return HealthPolicy({**shipped().rulings, **own})


def _add(layer: dict[tuple[str, str, str], Ruling], file: Path, node: yaml.MappingNode) -> None:
    """Add the entry of a node; raises ConfigError."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    entry_line = node.start_mark.line + 1
    for _, key, line, value_node in entry_files.members(file, node, _KEYS):
        lines[key] = line
        values[key] = _value(file, key, value_node)
    for key in ("kind", "signal", "codes", "condition", "source"):
        if not values.get(key):
            entry_files.refuse(file, entry_line, f"the entry must set {key}")
    word = values["condition"]
    condition = _CONDITIONS.get(word)
    if condition is None:
        entry_files.refuse(
            file,
            lines["condition"],
            f"condition cannot be {word!r}: it is one of {', '.join(_CONDITIONS)}",
        )
    action = values.get("action") or None
    if action is None and not offered(condition):
        entry_files.refuse(
            file, entry_line, f"an entry with condition {word} must set action, a sentence"
        )
    until = frozenset(values.get("until", ()))
    if not until <= {*Recovery} or (until and condition is Condition.OK):
        entry_files.refuse(
            file,
            lines["until"],
            f"until is a list of {', '.join(Recovery)}, in an entry whose condition is not ignore",
        )
    place = f"{file}:{entry_line}"
    ruling = Ruling(condition, action, frozenset(map(Recovery, until)), values["source"], place)
    for code in values["codes"]:
        fault = values["kind"], values["signal"], code.casefold()
        if fault in layer:
            entry_files.refuse(file, lines["codes"], f"{layer[fault].place} has {code}, too")
        layer[fault] = ruling


def _value(file: Path, key: str, node: yaml.Node) -> str | list[str]:
    """Return the text of a key as one line, or a list of texts; raises ConfigError."""
    nodes = node.value if key in _LISTS and isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in nodes):
        form = "a list of values" if key in _LISTS else "one value"
        entry_files.refuse(file, node.start_mark.line + 1, f"{key} is not {form}")
    texts = [" ".join(str(item.value).split()) for item in nodes]
    if not all(texts):
        entry_files.refuse(file, node.start_mark.line + 1, f"{key} has an empty value")
    return texts if key in _LISTS else texts[0]

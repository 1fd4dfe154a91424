# SPDX-License-Identifier: Apache-2.0
"""How values look: colours of states on a terminal, text of what is nested in tables."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final, TextIO

from cliff.columns import FormattableColumn

_GREEN, _YELLOW, _RED = "32", "33", "31"
_COLOURS: Final = {
    **dict.fromkeys(("up", "enabled", "ready", "active", "bound", "succeeded"), _GREEN),
    **dict.fromkeys(
        (
            "disabled",
            "inactive",
            "installing",
            "starting",
            "stopped",
            "maintaining",
            "running",
            "waiting",
            "bindstarted",
        ),
        _YELLOW,
    ),
    **dict.fromkeys(("down", "failed", "lost", "bindfailed", "unbindfailed"), _RED),
}
#: Columns whose words are states.
_STATES: Final = frozenset({"state", "status"})
#: Formats that hold objects and lists as they are.
_STRUCTURED: Final = frozenset({"json", "yaml"})


class State(FormattableColumn[str]):
    """A word that has a colour for people; no word at all sorts last."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, State):
            return False
        return (not self._value, self._value) < (not other._value, other._value)

    def human_readable(self) -> str:
        """The word between the sequences of its colour."""
        return paint(self._value)


class Absent:
    """No value: an empty cell in a table, and the last one when its column is sorted."""

    def __str__(self) -> str:
        return ""

    def __lt__(self, _other: object) -> bool:
        return False

    def __gt__(self, _other: object) -> bool:
        return True


def coloured(stream: TextIO) -> bool:
    """Whether colours are wanted there: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(word: str) -> str:
    """The word in the colour of what it means."""
    colour = _COLOURS.get(word.lower())
    return f"\033[{colour}m{word}\033[0m" if colour else word


def cell(name: str, value: Any, formatter: str, *, colours: bool) -> Any:
    """A value as the formatter should get it; nested ones as text where nothing nests."""
    if formatter in _STRUCTURED:
        return value
    if formatter == "table":
        if name in _STATES and colours:
            return State(value or "")
        if value is None:
            return Absent()
        if name == "results" and isinstance(value, list):
            return "\n".join(result_line(one, colours=colours) for one in value)
        return brief(value) if isinstance(value, Mapping) else _listed(value)
    return json.dumps(value) if isinstance(value, Mapping | list) else value


def result_line(result: Mapping[str, Any], *, colours: bool = False) -> str:
    """What became of an operation on one host, in a line."""
    state = str(result.get("state"))
    line = f"{result.get('host') or '-'}: {paint(state) if colours else state}"
    detail = result.get("error") or brief(result.get("result") or {})
    return f"{line}, {detail}" if detail else line


def brief(value: Any) -> str:
    """An object as ``key=value`` pairs, its name before them, what is empty left out."""
    if isinstance(value, Mapping):
        name = str(value.get("name") or "")
        pairs = ", ".join(
            f"{key}={_grouped(one)}"
            for key, one in value.items()
            if key != "name" and one not in (None, {}, [])
        )
        return f"{name} ({pairs})" if name and pairs else name or pairs
    if isinstance(value, list):
        return ", ".join(brief(one) for one in value)
    return str(value)


def _grouped(value: Any) -> str:
    text = brief(value)
    return f"[{text}]" if isinstance(value, Mapping | list) else text


def _listed(value: Any) -> Any:
    return "\n".join(brief(one) for one in value) if isinstance(value, list) else value

# SPDX-License-Identifier: Apache-2.0
"""Format JSON in few readable lines."""

import json
import math
from collections.abc import Iterator
from typing import Any

#: Lists, and objects of objects, that are longer than this show their beginning only.
_SHOWN = 4
_INDENT = "  "
#: Links say nothing to a reader; only that there are some is shown.
_LINKS = "[...]"


def compact(value: Any, room: float, taken: int = 0) -> list[str]:
    """A JSON value in lines of ``room`` columns, of which the first has ``taken`` already.

    What fits on a line stays on one; strings are never broken. Of many entries only the first are
    shown, with how many more there are.
    """
    if not isinstance(value, dict | list) or not value:
        return [json.dumps(value, ensure_ascii=False)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    flat = opening + ", ".join(line for (line,) in _entries(value, math.inf)) + closing
    if len(flat) <= room - taken:
        return [flat]
    if isinstance(value, list) and len(value) == 1:
        first, *rest = compact(value[0], room - 1, taken + 1)
        lines = ["[" + first, *rest]
        lines[-1] += "]"
        return lines
    within = room - len(_INDENT)
    return [
        opening,
        *(_INDENT + line for line in _packed(_entries(value, within), within)),
        closing,
    ]


def _entries(value: Any, room: float) -> Iterator[list[str]]:
    """Each entry of an object or a list as its lines, without what separates them."""
    entries = list(value)
    alike = isinstance(value, list) or all(isinstance(one, dict) for one in value.values())
    shown = entries[: _SHOWN - 1] if alike and len(entries) > _SHOWN else entries
    for one in shown:
        name = "" if isinstance(value, list) else f"{json.dumps(one, ensure_ascii=False)}: "
        if name and one == "links":
            yield [name + _LINKS]
        else:
            first, *rest = compact(value[one] if name else one, room - 1, len(name))
            yield [name + first, *rest]
    if left := len(entries) - len(shown):
        yield [f"... {left} more"]


def _packed(entries: Iterator[list[str]], room: float) -> Iterator[str]:
    """The entries separated by commas; those of one line share lines."""
    line, shares = "", False
    for entry in entries:
        joined = f"{line}, {entry[0]}"
        if shares and len(entry) == 1 and len(joined) < room:
            line = joined
            continue
        if line:
            yield f"{line},"
        *before, line = entry
        yield from before
        shares = not before
    yield line

# SPDX-License-Identifier: Apache-2.0
"""Format JSON in few readable lines."""

import json
from collections.abc import Iterator
from typing import Any

#: Lists, and objects of objects, that are longer than this show their beginning only.
_SHOWN = 4
_INDENT = "  "
#: Links say nothing to a reader; only that there are some is shown.
_LINKS = "[...]"


def compact(value: Any, room: int, taken: int = 0) -> list[str]:
    """A JSON value in lines of ``room`` columns, of which the first has ``taken`` already.

    What fits on a line stays on one; strings are never broken. Of many entries only the first are
    shown, with how many more there are.
    """
    flat = _flat(value)
    if len(flat) <= room - taken or not isinstance(value, dict | list) or not value:
        return [flat]
    if isinstance(value, list) and len(value) == 1:
        first, *rest = compact(value[0], room - 1, taken + 1)
        lines = ["[" + first, *rest]
        lines[-1] += "]"
        return lines
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    within = room - len(_INDENT)
    body = _packed(_entries(value, within), within)
    return [opening, *(_INDENT + line for line in body), closing]


def _flat(value: Any) -> str:
    """The value on one line, as ``json.dumps`` has it but for what is left out."""
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [
            _name(key) + (_LINKS if key == "links" else _flat(value[key])) for key in _shown(value)
        ]
    elif isinstance(value, list):
        parts = [_flat(one) for one in _shown(value)]
    else:
        return json.dumps(value, ensure_ascii=False)
    return opening + ", ".join(parts + _more(value)) + closing


def _entries(value: Any, room: int) -> Iterator[list[str]]:
    """Each entry of an object or a list as its lines, without what separates them."""
    for one in _shown(value):
        if isinstance(value, list):
            yield compact(one, room - 1)
        elif one == "links":
            yield [_name(one) + _LINKS]
        else:
            first, *rest = compact(value[one], room - 1, len(_name(one)))
            yield [_name(one) + first, *rest]
    yield from ([word] for word in _more(value))


def _packed(entries: Iterator[list[str]], room: int) -> Iterator[str]:
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


def _name(key: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: "


def _shown(value: Any) -> list[Any]:
    """The keys of an object, or the entries of a list, that are shown."""
    entries = list(value)
    alike = isinstance(value, list) or all(isinstance(one, dict) for one in value.values())
    return entries[: _SHOWN - 1] if alike and len(entries) > _SHOWN else entries


def _more(value: Any) -> list[str]:
    left = len(value) - len(_shown(value))
    return [f"... {left} more"] if left else []

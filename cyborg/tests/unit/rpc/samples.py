# SPDX-License-Identifier: Apache-2.0
"""A valid message of every verb, made from the types of its arguments; no member is left out."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from cyborg.rpc.command import Command

#: The host that every message is about.
HOST: Final = "compute-1"
_UUID: Final = "5c2e0c0a-8f3f-4f0e-9f63-0c5b7a1d2e4f"
_SCALARS: Final[Mapping[Any, Any]] = {
    int: 1,
    bool: True,
    float: 1.0,
    datetime: datetime(2026, 1, 2, tzinfo=UTC),
    Any: {"key": ["value"]},
}


def arguments(command: type[Command[Any]]) -> dict[str, Any]:
    """Return the arguments of a verb, as plain JSON data."""
    hints = get_type_hints(command)
    members = {each.name: _value(hints[each.name], each.name) for each in fields(command)}
    return command(**members).dump()


def _value(hint: Any, name: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(inner[0], name)
    if origin in (list, tuple, frozenset):
        return origin([_value(inner[0], name)])
    if origin is not None:
        return {"key": _value(inner[1], name)}
    if is_dataclass(hint):
        kind: Any = hint
        hints = get_type_hints(kind)
        return kind(**{each.name: _value(hints[each.name], each.name) for each in fields(kind)})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if hint is str:
        if name in ("host", "hosts"):
            return HOST
        return _UUID if "uuid" in name or name == "request_key" else "text"
    return _SCALARS[hint]

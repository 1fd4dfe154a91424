# SPDX-License-Identifier: Apache-2.0
"""Serialise values for the message bus: ``{kind, version, body}`` around plain JSON data.

``kind`` is the ``KIND`` that the dataclass declares. It is part of the RPC interface, and
independent of the name of the class. A reader ignores unknown keys and fills missing keys from the
defaults of the dataclass. Within one major version, fields may therefore be added (with a default),
but neither changed nor removed.
"""

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

from cyborg import exception


class Sendable(Protocol):
    """A dataclass that can be sent in an envelope of its own."""

    KIND: ClassVar[str]


T = TypeVar("T", bound=Sendable)
#: Builds a dataclass: its class, its data, and the place of the data.
_Inside = Callable[[Any, Any, str], Any]

#: The major version of every body. Raise it only if readers of the older version would fail.
VERSION = 1
#: Characters of a value in an error message.
_MOST_SHOWN = 200


def dump(value: Sendable) -> dict[str, Any]:
    """Return the envelope of a dataclass instance, as plain JSON data.

    A value of a class without ``KIND`` gets the name of its class, which ``load`` refuses.
    """
    kind = getattr(value, "KIND", type(value).__name__)
    return {"kind": kind, "version": VERSION, "body": plain(value)}


def load(kind: type[T], envelope: Any) -> T:
    """Return the instance of the dataclass ``kind`` that an envelope holds.

    Raises exception.Invalid, which names the field, if the envelope has another kind or major
    version, lacks a field without default, or holds a value of a wrong type.
    """
    if not isinstance(envelope, Mapping) or envelope.get("kind") != kind.KIND:
        raise exception.Invalid(field="envelope", reason=f"a {kind.KIND} is needed")
    if envelope.get("version") != VERSION:
        raise exception.Invalid(
            field=kind.KIND,
            reason=f"version {str(envelope.get('version'))[:_MOST_SHOWN]} is not {VERSION}",
        )
    try:
        value: T = _build(kind, envelope.get("body"), kind.KIND)
    except RecursionError:
        raise exception.Invalid(field=kind.KIND, reason="it is nested too deeply") from None
    return value


def pack(value: Any) -> Any:
    """Return an argument or an answer as plain JSON data: each dataclass gets an envelope."""
    if is_dataclass(value):
        return dump(value)  # type: ignore[arg-type]  # dump names a class without KIND
    return [pack(item) for item in value] if isinstance(value, list) else plain(value)


def unpack(kind: Any, value: Any, field: str) -> Any:
    """Return the ``kind`` that ``pack`` made ``value`` of, for example ``list[Arq]``.

    Raises exception.Invalid, which names the place below ``field``, for a value of a wrong type.
    """
    try:
        return _build(kind, value, field, lambda inner, envelope, _place: load(inner, envelope))
    except RecursionError:
        raise exception.Invalid(field=field, reason="it is nested too deeply") from None


def plain(value: Any) -> Any:
    """Return a value as plain JSON data: dataclasses as objects, enumerations as their values."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [plain(item) for item in items]
    return value


@cache
def hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass by name, among others."""
    return typing.get_type_hints(kind)


def _build(kind: Any, value: Any, place: str, inside: _Inside | None = None) -> Any:
    """Return ``value`` as ``kind``; ``inside`` builds the dataclasses in it."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = typing.get_args(kind)
        if value is None and types.NoneType in kinds:
            return None
        named = [part for part in kinds if part is not types.NoneType]
        fitting = [part for part in named if part is type(value)]
        return _build((fitting or named)[0], value, place, inside)
    if origin in (list, tuple, frozenset):
        if not isinstance(value, list):
            raise exception.Invalid(field=place, reason="a list is needed")
        inner = typing.get_args(kind)[0]
        return origin(_build(inner, item, f"{place}[{i}]", inside) for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise exception.Invalid(field=place, reason="an object is needed")
        inner = typing.get_args(kind)[1]
        return {str(key): _build(inner, item, f"{place}.{key}") for key, item in value.items()}
    if is_dataclass(kind):
        return (inside or _build_dataclass)(kind, value, place)
    return _build_scalar(kind, value, place)


def _build_dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise exception.Invalid(field=place, reason="an object is needed")
    arguments = {}
    named = hints(kind)
    for field in fields(kind):
        inside = f"{place}.{field.name}"
        if field.name in value:
            arguments[field.name] = _build(named[field.name], value[field.name], inside)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise exception.Invalid(field=inside, reason="missing")
    return kind(**arguments)


def _build_scalar(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return _json(value, place)
    if issubclass(kind, Enum) or (kind is datetime and isinstance(value, str)):
        try:
            return datetime.fromisoformat(value) if kind is datetime else kind(value)
        except ValueError:
            shown = repr(value)[:_MOST_SHOWN]
            raise exception.Invalid(field=place, reason=f"{shown} is unknown") from None
    if type(value) is not kind:
        raise exception.Invalid(field=place, reason=f"{kind.__name__} is needed")
    return value


def _json(value: Any, place: str) -> Any:
    """Return a value that is JSON at every depth: databases return it as it was written."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise exception.Invalid(field=place, reason="its keys must be strings")
        return {key: _json(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if type(value) is float and not math.isfinite(value):
        raise exception.Invalid(field=place, reason=f"{value} is not a JSON number")
    if value is not None and type(value) not in (bool, int, float, str):
        raise exception.Invalid(field=place, reason="it must be JSON")
    return value

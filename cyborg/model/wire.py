# SPDX-License-Identifier: Apache-2.0
"""The form in which values cross the bus: ``{kind, version, body}`` around plain data.

Readers ignore keys they do not know and fill keys they miss from the dataclass's defaults, so that
within one major version fields may be added (with a default), never changed or removed.
"""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from cyborg import exception

T = TypeVar("T")

#: The major version of every body; raised only when a reader of the older one would err.
VERSION = 1


def dump(value: Any) -> dict[str, Any]:
    """Wrap a dataclass instance into its envelope of plain JSON data."""
    return {"kind": type(value).__name__, "version": VERSION, "body": _plain(value)}


def load(kind: type[T], envelope: Any) -> T:
    """Unwrap an envelope into ``kind``.

    Raises exception.Invalid when the envelope is of another kind or major version, misses a
    field without default, or holds a value of a wrong type; the field is named.
    """
    if not isinstance(envelope, Mapping) or envelope.get("kind") != kind.__name__:
        raise exception.Invalid(field="envelope", reason=f"a {kind.__name__} is needed")
    if envelope.get("version") != VERSION:
        raise exception.Invalid(
            field=kind.__name__, reason=f"version {envelope.get('version')} is not {VERSION}"
        )
    value: T = _build(kind, envelope.get("body"), kind.__name__)
    return value


def read(kind: Any, value: Any, field: str) -> Any:
    """A value without an envelope, as ``kind`` (``dict[str, str]``, for instance).

    Raises exception.Invalid naming the place below ``field`` that is of a wrong type.
    """
    return _build(kind, value, field)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [_plain(one) for one in items]
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, value: Any, place: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _build_optional(kind, value, place)
    if origin in (list, tuple, frozenset):
        if not isinstance(value, list):
            raise exception.Invalid(field=place, reason="a list is needed")
        inner = typing.get_args(kind)[0]
        return origin(_build(inner, one, f"{place}[{i}]") for i, one in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise exception.Invalid(field=place, reason="an object is needed")
        inner = typing.get_args(kind)[1]
        return {str(key): _build(inner, one, f"{place}.{key}") for key, one in value.items()}
    if is_dataclass(kind):
        return _build_dataclass(kind, value, place)
    return _build_scalar(kind, value, place)


def _build_optional(kind: Any, value: Any, place: str) -> Any:
    if value is None:
        return None
    (inner,) = (one for one in typing.get_args(kind) if one is not type(None))
    return _build(inner, value, place)


def _build_dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise exception.Invalid(field=place, reason="an object is needed")
    arguments = {}
    for one in fields(kind):
        if one.name in value:
            arguments[one.name] = _build(
                _hints(kind)[one.name], value[one.name], f"{place}.{one.name}"
            )
        elif one.default is MISSING and one.default_factory is MISSING:
            raise exception.Invalid(field=f"{place}.{one.name}", reason="missing")
    return kind(**arguments)


def _json(value: Any, place: str) -> Any:
    """A value that is JSON all the way down, and so the same on the other side of any database."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise exception.Invalid(field=place, reason="its keys are not all strings")
        return {key: _json(one, f"{place}.{key}") for key, one in value.items()}
    if isinstance(value, list):
        return [_json(one, f"{place}[{i}]") for i, one in enumerate(value)]
    if type(value) is float and not math.isfinite(value):
        raise exception.Invalid(field=place, reason=f"{value} is no number of JSON")
    if value is not None and type(value) not in (bool, int, float, str):
        raise exception.Invalid(field=place, reason="it is not JSON")
    return value


def _build_scalar(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return _json(value, place)
    if issubclass(kind, Enum) or (kind is datetime and isinstance(value, str)):
        try:
            return datetime.fromisoformat(value) if kind is datetime else kind(value)
        except ValueError:
            raise exception.Invalid(field=place, reason=f"{value!r} is unknown") from None
    if type(value) is not kind:
        raise exception.Invalid(field=place, reason=f"{kind.__name__} is needed")
    return value

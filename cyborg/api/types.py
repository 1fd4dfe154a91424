# SPDX-License-Identifier: Apache-2.0
"""Strict types for wsme, for query strings and JSON alike, and for the values in answers.

wsme's own integers accept ``1.5`` and ``true`` as 1, and its objects fail on a list. These types
refuse such values with ``ValidationError``, which has the place and the reason;
``cyborg.api.expose`` answers it with 400.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

import wsme
import wsme.types
from wsme.rest import args, json

from cyborg.api.framework import set_order
from cyborg.api.microversion import BASE, EXTENDED, LATEST
from cyborg.api.viewer import Viewer

#: The largest value of an INT column.
MAX_INT = 2**31 - 1
#: Values that a list in a query may have.
_MOST_VALUES: Final = 1000
#: The largest value of a BIGINT column.
MAX_BIG_INT = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_HEX = re.compile("[0-9a-fA-F]{32}")
_LINE_ENDS = frozenset("\t\n\r")
_MEMBER_NAME = "[A-Za-z0-9._-]{1,64}"

#: A JSON Schema.
Schema = dict[str, Any]


class ValidationError(ValueError):
    """A value that does not match its type; each level around the value extends ``path``."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def within(self, place: str) -> "ValidationError":
        """Return the same error with ``place``, where the value is, before its path."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return ValidationError(self.reason, f"{place}{joint}{self.path}")


def canonical_uuid(text: str) -> str | None:
    """Return a UUID of any case and dashes in lower case with dashes; None if it is not a UUID."""
    bare = text.replace("-", "")
    return str(UUID(bare)) if _HEX.fullmatch(bare) else None


class Strict(wsme.types.UserType):
    """Base of all types: wsme passes the raw value (JSON, or the text of a query) to ``read``."""

    basetype = str
    name = "value"

    def frombasetype(self, value: Any) -> Any:
        """Return the value that ``read`` gives; wsme calls this. None is read like other values."""
        return self.read(value)

    def read(self, value: Any) -> Any:
        """Return the value in its canonical form; raises ValidationError."""
        return value

    def at(self, minor: int) -> Self:
        """Return this type as microversion 2.``minor`` has it."""
        return self

    def render(self, value: Any, viewer: Viewer) -> Any:
        """Return a value of the service as JSON of this type, as the viewer may see it."""
        return value

    @property
    def schema(self) -> Schema:
        """Return the values of this type as a JSON Schema (2020-12, as OpenAPI 3.1 uses it)."""
        return {}


@dataclass(eq=False)
class Anything(Strict):
    """Any JSON; the caller validates it, and ``described`` is the schema that it applies."""

    described: Schema = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return dict(self.described)


@dataclass(eq=False)
class Text(Strict):
    """A string of bounded length, in characters; ``lines`` allows more than one line."""

    name = "string"
    maximum: int
    minimum: int = 0
    lines: bool = False

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("a string is needed")
        if len(value) < self.minimum:
            raise ValidationError("it must not be empty")
        if len(value) > self.maximum:
            raise ValidationError(f"longer than {self.maximum} characters")
        # Whatever has been read from a body or a query has no other control characters.
        if not self.lines and not _LINE_ENDS.isdisjoint(value):
            raise ValidationError("it must be one line without tabs")
        return value

    @property
    def schema(self) -> Schema:
        """See the parent."""
        schema: Schema = {"type": "string"} | _below("maxLength", self.maximum)
        if self.minimum:
            schema["minLength"] = self.minimum
        return schema if self.lines else schema | {"pattern": "^[^\\t\\n\\r]*$"}


class Uuid(Strict):
    """A UUID in any spelling; read as lower case with dashes."""

    name = "uuid"

    def read(self, value: Any) -> str:
        uuid = canonical_uuid(value) if isinstance(value, str) else None
        if uuid is None:
            raise ValidationError("a UUID is needed")
        return uuid

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "string", "format": "uuid"}


@dataclass(eq=False)
class Integer(Strict):
    """A whole number from ``minimum`` to ``maximum``, or its decimal digits."""

    name = "integer"
    maximum: int = MAX_INT
    minimum: int = 0

    def read(self, value: Any) -> int:
        digits = len(str(max(self.maximum, MAX_INT)))
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= digits:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValidationError("a whole number is needed")
        if not self.minimum <= value <= self.maximum:
            raise ValidationError(f"it must be between {self.minimum} and {self.maximum}")
        return value

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


class Moment(Strict):
    """A time in ISO 8601, UTC without an offset; read as milliseconds since 1970."""

    name = "time"

    def read(self, value: Any) -> int:
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise ValidationError(
                "a time in ISO 8601 is needed, for example 2026-11-22T13:05:00Z"
            ) from None
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        # Not from a number of seconds: a float has some milliseconds a little too low.
        return (zoned - _EPOCH) // _MILLISECOND

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "string", "format": "date-time"}


class IntegerOrUuid(Strict):
    """A reference to a deployable: its internal number or its uuid."""

    name = "integer or uuid"

    def read(self, value: Any) -> int | str:
        uuid = canonical_uuid(value) if isinstance(value, str) else None
        return Integer().read(value) if uuid is None else uuid

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"anyOf": [Integer().schema, UUID_TYPE.schema]}


class Word(Strict):
    """A word of a fixed set, in its exact spelling."""

    name = "word"

    def __init__(self, *words: str) -> None:
        self.words = words

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValidationError(f"it must be one of {', '.join(self.words)}")
        return value

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "string", "enum": list(self.words)}


class MemberName(Strict):
    """The name of a member of a JSON object: 1 to 64 letters, digits and . _ -"""

    name = "string"

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(_MEMBER_NAME, value) is None:
            raise ValidationError("a name of 1 to 64 letters, digits and . _ - is needed")
        return value

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "string", "pattern": f"^{_MEMBER_NAME}$"}


class Flag(Strict):
    """Yes or no, in JSON or as the words ``true`` and ``false`` in any case."""

    name = "boolean"

    def read(self, value: Any) -> bool:
        word = value.lower() if isinstance(value, str) else value
        if word is True or word == "true":
            return True
        if word is False or word == "false":
            return False
        raise ValidationError("it must be true or false")

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "boolean"}


@dataclass(eq=False)
class Container(Strict):
    """Base of types whose values hold values of the type ``item``."""

    item: Strict

    def at(self, minor: int) -> Self:
        return replace(self, item=self.item.at(minor))


@dataclass(eq=False)
class Commas(Container):
    """Up to 1,000 values separated by commas; blanks and repetitions are dropped, in order."""

    name = "list"

    def read(self, value: Any) -> list[Any]:
        parts = str(value).split(",")
        if len(parts) > _MOST_VALUES:
            raise ValidationError(
                f"it has {len(parts)} values, and at most {_MOST_VALUES} are allowed; send several "
                "requests"
            )
        items = [self.item.read(part.strip()) for part in parts if part.strip()]
        return list(dict.fromkeys(items))

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"type": "array", "items": self.item.schema}


@dataclass(eq=False)
class Items(Container):
    """A JSON list of ``minimum`` to ``maximum`` items; with ``unique``, repetitions are dropped."""

    name = "array"
    minimum: int = 0
    maximum: int = MAX_INT
    unique: bool = False

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValidationError("a list is needed")
        if not self.minimum <= len(value) <= self.maximum:
            few = len(value) < self.minimum
            bound = f"at least {self.minimum}" if few else f"at most {self.maximum}"
            raise ValidationError(f"a list of {bound} is needed")
        items = [located(f"[{index}]", self.item.read, item) for index, item in enumerate(value)]
        return list(dict.fromkeys(items)) if self.unique else items

    def render(self, value: Iterable[Any], viewer: Viewer) -> list[Any]:
        return [self.item.render(item, viewer) for item in value]

    @property
    def schema(self) -> Schema:
        """See the parent."""
        bounds = {"minItems": self.minimum} if self.minimum else {}
        return {"type": "array", "items": self.item.schema, **bounds} | _below(
            "maxItems", self.maximum
        )


@dataclass(eq=False)
class Members(Container):
    """A JSON object whose members have any name and one type; or null, if ``nullable``."""

    name = "object"
    nullable: bool = False
    maximum: int = 100

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValidationError("an object is needed")
        if len(value) > self.maximum:
            raise ValidationError(f"an object of at most {self.maximum} members is needed")
        members = {}
        for key, member in value.items():
            located(key, NAME.read, key)
            none = member is None and self.nullable
            members[key] = None if none else located(key, self.item.read, member)
        return members

    def render(self, value: Mapping[str, Any], viewer: Viewer) -> dict[str, Any]:
        return {name: self.item.render(member, viewer) for name, member in value.items()}

    @property
    def schema(self) -> Schema:
        """See the parent."""
        item = self.item.schema
        return {
            "type": "object",
            "propertyNames": NAME.schema,
            "additionalProperties": or_null(item) if self.nullable else item,
            "maxProperties": self.maximum,
        }


class Field(wsme.wsattr):
    """A member of an object or a query that exists from microversion 2.``since`` on.

    Below it the member is treated like any other name that is not declared: a query or a closed
    object refuses it, an open object ignores it.
    """

    def __init__(self, datatype: Strict, *, since: int, mandatory: bool = False) -> None:
        super().__init__(datatype, mandatory=mandatory)
        self.since = since


def first_version(attribute: wsme.wsattr) -> int:
    """Return the minor microversion from which on an attribute exists."""
    return attribute.since if isinstance(attribute, Field) else BASE


def attributes(declared: type["Declared"], minor: int) -> dict[str, wsme.wsattr]:
    """Return the attributes that a declaration has at microversion 2.``minor``, by name."""
    return {
        attribute.name: attribute
        for attribute in wsme.types.list_attributes(declared)
        if first_version(attribute) <= minor
    }


def versioned(kind: Strict, first: int) -> Schema:
    """Return the schema of a member or parameter; ``x-openstack`` has its first microversion."""
    return kind.schema | ({"x-openstack": {"min-ver": f"2.{first}"}} if first > BASE else {})


def or_null(schema: Schema) -> Schema:
    """Return a schema that null matches as well."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _below(word: str, maximum: int) -> Schema:
    """Return a limit of a schema; none where only the type of a column limits the value."""
    return {word: maximum} if maximum < MAX_INT else {}


class Declared(wsme.types.Base):
    """Base of classes that declare the members of an object or a query."""

    def __init_subclass__(cls) -> None:
        """Set the order of the members; without it, wsme reads and parses the source file.

        Raises TypeError for a member without a type of this module: wsme would ignore it.
        """
        for name, value in vars(cls).items():
            if not (name.startswith("_") or isinstance(value, (Strict, wsme.wsattr))):
                raise TypeError(f"{cls.__name__}.{name} has no type of {__name__}")
        members = (
            name
            for base in cls.__mro__
            for name, value in vars(base).items()
            if isinstance(value, (Strict, wsme.wsattr))
        )
        set_order(cls, dict.fromkeys(members))


@dataclass(eq=False)
class Object(Strict):
    """A JSON object with the attributes of a wsme type; other keys are ignored.

    With ``closed`` other keys are refused. Read as a dict of the given attributes. The handler
    refuses an object without the members ``needed``; the description says that they are required.
    """

    name = "object"
    declared: type[Declared]
    closed: bool = False
    needed: tuple[str, ...] = ()
    minor: int = LATEST

    def at(self, minor: int) -> Self:
        return replace(self, minor=minor)

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValidationError("an object is needed")
        return members(self.declared, value, json.fromjson, self.minor, closed=self.closed)

    @property
    def schema(self) -> Schema:
        """See the parent; the docstring of the declared class describes the object."""
        given = attributes(self.declared, self.minor)
        schema: Schema = {
            "title": self.declared.__name__,
            "description": inspect.getdoc(self.declared) or "",
            "type": "object",
            "properties": {
                name: versioned(attribute.datatype.at(self.minor), first_version(attribute))
                for name, attribute in given.items()
            },
        }
        required = [name for name, attribute in given.items() if attribute.mandatory]
        if required := [*required, *self.needed]:
            schema["required"] = required
        return schema | ({"additionalProperties": False} if self.closed else {})


@dataclass(eq=False)
class PartialObject(Object):
    """A JSON object that names at least one attribute of a wsme type, and no others.

    A null is kept: it removes the stored value, where the handler allows that.
    """

    closed: bool = True

    def read(self, value: Any) -> dict[str, Any]:
        changes = super().read(value)
        changes |= {name: None for name in value if value[name] is None}
        if not changes:
            names = ", ".join(sorted(attributes(self.declared, self.minor)))
            raise ValidationError(f"at least one of {names} is needed")
        return changes

    @property
    def schema(self) -> Schema:
        """See the parent."""
        schema = super().schema
        properties = {name: or_null(member) for name, member in schema["properties"].items()}
        return schema | {"properties": properties, "minProperties": 1}


def query(declared: type[Declared], given: Mapping[str, str], minor: int) -> dict[str, Any]:
    """Return the given query parameters, validated, at microversion 2.``minor``.

    Raises ValidationError for a parameter that this microversion does not have.
    """
    return members(declared, given, args.from_param, minor, closed=True)


def members(
    declared: type[Declared],
    given: Mapping[str, Any],
    convert: Callable[[Any, Any], Any],
    minor: int,
    *,
    closed: bool,
) -> dict[str, Any]:
    """Return the declared members of ``given``, converted; raises ValidationError."""
    result: dict[str, Any] = {}
    unknown = set(given)
    for attribute in wsme.types.list_attributes(declared):
        name, since = attribute.name, first_version(attribute)
        if minor < since:
            if closed and name in given:
                raise ValidationError(
                    f"there is no such parameter below microversion 2.{since}", name
                )
            continue
        unknown.discard(name)
        if name not in given or (given[name] is None and not attribute.mandatory):
            if attribute.mandatory:
                raise ValidationError("it is missing", name)
            continue
        kind = attribute.datatype.at(minor)
        # wsme accepts null for any type; here each type decides.
        reader = kind.read if given[name] is None else lambda raw, kind=kind: convert(kind, raw)
        result[name] = located(name, reader, given[name])
    if closed and unknown:
        raise ValidationError("there is no such parameter here", min(unknown))
    return result


def located(place: str, reader: Callable[[Any], Any], value: Any) -> Any:
    """Return ``reader(value)``; adds the place to the path of its ValidationError."""
    try:
        return reader(value)
    except ValidationError as fault:
        raise fault.within(place) from None


UUID_TYPE = Uuid()
INTEGER = Integer()
FLAG = Flag()
NAME = Text(255)
MEMBER_NAME = MemberName()
ANYTHING = Anything()
#: The name of a driver, or the uuid of a driver of one host.
DRIVER = Text(100, minimum=1)
#: Names of compute hosts, without repetitions.
HOSTS = Items(Text(255, minimum=1), minimum=1, maximum=1000, unique=True)


class Paging(Declared):
    """The query parameters of a list that has pages."""

    limit = wsme.wsattr(INTEGER)
    marker = wsme.wsattr(UUID_TYPE)


class Listing(Paging):
    """The query parameters of a list that can be sorted."""

    sort_key = wsme.wsattr(NAME)
    sort_dir = wsme.wsattr(NAME)


class WaitQuery(Declared):
    """The query parameter of long verbs: whether to wait for hosts whose agent is down."""

    wait = wsme.wsattr(FLAG)


class ForceQuery(Declared):
    """Whether to remove units although they are not cleaned; only administrators may."""

    force = Field(FLAG, since=EXTENDED)


class NoQuery(Declared):
    """No query parameters."""

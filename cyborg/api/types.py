# SPDX-License-Identifier: Apache-2.0
"""What may come in: strict types for wsme, for query strings and JSON alike.

wsme's own integers take ``1.5`` and ``true`` for 1, and its objects fail on a list. These types
refuse what they do not mean with ``Wrong``, which tells where and why; ``cyborg.api.expose`` turns
that into the client's 400.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import wsme
import wsme.types
from wsme.rest import args, json

#: The largest value of an INT column.
MAX_INT = 2**31 - 1
_HEX = re.compile("[0-9a-fA-F]{32}")


class Wrong(ValueError):
    """A value that is not what was declared; ``path`` grows from the inside out."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def within(self, place: str) -> "Wrong":
        """The same fault, seen from the value around it."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return Wrong(self.reason, f"{place}{joint}{self.path}")


def canonical_uuid(text: str) -> str | None:
    """The lower-case form with dashes of whatever is a UUID but for case and dashes, or None."""
    bare = text.replace("-", "")
    return str(UUID(bare)) if _HEX.fullmatch(bare) else None


class Strict(wsme.types.UserType):
    """Base of all: wsme hands the raw value (JSON, or the text of a query) to ``read``."""

    basetype = str
    name = "value"

    def frombasetype(self, value: Any) -> Any:
        """What wsme calls; None is a value like others here, see ``required``."""
        return self.read(value)

    def read(self, value: Any) -> Any:
        """The value in its canonical form; raises Wrong."""
        return value


class Anything(Strict):
    """Any JSON; a rule further in looks at it."""


class Text(Strict):
    """A string of bounded length, in characters."""

    name = "string"

    def __init__(self, maximum: int, minimum: int = 0) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise Wrong("a string is needed")
        if len(value) < self.minimum:
            raise Wrong("it must not be empty")
        if len(value) > self.maximum:
            raise Wrong(f"longer than {self.maximum} characters")
        return value


class Uuid(Strict):
    """A UUID in any spelling; what comes out is lower case with dashes."""

    name = "uuid"

    def read(self, value: Any) -> str:
        found = canonical_uuid(value) if isinstance(value, str) else None
        if found is None:
            raise Wrong("a UUID is needed")
        return found


class Integer(Strict):
    """A whole number from 0 that an INT column can hold, or its decimal digits."""

    name = "integer"

    def read(self, value: Any) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Wrong("a whole number is needed")
        if not 0 <= value <= MAX_INT:
            raise Wrong(f"it must be between 0 and {MAX_INT}")
        return value


class IntegerOrUuid(Strict):
    """How clients name a deployable: by its internal number or its uuid."""

    name = "integer or uuid"

    def read(self, value: Any) -> int | str:
        found = canonical_uuid(value) if isinstance(value, str) else None
        return Integer().read(value) if found is None else found


class Word(Strict):
    """One of a few words, in their exact spelling."""

    name = "word"

    def __init__(self, *words: str) -> None:
        self.words = words

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise Wrong(f"it must be one of {', '.join(self.words)}")
        return value


class Flag(Strict):
    """Yes or no, in JSON or as the words ``true`` and ``false`` in any case."""

    name = "boolean"

    def read(self, value: Any) -> bool:
        word = value.lower() if isinstance(value, str) else value
        if word is True or word == "true":
            return True
        if word is False or word == "false":
            return False
        raise Wrong("it must be true or false")


class Commas(Strict):
    """Values with commas between them; blanks and repetitions fall away, order stays."""

    name = "list"

    def __init__(self, item: Strict) -> None:
        self.item = item

    def read(self, value: Any) -> list[Any]:
        found = [self.item.read(part.strip()) for part in str(value).split(",") if part.strip()]
        return list(dict.fromkeys(found))


class Items(Strict):
    """A JSON list of ``minimum`` to ``maximum`` items."""

    name = "array"

    def __init__(self, item: Strict, minimum: int = 0, maximum: int = MAX_INT) -> None:
        self.item = item
        self.minimum = minimum
        self.maximum = maximum

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Wrong("a list is needed")
        if not self.minimum <= len(value) <= self.maximum:
            few = len(value) < self.minimum
            bound = f"at least {self.minimum}" if few else f"at most {self.maximum}"
            raise Wrong(f"a list of {bound} is needed")
        return [located(f"[{index}]", self.item.read, one) for index, one in enumerate(value)]


class Names(Items):
    """A JSON list in which each item stands once; what is repeated falls away."""

    def read(self, value: Any) -> list[Any]:
        return list(dict.fromkeys(super().read(value)))


class Members(Strict):
    """A JSON object whose members, of any name, are of one kind; or null where that is said."""

    name = "object"

    def __init__(self, item: Strict, *, nullable: bool = False, maximum: int = 100) -> None:
        self.item = item
        self.nullable = nullable
        self.maximum = maximum

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Wrong("an object is needed")
        if len(value) > self.maximum:
            raise Wrong(f"an object of at most {self.maximum} members is needed")
        found = {}
        for key, one in value.items():
            located(key, NAME.read, key)
            none = one is None and self.nullable
            found[key] = None if none else located(key, self.item.read, one)
        return found


class Declared(wsme.types.Base):
    """Base of what declares the members of an object or of a query."""

    def __init_subclass__(cls) -> None:
        """Tell wsme the order of the members; to find it out, it would read and parse our source.

        Raises TypeError for a member that is none of ours: wsme would not see it.
        """
        for name, value in vars(cls).items():
            if not (name.startswith("_") or isinstance(value, (Strict, wsme.wsattr))):
                raise TypeError(f"{cls.__name__}.{name} has no type of {__name__}")
        cls._wsme_attr_order = [
            *dict.fromkeys(
                name
                for one in cls.__mro__
                for name, value in vars(one).items()
                if isinstance(value, (Strict, wsme.wsattr))
            )
        ]


class Object(Strict):
    """A JSON object with the attributes of a wsme type; what else it holds is ignored.

    With ``closed`` other keys are refused. Comes out as a dict of the attributes that were given.
    """

    name = "object"

    def __init__(self, declared: type[Declared], *, closed: bool = False) -> None:
        self.declared = declared
        self.closed = closed

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Wrong("an object is needed")
        return members(self.declared, value, json.fromjson, closed=self.closed)


class Change(Object):
    """A JSON object that names at least one attribute of a wsme type, and no others.

    A null is kept: it takes away what is there, where a rule further in allows that.
    """

    def __init__(self, declared: type[Declared]) -> None:
        super().__init__(declared, closed=True)

    def read(self, value: Any) -> dict[str, Any]:
        found = super().read(value)
        found |= {name: None for name in value if value[name] is None}
        if not found:
            known = ", ".join(sorted(one.name for one in wsme.types.list_attributes(self.declared)))
            raise Wrong(f"at least one of {known} is needed")
        return found


def query(declared: type[Declared], given: Mapping[str, str]) -> dict[str, Any]:
    """The query parameters that were given, checked; raises Wrong for one not declared."""
    return members(declared, given, args.from_param, closed=True)


def members(
    declared: type[Declared],
    given: Mapping[str, Any],
    convert: Callable[[Any, Any], Any],
    *,
    closed: bool,
) -> dict[str, Any]:
    """Those of ``given`` that ``declared`` knows, converted; raises Wrong naming the member."""
    found: dict[str, Any] = {}
    attributes = wsme.types.list_attributes(declared)
    for attribute in attributes:
        name, kind = attribute.name, attribute.datatype
        if name not in given or (given[name] is None and not attribute.mandatory):
            if attribute.mandatory:
                raise Wrong("it is missing", name)
            continue
        # wsme lets null pass for any type; here it is as wrong as any other.
        reader = kind.read if given[name] is None else lambda raw, kind=kind: convert(kind, raw)
        found[name] = located(name, reader, given[name])
    unknown = sorted(given.keys() - {attribute.name for attribute in attributes})
    if closed and unknown:
        raise Wrong("there is no such parameter here", unknown[0])
    return found


def located(place: str, reader: Callable[[Any], Any], value: Any) -> Any:
    """What ``reader`` makes of the value; its Wrong names the place."""
    try:
        return reader(value)
    except Wrong as fault:
        raise fault.within(place) from None


UUID_TYPE = Uuid()
INTEGER = Integer()
FLAG = Flag()
NAME = Text(255)
ANYTHING = Anything()
#: Compute hosts by name, each once.
HOSTS = Names(Text(255, minimum=1), minimum=1, maximum=1000)


class Listing(Declared):
    """The query parameters of every list."""

    limit = wsme.wsattr(INTEGER)
    marker = wsme.wsattr(UUID_TYPE)
    sort_key = wsme.wsattr(NAME)
    sort_dir = wsme.wsattr(NAME)


class Patience(Declared):
    """The query parameter of long verbs: whether hosts whose agent is down may come later."""

    wait = wsme.wsattr(FLAG)


class NoQuery(Declared):
    """No query parameter at all."""

# SPDX-License-Identifier: Apache-2.0
"""Answers: each object in answers is one table of members, an ``Answer``.

The table renders an object of the service as JSON, leaves out what the microversion does not have
or the caller must not see, and describes the object for the OpenAPI document. A handler returns
objects of the service; ``cyborg.api.expose`` renders them with the ``answer`` of the handler.
"""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, Generic, Self, TypeVar

from cyborg.api import types
from cyborg.api.microversion import BASE, EXTENDED, LATEST
from cyborg.api.types import Schema, Strict
from cyborg.api.viewer import Viewer

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Member(Generic[T]):
    """A member of an object, with its type, from microversion 2.``since`` on.

    ``of`` takes its value from the object that is shown; by default the value is the attribute that
    has the name of the member, see ``Answer``. ``placed``: it tells where the object is or who else
    uses it, and callers whose scope does not show hosts do not get the member.
    """

    kind: Strict
    of: Callable[[T], Any] | None = None
    since: int = BASE
    placed: bool = False


@dataclass(frozen=True)
class Source(Generic[T]):
    """How to read an object that an ``Answer`` shows.

    Members without ``of`` are attributes of ``row(object)``, by default of the object itself.
    ``hosts`` returns the names of hosts that texts of the object may have; see ``Said``.
    """

    row: Callable[[T], Any] | None = None
    hosts: Callable[[T], Collection[str | None]] | None = None


class Answer(Strict, Generic[T]):
    """An object in answers, with exactly these members; it shows an object of the type ``T``."""

    def __init__(
        self,
        title: str,
        text: str,
        source: Source[T] | None = None,
        /,
        **members: Member[T],
    ) -> None:
        self._title = title
        self._text = text
        self._hosts = source.hosts if source else None
        self._members = members
        row = source.row if source else None
        self._of = {name: member.of or _attribute(name, row) for name, member in members.items()}
        self._minor = LATEST

    def members(self, base: Callable[[S], T]) -> dict[str, Member[S]]:
        """Return the members for an object with more members, which shows ``base(object)``, too."""
        return {
            name: Member(member.kind, _chain(base, self._of[name]), member.since, member.placed)
            for name, member in self._members.items()
        }

    def render(self, value: T, viewer: Viewer) -> dict[str, Any]:
        """See the parent."""
        if self._hosts:
            viewer = viewer.naming(self._hosts(value))
        return {
            name: member.kind.render(self._of[name](value), viewer)
            for name, member in self._members.items()
            if member.since <= viewer.minor and (viewer.scope.shows_hosts or not member.placed)
        }

    def at(self, minor: int) -> "Answer[T]":
        """See the parent."""
        older = copy(self)
        older._minor = minor
        return older

    @property
    def schema(self) -> Schema:
        """See the parent."""
        minor = self._minor
        given = {name: member for name, member in self._members.items() if member.since <= minor}
        return {
            "title": self._title,
            "description": self._text,
            "type": "object",
            "properties": {
                name: types.versioned(member.kind.at(minor), member.since)
                for name, member in given.items()
            },
            "required": [name for name, member in given.items() if not member.placed],
            "additionalProperties": False,
        }


def _attribute(name: str, row: Callable[[T], Any] | None) -> Callable[[T], Any]:
    return _chain(row, attrgetter(name)) if row else attrgetter(name)


def _chain(first: Callable[[S], Any], then: Callable[[Any], Any]) -> Callable[[S], Any]:
    return lambda value: then(first(value))


@dataclass(eq=False)
class Nullable(types.Container):
    """A value of the type ``item``, or null."""

    def render(self, value: Any, viewer: Viewer) -> Any:
        """See the parent."""
        return None if value is None else self.item.render(value, viewer)

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return types.or_null(self.item.schema)


class Placed(Nullable):
    """A value that tells where something is, or null; null for callers who must not know that."""

    def render(self, value: Any, viewer: Viewer) -> Any:
        """See the parent."""
        return super().render(value, viewer) if viewer.scope.shows_hosts else None


class PlacedObject(types.Anything):
    """An object that tells where something is; empty for callers who must not know that."""

    def render(self, value: Mapping[str, Any] | None, viewer: Viewer) -> Any:
        """See the parent."""
        return viewer.scope.placed(value) or {}

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return OBJECT.schema


@dataclass(eq=False)
class Said(types.Container):
    """A value of the type ``item`` with texts that may have names of hosts; see ``Scope.said``."""

    def render(self, value: Any, viewer: Viewer) -> Any:
        """See the parent."""
        return viewer.said(self.item.render(value, viewer))

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return self.item.schema


class HostName(types.Text):
    """The name of a host, or its alias for callers who must not know the name."""

    def render(self, value: str | None, viewer: Viewer) -> str | None:
        """See the parent."""
        return viewer.scope.host(value)


class Time(types.Moment):
    """A time: a stored one, or milliseconds since 1970 by the database's clock."""

    def render(self, value: datetime | int, viewer: Viewer) -> str:
        """Return the time in ISO 8601 with ``+00:00``; a stored one is UTC without a zone."""
        return instant(value) if isinstance(value, int) else f"{value.isoformat()}+00:00"


def instant(milliseconds: int) -> str:
    """Return milliseconds since 1970 by the database's clock in ISO 8601 with ``+00:00``."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


@dataclass(eq=False)
class Links(Strict):
    """The links to an object of a resource; the value is its uuid.

    With ``bookmark`` the second link is the URL without a version.
    """

    collection: str
    bookmark: bool = False

    def render(self, value: str, viewer: Viewer) -> list[dict[str, Any]]:
        """See the parent."""
        links = [(viewer.links.self_of(self.collection) + value, "self")]
        if self.bookmark:
            links.append((f"{viewer.links.base}/{self.collection}/{value}", "bookmark"))
        return [LINK.render(link, viewer) for link in links]

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return types.Items(LINK).schema


@dataclass(eq=False)
class Envelope(types.Container):
    """An answer with one member, ``member``."""

    member: str

    def render(self, value: Any, viewer: Viewer) -> dict[str, Any]:
        """See the parent."""
        return {self.member: self.item.render(value, viewer)}

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {
            "type": "object",
            "properties": {self.member: self.item.schema},
            "required": [self.member],
            "additionalProperties": False,
        }


@dataclass(eq=False)
class Either(Strict):
    """An object of one of several kinds, by the class of the object that is shown."""

    kinds: Mapping[type, Answer[Any]]

    def render(self, value: Any, viewer: Viewer) -> dict[str, Any]:
        """See the parent."""
        return self.kinds[type(value)].render(value, viewer)

    def at(self, minor: int) -> Self:
        """See the parent."""
        return replace(self, kinds={name: kind.at(minor) for name, kind in self.kinds.items()})

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"anyOf": [kind.schema for kind in self.kinds.values()]}


@dataclass(eq=False)
class Before(Strict):
    """``older`` below microversion 2.``since``, and ``newer`` from it on."""

    since: int
    older: Strict
    newer: Strict

    def render(self, value: Any, viewer: Viewer) -> Any:
        """See the parent."""
        return (self.newer if viewer.minor >= self.since else self.older).render(value, viewer)

    def at(self, minor: int) -> Strict:
        """See the parent."""
        return (self.newer if minor >= self.since else self.older).at(minor)


@dataclass(eq=False)
class Paged(Envelope):
    """An answer with a list, and with links to its next page if there is one."""

    @property
    def schema(self) -> Schema:
        """See the parent."""
        whole = super().schema
        links = {f"{self.member}_links": types.Items(NEXT_LINK, 1, 1).schema}
        return whole | {"properties": {**whole["properties"], **links}}


def listing(member: str, item: Strict) -> Before:
    """Return an answer with a list, which has pages from microversion 2.100 on."""
    items = types.Items(item)
    return Before(EXTENDED, Envelope(items, member), Paged(items, member))


STRING: Final = types.Text(types.MAX_INT, lines=True)
HOST: Final = HostName(types.MAX_INT, lines=True)
TIME: Final = Time()
OBJECT: Final = types.Anything({"type": "object"})
PLACED_OBJECT: Final = PlacedObject()
TEXT_OR_NULL: Final = Nullable(STRING)
PLACED_TEXT: Final = Placed(STRING)
SAID: Final = Said(STRING)
SAID_OR_NULL: Final = Said(TEXT_OR_NULL)
HOST_OR_NULL: Final = Nullable(HOST)
UUID_OR_NULL: Final = Nullable(types.UUID_TYPE)
PLACED_UUID: Final = Placed(types.UUID_TYPE)
TIME_OR_NULL: Final = Nullable(TIME)
STRINGS: Final = types.Items(STRING)
LINK: Final = Answer[tuple[str, str]](
    "Link",
    "A link to an object.",
    href=Member(STRING, lambda link: link[0]),
    rel=Member(types.Word("self", "bookmark"), lambda link: link[1]),
)
NEXT_LINK: Final = Answer[str](
    "NextLink",
    "A link to the next page of a list.",
    href=Member(STRING, lambda url: url),
    rel=Member(types.Word("next"), lambda _url: "next"),
)

# SPDX-License-Identifier: Apache-2.0
"""Describe answers, for the OpenAPI document.

The handlers render answers as dicts; the tests of the API compare each one with its description.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from cyborg.api import types
from cyborg.api.microversion import BASE, LATEST, OPERATOR_VIEWS
from cyborg.api.types import Schema, Strict


@dataclass(frozen=True)
class Shown:
    """A member of an answer from microversion 2.``since`` on; ``always``: every caller gets it."""

    kind: Strict
    since: int = BASE
    always: bool = True


class Answer(Strict):
    """An object in answers, with exactly these members."""

    def __init__(self, title: str, text: str, **members: Shown) -> None:
        self._title = title
        self._text = text
        self._members = members
        self._minor = LATEST

    def extended(self, title: str, text: str, **members: Shown) -> "Answer":
        """Return an object with these members and those of this one."""
        return Answer(title, text, **self._members, **members)

    def at(self, minor: int) -> "Answer":
        """See the parent."""
        older = Answer(self._title, self._text, **self._members)
        older._minor = minor
        return older

    @property
    def schema(self) -> Schema:
        """See the parent."""
        minor = self._minor
        given = {name: shown for name, shown in self._members.items() if shown.since <= minor}
        return {
            "title": self._title,
            "description": self._text,
            "type": "object",
            "properties": {
                name: types.versioned(shown.kind.at(minor), shown.since)
                for name, shown in given.items()
            },
            "required": [name for name, shown in given.items() if shown.always],
            "additionalProperties": False,
        }


@dataclass(eq=False)
class Nullable(types.Container):
    """A value of the type ``item``, or null."""

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return types.or_null(self.item.schema)


@dataclass(eq=False)
class Envelope(types.Container):
    """An answer with one member, ``member``."""

    member: str

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
    """An answer of one of several types."""

    kinds: tuple[Strict, ...]

    def at(self, minor: int) -> Self:
        """See the parent."""
        return replace(self, kinds=tuple(kind.at(minor) for kind in self.kinds))

    @property
    def schema(self) -> Schema:
        """See the parent."""
        return {"anyOf": [kind.schema for kind in self.kinds]}


@dataclass(eq=False)
class Before(Strict):
    """``older`` below microversion 2.``since``, and ``newer`` from it on."""

    since: int
    older: Strict
    newer: Strict

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
    """Return an answer with a list, which has pages from microversion 2.5 on."""
    items = types.Items(item)
    return Before(OPERATOR_VIEWS, Envelope(items, member), Paged(items, member))


STRING: Final = types.Text(types.MAX_INT, lines=True)
TIME: Final = types.Moment()
OBJECT: Final = types.Anything({"type": "object"})
TEXT_OR_NULL: Final = Nullable(STRING)
UUID_OR_NULL: Final = Nullable(types.UUID_TYPE)
TIME_OR_NULL: Final = Nullable(TIME)
LINK: Final = Answer(
    "Link", "A link to an object.", href=Shown(STRING), rel=Shown(types.Word("self", "bookmark"))
)
LINKS: Final = types.Items(LINK)
NEXT_LINK: Final = Answer(
    "NextLink",
    "A link to the next page of a list.",
    href=Shown(STRING),
    rel=Shown(types.Word("next")),
)

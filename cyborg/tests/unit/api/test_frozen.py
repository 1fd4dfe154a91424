# SPDX-License-Identifier: Apache-2.0
"""Microversions 2.0 to 2.3 keep their routes, parameters, bodies and answers.

``frozen.txt`` has one line for each request. A parameter or field of a later microversion
(``types.Field``) has a line of its own, so that it changes no line of 2.3 or below. The answer of a
request has a line at each microversion that gives it other members; "?" follows one that not every
answer has. Other tests compare the answers with what is declared.
``CONTRIBUTING.rst`` has the recipe.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import wsme.types

from cyborg.api import types
from cyborg.api.controllers import v2
from cyborg.api.expose import Contract, Controller, contract
from cyborg.tests import committed

FILE = Path(__file__).with_name("frozen.txt")
#: The newest microversion that a release had.
NEWEST = 3
FROZEN = (
    "Microversion 2.3 is frozen: clients rely on its routes, parameters, bodies and answers. Give\n"
    "a new route since=microversion.EXTENDED in @expose, declare a new parameter or field as\n"
    "types.Field(..., since=microversion.EXTENDED), and a new member of an answer as\n"
    "answers.Member(..., since=microversion.EXTENDED). Then run this test with\n"
    "CYBORG_TEST_REWRITE=1. It may only add and change lines that begin with 2.100."
)


def is_frozen(line: str) -> bool:
    """Whether a line is about a microversion that a release had."""
    return int(line.split(" ")[0].rpartition(".")[2]) <= NEWEST


def attributes(base: type[wsme.types.Base]) -> list[tuple[int, str]]:
    """Return the first microversion and the text of each parameter or field, by name.

    In the text an exclamation mark stands for a mandatory attribute.
    """
    return [
        (
            types.first_version(attribute),
            f"{attribute.name}:{attribute.datatype.name}{'!' if attribute.mandatory else ''}",
        )
        for attribute in sorted(wsme.types.list_attributes(base), key=attrgetter("name"))
    ]


def bases_of(kind: Any) -> list[type[wsme.types.Base]]:
    """Return the declared types that a query or a body is checked by."""
    parts = [kind] if inspect.isclass(kind) else vars(kind or object).values()
    return [part for part in parts if inspect.isclass(part) and issubclass(part, wsme.types.Base)]


def surface() -> Iterator[str]:
    """Yield the lines of all requests of the API."""
    for module in pkgutil.iter_modules(v2.__path__, f"{v2.__name__}."):
        for noun in vars(importlib.import_module(module.name)).values():
            defined = inspect.isclass(noun) and noun.__module__ == module.name
            if defined and issubclass(noun, Controller):
                yield from lines_of(noun)


def lines_of(noun: type[Controller]) -> Iterator[str]:
    """Yield the lines of all requests of a noun: the request, then what a later version adds.

    A path begins with the name of the class in lower case, which is "arqs" for ARQs.
    """
    collection = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", noun.__name__).lower()
    for path, methods in noun.routes.items():
        for verb, name in methods.items():
            exposed = contract(getattr(noun, name))
            request = f"{verb} {f'/{collection}/{path}'.rstrip('/')}"
            first = max(exposed.since, NEWEST)
            words = [f"2.{exposed.since} {request}", f"status={exposed.status}"]
            added = []
            for part in ("query", "body", "strict"):
                kind = getattr(exposed, part)
                shown = [] if part == "query" or kind is None else [type(kind).__name__]
                for base in bases_of(kind):
                    fields = attributes(base)
                    shown.append(",".join(text for since, text in fields if since <= first))
                    added += [
                        f"2.{since} {request} {part}+={text}"
                        for since, text in fields
                        if since > first
                    ]
                words.append(f"{part}={'/'.join(shown) or '-'}")
            yield " ".join(words)
            yield from added
            yield from answers_of(exposed, request)


def answers_of(exposed: Contract, request: str) -> Iterator[str]:
    """Yield the lines of the answer of a request up to the newest released microversion."""
    before = None
    for minor in range(exposed.since, NEWEST + 1):
        kind = exposed.answer_at(minor)
        members = "-" if kind is None else ",".join(members_of(kind.schema)) or kind.schema["type"]
        if members != before:
            yield f"2.{minor} {request} answer={members}"
        before = members


def members_of(schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the members of a JSON schema, with the path to those of nested objects."""
    for name, part in sorted(schema.get("properties", {}).items()):
        yield f"{place}{name}{'' if name in schema.get('required', ()) else '?'}"
        yield from members_of(part, f"{place}{name}.")
    for part in (*filter(None, [schema.get("items")]), *schema.get("anyOf", ())):
        yield from members_of(part, place)


def test_requests_of_frozen_microversions_do_not_change() -> None:
    lines = sorted(surface())
    written = committed.lines_of(FILE, lines)
    assert list(filter(is_frozen, lines)) == list(filter(is_frozen, written)), FROZEN
    assert len(lines) > 30

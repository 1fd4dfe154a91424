# SPDX-License-Identifier: Apache-2.0
"""Microversion 2.4 and those below take what they took: routes, parameters and bodies.

``frozen.txt`` has a line for each. What is answered is watched over where there is something to
answer, by ``cyborg/tests/functional/rolling``.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wsme.types

from cyborg.api.controllers import v2
from cyborg.api.routing import Noun
from cyborg.tests import committed

FILE = Path(__file__).with_name("frozen.txt")
#: The newest microversion that a release had.
NEWEST = 4
FROZEN = (
    "Microversion 2.4 is frozen: clients rely on what it takes and answers. Make 2.5, and let\n"
    "only requests of it, or above, have what is new. If older ones are as they were, write the\n"
    "file anew with CYBORG_TEST_REWRITE=1; lines of 2.4 and below must not change by that."
)


def is_frozen(line: str) -> bool:
    """Whether a line is about a microversion that a release had."""
    return int(line.split(" ")[0].rpartition(".")[2]) <= NEWEST


def declared(base: type[wsme.types.Base]) -> str:
    """The parameters or fields of a type, those that must be there with an exclamation mark."""
    return ",".join(
        sorted(
            f"{one.name}:{one.datatype.name}{'!' if one.mandatory else ''}"
            for one in wsme.types.list_attributes(base)
        )
    )


def body_of(kind: Any) -> str:
    """What a body is checked by, with the fields of the objects in it."""
    if kind is None:
        return "-"
    found = [one for one in vars(kind).values() if inspect.isclass(one)]
    fields = [declared(one) for one in found if issubclass(one, wsme.types.Base)]
    return "/".join([type(kind).__name__, *fields])


def surface() -> Iterator[str]:
    """All requests that there are, in a line each."""
    for module in pkgutil.iter_modules(v2.__path__, f"{v2.__name__}."):
        for noun in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(noun) and issubclass(noun, Noun) and noun.__module__ == module.name:
                for path, methods in noun.routes.items():
                    for verb, name in methods.items():
                        where = f"/{module.name.rpartition('.')[2]}/{path}".rstrip("/")
                        yield _line(verb, where, getattr(noun, name))


def _line(verb: str, where: str, handler: Any) -> str:
    said = inspect.getclosurevars(handler).nonlocals
    words = [
        f"2.{said['since']} {verb} {where}",
        f"status={202 if said['long'] else said['status']}",
        f"query={declared(said['query']) or '-'}",
        f"body={body_of(said['body'])}",
        f"strict={body_of(said['strict'])}",
    ]
    return " ".join(words)


def test_what_was_taken_is_taken() -> None:
    lines = sorted(surface())
    written = committed.lines_of(FILE, lines)
    assert list(filter(is_frozen, lines)) == list(filter(is_frozen, written)), FROZEN
    assert len(lines) > 30

# SPDX-License-Identifier: Apache-2.0
"""Routes as a table: which path and method leads to which handler, and nothing else does.

pecan's own REST routing takes the method from a query parameter, offers ``/new`` and ``/edit`` and
answers 404 or 405 by chance.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import pecan
import webob.exc

#: Where the environment of a request has its route: the path, with ``{id}`` for what is named.
ROUTE: Final = "cyborg.route"

#: Paths below a noun, and for each the handler's name by method.
Routes = Mapping[str, Mapping[str, str]]


def segments(args: Sequence[str]) -> list[str]:
    """The parts of a path; slashes at the end or in a row make none."""
    return [part for part in args if part]


class Noun:
    """One resource; ``routes`` maps paths below it to the handler's name for each method.

    A path is "" for the collection, "*" for one of its things, "*/enable" for a verb on it. HEAD
    goes where GET goes. No route: 404; a route but not for this method: 405 with Allow.
    """

    routes: ClassVar[Routes]

    @pecan.expose()
    def _route(self, args: Sequence[str], request: Any) -> tuple[Any, list[str]]:
        parts = segments(args)
        for pattern, methods in self.routes.items():
            captured = _captured(pattern, parts)
            if captured is not None:
                request.environ[ROUTE] = request.environ.get(ROUTE, "") + _shown(pattern)
                return getattr(self, _handler(methods, request.method)), captured
        raise webob.exc.HTTPNotFound("There is no such resource.")


def _shown(pattern: str) -> str:
    return "".join("/" + ("{id}" if part == "*" else part) for part in segments(pattern.split("/")))


def _captured(pattern: str, parts: Sequence[str]) -> list[str] | None:
    expected = segments(pattern.split("/"))
    if len(expected) != len(parts) or any(
        name not in ("*", part) for name, part in zip(expected, parts, strict=True)
    ):
        return None
    return [part for name, part in zip(expected, parts, strict=True) if name == "*"]


def _handler(methods: Mapping[str, str], method: str) -> str:
    name = methods.get("GET" if method == "HEAD" else method)
    if name is None:
        allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
        raise webob.exc.HTTPMethodNotAllowed(
            f"{method} is not allowed here.", headers={"Allow": ", ".join(allowed)}
        )
    return name

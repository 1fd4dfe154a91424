# SPDX-License-Identifier: Apache-2.0
"""Route each path and method to its handler by a table.

pecan's own REST routing accepts the method as a query parameter, adds ``/new`` and ``/edit``, and
is not consistent about 404 and 405.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import pecan
import webob.exc

#: Key of the route in the environment of a request: the path, with ``{id}`` for each identifier.
ROUTE: Final = "cyborg.route"

#: For each path below a resource, the name of the handler by method.
Routes = Mapping[str, Mapping[str, str]]


def segments(args: Sequence[str]) -> list[str]:
    """Return the parts of a path that are not empty."""
    return [part for part in args if part]


class Noun:
    """One resource; ``routes`` maps paths below it to the handler's name for each method.

    The path is "" for the collection, "*" for one item, "*/enable" for an action on an item. HEAD
    uses the handler of GET. A path without a route answers 404; a path that has no route for the
    method answers 405 with Allow.
    """

    routes: ClassVar[Routes]

    @pecan.expose()
    def _route(self, args: Sequence[str], request: Any) -> tuple[Any, list[str]]:
        parts = segments(args)
        for pattern, methods in self.routes.items():
            captured = _captured(pattern, parts)
            if captured is not None:
                route = "".join(
                    "/" + ("{id}" if part == "*" else part) for part in segments(pattern.split("/"))
                )
                request.environ[ROUTE] = request.environ.get(ROUTE, "") + route
                return getattr(self, _handler(methods, request.method)), captured
        raise webob.exc.HTTPNotFound("There is no such resource.")


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

# SPDX-License-Identifier: Apache-2.0
"""Serve the API below the path of its public endpoint if no server or proxy removes that path.

uWSGI and mod_wsgi mount an application below a path, and many proxies strip it. ``cyborg-api``
alone, and proxies that pass paths on unchanged, do neither.
"""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from cyborg.api import rendering

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Prefixed:
    """Serves an application below a path and at the root."""

    def __init__(self, app: WsgiApp, path: str) -> None:
        self._app = app
        self._path = path

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Move the prefix from PATH_INFO to SCRIPT_NAME, and pass the request on."""
        path = environ.get("PATH_INFO", "")
        if path == self._path or path.startswith(f"{self._path}/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + self._path
            environ["PATH_INFO"] = path.removeprefix(self._path)
        return self._app(environ, start_response)


def below(app: WsgiApp, public_endpoint: str | None) -> WsgiApp:
    """Serve ``app`` below the path of the public endpoint, if it has one."""
    # WSGI paths have no escapes, and each of their bytes is a character.
    path = unquote(rendering.path_of(public_endpoint), "latin-1")
    return Prefixed(app, path) if path else app

# SPDX-License-Identifier: Apache-2.0
"""The path below which clients see the service, where neither server nor proxy takes it off.

uWSGI and mod_wsgi mount an application below a path, many proxies strip it; ``cyborg-api`` on its
own, and proxies that hand paths on as they are, do neither.
"""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from cyborg.api import rendering

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Prefixed:
    """Serves an application below a path, too; at the root it stays as it was."""

    def __init__(self, app: WsgiApp, path: str) -> None:
        self._app = app
        self._path = path

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Move the prefix from the path to what the application is mounted at, and hand on."""
        path = environ.get("PATH_INFO", "")
        if path == self._path or path.startswith(f"{self._path}/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + self._path
            environ["PATH_INFO"] = path.removeprefix(self._path)
        return self._app(environ, start_response)


def below(app: WsgiApp, public_endpoint: str | None) -> WsgiApp:
    """Serve ``app`` below the path of the public endpoint, if it has one."""
    # WSGI has paths without escapes, and each of their bytes as a character.
    path = unquote(rendering.path_of(public_endpoint), "latin-1")
    return Prefixed(app, path) if path else app

# SPDX-License-Identifier: Apache-2.0
"""Limit what a request reads of its body, behind any WSGI server.

cyborg-api refuses a large body before it reaches the application. Other WSGI servers pass on what a
client sends, and a chunked body has no length that could be checked first.
"""

import io
from collections.abc import Callable, Iterable
from typing import Any

import webob.exc

from cyborg.api import expose
from cyborg.api.framework import WsgiApp
from cyborg.api.parsing import MAX_BYTES


class BodyLimit:
    """Wraps an application: reading more than MAX_BYTES of a body raises webob's 413.

    A request with both Content-Length and Transfer-Encoding gets 400: a proxy and a server that
    choose different ones would not agree about where the next request begins.
    """

    def __init__(self, app: WsgiApp) -> None:
        self._app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Pass the request on with a body that counts what is read."""
        refusal: Iterable[bytes]
        chunked = "HTTP_TRANSFER_ENCODING" in environ
        if chunked and environ.get("CONTENT_LENGTH"):
            sentence = "A request has Content-Length or Transfer-Encoding, not both."
            refusal = expose.refusal(400, sentence)(environ, start_response)
            return refusal
        if chunked:
            environ["wsgi.input"] = io.BufferedReader(_CountedBody(environ["wsgi.input"]))
        try:
            return self._app(environ, start_response)
        except webob.exc.HTTPRequestEntityTooLarge as error:
            # A filter outside the API has read the body.
            refusal = expose.refusal(413, str(error.detail))(environ, start_response)
            return refusal


class _CountedBody(io.RawIOBase):
    def __init__(self, body: Any) -> None:
        self._body = body
        self._left = MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._body.read(min(len(buffer), self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise webob.exc.HTTPRequestEntityTooLarge(f"A body has at most {MAX_BYTES} bytes.")
        buffer[: len(data)] = data
        return len(data)

# SPDX-License-Identifier: Apache-2.0
"""Set the ids and the trace of each request, and log the result of each request that writes."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

from opentelemetry.trace import SpanKind

from cyborg import context, tracing
from cyborg.api.framework import ROUTE, WsgiApp, request_id

LOG = logging.getLogger(__name__)

#: Where the filter of oslo.middleware puts the id that the client sent, if that is well-formed.
_GLOBAL_ID: Final = "openstack.global_request_id"
#: Longer trace headers of clients are dropped: each event stores them, and W3C lets each service
#: decide what it forwards beyond this length.
_LONGEST_TRACE: Final = 512
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestLog:
    """Wraps an application: log lines, RPC and spans of a request carry its ids.

    One line at INFO has the status of each request whose method is not GET, HEAD or OPTIONS.
    """

    def __init__(self, app: WsgiApp) -> None:
        self._app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Pass the request on within its ids and its span; log the result."""
        method, status = environ["REQUEST_METHOD"], "500"
        id_ = request_id(environ)
        ids = {context.REQUEST_ID: id_, context.GLOBAL_ID: environ.get(_GLOBAL_ID)}
        headers = {key: environ.get(f"HTTP_{key.upper()}", "") for key in tracing.KEYS}
        trace = {key: text for key, text in headers.items() if 0 < len(text) <= _LONGEST_TRACE}

        def started(line: str, *more: Any) -> Any:
            nonlocal status
            status = line[:3]
            return start_response(line, *more)

        with (
            context.working_for(ids),
            tracing.span(
                method,
                SpanKind.SERVER,
                origin=trace,
                begins=True,
                http__request__method=method,
                openstack__request_id=id_,
            ) as span,
        ):
            try:
                answer = self._app(environ, started)
            finally:
                if method not in _READS:
                    # In WSGI each byte of the path is a character.
                    path = environ.get("PATH_INFO", "").encode("latin-1", "replace")
                    LOG.info("%s %s: %s", method, quote(path), status)
            tracing.answered(span, int(status), first_error=500)
            if ROUTE in environ:
                span.set_attribute("http.route", environ[ROUTE])
                span.update_name(f"{method} {environ[ROUTE]}")
            return answer

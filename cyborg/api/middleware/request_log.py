# SPDX-License-Identifier: Apache-2.0
"""Set the ids and the trace of each request, and log the result of each request that writes."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

from oslo_context import context as ids

from cyborg import context, tracing
from cyborg.api.routing import ROUTE

LOG = logging.getLogger(__name__)

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

#: Where the filter of oslo.middleware puts the id of the request, and the id that the client sent,
#: if that is well-formed.
REQUEST_ID: Final = "openstack.request_id"
_GLOBAL_ID: Final = "openstack.global_request_id"
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
        request_id = environ.setdefault(REQUEST_ID, None) or ids.generate_request_id()
        environ[REQUEST_ID] = request_id
        request_ids = {context.REQUEST_ID: request_id, context.GLOBAL_ID: environ.get(_GLOBAL_ID)}

        def started(line: str, *more: Any) -> Any:
            nonlocal status
            status = line[:3]
            return start_response(line, *more)

        with (
            context.working_for(request_ids),
            tracing.span(
                method,
                tracing.Kind.SERVER,
                origin=_trace(environ),
                begins=True,
                http__request__method=method,
                openstack__request_id=request_id,
            ) as span,
        ):
            try:
                answer = self._app(environ, started)
            finally:
                if method not in _READS:
                    LOG.info("%s %s: %s", method, _shown(environ), status)
            span.answered(int(status))
            if ROUTE in environ:
                span.set_attribute("http.route", environ[ROUTE])
                span.update_name(f"{method} {environ[ROUTE]}")
            return answer


def _trace(environ: dict[str, Any]) -> dict[str, str]:
    """Return the client's trace headers of up to 512 characters; each event stores them.

    W3C lets each service decide what it forwards beyond this length.
    """
    sent = {key: environ.get(f"HTTP_{key.upper()}", "") for key in tracing.KEYS}
    return {key: value for key, value in sent.items() if 0 < len(value) <= _LONGEST_TRACE}


def _shown(environ: dict[str, Any]) -> str:
    """Return the path as the client sent it; in WSGI each byte is a character."""
    return quote(environ.get("PATH_INFO", "").encode("latin-1", "replace"))

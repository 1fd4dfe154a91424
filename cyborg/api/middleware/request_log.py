# SPDX-License-Identifier: Apache-2.0
"""Set the ids and the trace of each request, and log the result of each request that writes."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

from opentelemetry.trace import SpanKind

from cyborg import context, tracing
from cyborg.api.framework import ROUTE, WsgiApp, request_id
from cyborg_cli.text import escaped_line

LOG = logging.getLogger(__name__)

#: Where the filter of oslo.middleware puts the id that the client sent, if that is well-formed.
_GLOBAL_ID: Final = "openstack.global_request_id"
#: Longer trace headers of clients are dropped: each event stores them, and W3C lets each service
#: decide what it forwards beyond this length.
_LONGEST_TRACE: Final = 512
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: The longest reason in a line, in characters.
_LONGEST_REASON: Final = 500


class RequestLog:
    """Wraps an application: log lines, RPC and spans of a request carry its ids.

    One line at INFO has the status and the duration of each request whose method is not GET, HEAD
    or OPTIONS, and the reason why a request is refused (4xx).
    """

    def __init__(self, app: WsgiApp) -> None:
        self._app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Pass the request on within its ids and its span; log the result."""
        method, status, began = environ["REQUEST_METHOD"], "500", time.monotonic()
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
            answer: Iterable[bytes] = ()
            try:
                answer = self._app(environ, started)
            finally:
                if method not in _READS:
                    # In WSGI each byte of the path is a character.
                    path = environ.get("PATH_INFO", "").encode("latin-1", "replace")
                    reason = _reason(answer) if status.startswith("4") else ""
                    LOG.info(
                        "%s %s: %s in %d ms%s",
                        *(method, quote(path), status, 1000 * (time.monotonic() - began)),
                        f": {reason}" if reason else "",
                    )
            tracing.answered(span, int(status), first_error=500)
            if ROUTE in environ:
                span.set_attribute("http.route", environ[ROUTE])
                span.update_name(f"{method} {environ[ROUTE]}")
            return answer


def _reason(answer: Iterable[bytes]) -> str:
    """Return the sentence of an answer that refuses a request; empty for any other answer."""
    if not isinstance(answer, list):
        return ""
    try:
        sentence = json.loads(json.loads(b"".join(answer))["error_message"])["faultstring"]
    except (ValueError, LookupError, TypeError):
        return ""
    return escaped_line(str(sentence))[:_LONGEST_REASON]

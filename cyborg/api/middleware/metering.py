# SPDX-License-Identifier: Apache-2.0
"""Count and time the requests of the API, and serve the metrics; off by default.

The processes of a server (uWSGI) share their metrics in files of prometheus_client, in the
directory that ``PROMETHEUS_MULTIPROC_DIR`` names.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from cyborg import exception, version
from cyborg.api.framework import ROUTE, WsgiApp
from cyborg.api.readiness import PATH as HEALTH
from cyborg.metrics import catalogue
from cyborg.metrics.meters import PATH, BuildInfo
from cyborg.model.process import API

LOG = logging.getLogger(__name__)

#: prometheus_client reads this variable when it is imported.
DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER: Final = "other"
_PAGE: Final = "cyborg.metrics"


class Metering:
    """Wraps all other layers, so that it also counts requests that filters refuse.

    ``MetricsEndpoint``, behind the filters, answers the page. Raises ConfigError if the shared
    directory of the processes does not exist.
    """

    def __init__(self, app: WsgiApp) -> None:
        self._app = app
        self._directory = os.environ.get(DIRECTORY)
        if self._directory is not None and not os.path.isdir(self._directory):
            raise exception.ConfigError(
                reason=f"The environment's {DIRECTORY} = {self._directory} is no directory."
            )
        self._registry = CollectorRegistry()
        self._requests = catalogue.REQUESTS.counter(self._registry)
        self._seconds = catalogue.REQUEST_SECONDS.histogram(self._registry)
        self._build = BuildInfo(API, version.installed())
        if self._directory is None:
            self._registry.register(self._build)
        self._warned = False

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Pass the request on and count it, unless it is for the metrics page."""
        environ[_PAGE] = self._page
        if _is_page(environ):
            if environ.get("wsgi.multiprocess") and self._directory is None and not self._warned:
                self._warned = True
                LOG.warning(
                    "The metrics cover only one of several processes: %s is not set in the "
                    "environment of the server",
                    DIRECTORY,
                )
            return self._app(environ, start_response)
        began, status = time.monotonic(), "500"

        def started(line: str, *more: Any) -> Any:
            nonlocal status
            status = line[:3]
            return start_response(line, *more)

        try:
            return self._app(environ, started)
        finally:
            is_health = str(environ.get("PATH_INFO", "")).rstrip("/") == HEALTH
            route = HEALTH if is_health else str(environ.get(ROUTE, _OTHER))
            method = environ["REQUEST_METHOD"]
            method = method if method in _METHODS else _OTHER
            self._requests.labels(route, method, status).inc()
            self._seconds.labels(route, method).observe(time.monotonic() - began)

    def _page(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer GET and HEAD of the page; other methods get 405.

        prometheus_client's own application does not answer HEAD.
        """
        method, status, body = environ["REQUEST_METHOD"], "200 OK", b""
        headers = [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)]
        if method not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
            headers.append(("Allow", "GET, HEAD"))
        else:
            registry = self._registry
            if self._directory is not None:
                registry = CollectorRegistry()
                MultiProcessCollector(registry, self._directory)  # type: ignore[no-untyped-call]
                registry.register(self._build)
            body = generate_latest(registry)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if method == "HEAD" else [body]


class MetricsEndpoint:
    """Answers the metrics page of the outer ``Metering``; passes on everything else."""

    def __init__(self, app: WsgiApp) -> None:
        self._app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer the metrics page, or pass the request on."""
        page: WsgiApp = self._app
        if _is_page(environ):
            page = environ.get(_PAGE, self._app)
        return page(environ, start_response)


def _is_page(environ: dict[str, Any]) -> bool:
    return str(environ.get("PATH_INFO", "")).rstrip("/") == PATH

# SPDX-License-Identifier: Apache-2.0
"""How many requests the API answered, how fast, and the page that shows it; off by default.

Several processes of one server (uWSGI) share what they count through the files of
prometheus_client, in the directory that ``PROMETHEUS_MULTIPROC_DIR`` names.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from cyborg import exception, version
from cyborg.api.health import PATH as HEALTH
from cyborg.api.routing import ROUTE
from cyborg.metrics import catalogue
from cyborg.metrics.listener import PATH, Page
from cyborg.metrics.meters import BuildInfo
from cyborg.model.names import API

LOG = logging.getLogger(__name__)

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

#: prometheus_client itself reads it, when it is imported.
DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER: Final = "other"
_PAGE: Final = "cyborg.metrics"


class Metering:
    """Goes around everything else, so that what filters refuse is counted, too.

    ``MetricsEndpoint``, behind the filters, answers the page. Raises ConfigError when the directory
    that processes share does not exist.
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
        self._page = Page(self._fresh)
        self._warned = False

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Hand the request on, and count it; the page is not counted."""
        environ[_PAGE] = self._page
        if _is_page(environ):
            self._warn(environ)
            return self._app(environ, start_response)
        began, status = time.monotonic(), "500"

        def started(line: str, *more: Any) -> Any:
            nonlocal status
            status = line[:3]
            return start_response(line, *more)

        try:
            return self._app(environ, started)
        finally:
            route, method = _route(environ), environ["REQUEST_METHOD"]
            method = method if method in _METHODS else _OTHER
            self._requests.labels(route, method, status).inc()
            self._seconds.labels(route, method).observe(time.monotonic() - began)

    def _fresh(self) -> CollectorRegistry:
        if self._directory is None:
            return self._registry
        together = CollectorRegistry()
        MultiProcessCollector(together, self._directory)  # type: ignore[no-untyped-call]
        together.register(self._build)
        return together

    def _warn(self, environ: dict[str, Any]) -> None:
        if environ.get("wsgi.multiprocess") and self._directory is None and not self._warned:
            self._warned = True
            LOG.warning(
                "Metrics are those of one process of several: %s is not set in the environment of "
                "the server",
                DIRECTORY,
            )


class MetricsEndpoint:
    """Answers the page of a ``Metering`` further out; everything else is the application's."""

    def __init__(self, app: WsgiApp) -> None:
        self._app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer, or hand on."""
        page: WsgiApp = self._app
        if _is_page(environ):
            page = environ.get(_PAGE, self._app)
        return page(environ, start_response)


def _is_page(environ: dict[str, Any]) -> bool:
    return str(environ.get("PATH_INFO", "")).rstrip("/") == PATH


def _route(environ: dict[str, Any]) -> str:
    """The route that was taken; one word for all paths that lead nowhere."""
    if str(environ.get("PATH_INFO", "")).rstrip("/") == HEALTH:
        return HEALTH
    return str(environ.get(ROUTE, _OTHER))

# SPDX-License-Identifier: Apache-2.0
"""The REST API for uWSGI, mod_wsgi and their like: ``cyborg.wsgi.api:application``.

Importing this reads nothing and connects to nothing. Each process reads its configuration from the
usual places (``/etc/cyborg`` …; never from the server's command line) when its first request
comes, after the server has forked.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from cyborg import conf as configuration
from cyborg import exception, tracing
from cyborg.api import app, expose
from cyborg.model.names import API

LOG = logging.getLogger(__name__)


class Door:
    """A WSGI application that is made when it is first called, once.

    While the configuration cannot be used, every request is answered with 503 and the log says
    why; a mended file is read without a restart.
    """

    def __init__(self, make: Callable[[], app.WsgiApp]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._app: app.WsgiApp | None = None

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Hand the request on."""
        if self._app is None:
            try:
                with self._lock:
                    self._app = self._app or self._make()
            except exception.ConfigError as error:
                LOG.critical("%s", error)
                away = exception.Unavailable(peer="The service", reason="it is not configured")
                refusal: Iterable[bytes] = expose.fault(away, "")(environ, start_response)
                return refusal
        return self._app(environ, start_response)


def make() -> app.WsgiApp:
    """Configure this process and build its application; raises ConfigError."""
    conf = configuration.prepare([], prog=API)
    with configuration.checked(conf):
        tracing.start(conf, API)
        return app.load(conf)


application = Door(make)

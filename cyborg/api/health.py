# SPDX-License-Identifier: Apache-2.0
"""``/healthcheck``: whether this process reaches its database and a conductor; no token needed.

Load balancers use ``GET /``, so that they do not remove every API when the database is
unreachable. ``/healthcheck`` is for operators and monitoring. With ``[healthcheck] detailed`` the
answer has the reasons and the health view: every process and peer with state, cause and remedy.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import sqlalchemy as sa
from oslo_config import cfg
from oslo_middleware.healthcheck.pluginbase import HealthcheckResult

from cyborg import exception
from cyborg.api.framework import HealthPage, WsgiApp
from cyborg.api.observing import Observer
from cyborg.db.engine import Reader
from cyborg.model.health_view import Component
from cyborg.rpc.conductor import ConductorClient

PATH: Final = "/healthcheck"
#: Seconds for which one observation answers all requests for details.
_FRESH: Final = 5.0


class Health:
    """Answers the health page; passes every other path to the application."""

    def __init__(
        self, app: WsgiApp, conf: cfg.ConfigOpts, *, reader: Reader, conductor: ConductorClient
    ) -> None:
        self._app = app
        self._reader = reader
        self._conductor = conductor
        checks = self._check_database, self._check_bus
        self._page = HealthPage(app, conf, checks, self._components)
        self._observer = Observer(conf, reader=reader, conductor=conductor)
        self._observing = threading.Lock()
        self._observation: tuple[float, list[Component]] | None = None

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer ``/healthcheck``, or pass the request on."""
        own = environ.get("PATH_INFO", "").rstrip("/") == PATH
        app: WsgiApp = self._page if own else self._app
        return app(environ, start_response)

    def _check_database(self, _server_port: int) -> HealthcheckResult:
        """Run one statement on a connection of the pool."""
        try:
            with self._reader.reader() as tx:
                tx.execute(sa.select(sa.literal(1)))
        except exception.CyborgError as error:
            return HealthcheckResult(available=False, reason=error.public, details=str(error))
        return HealthcheckResult(available=True, reason="The database answers.")

    def _check_bus(self, _server_port: int) -> HealthcheckResult:
        """Return the state of the connection, which retries by itself until a conductor answers.

        Right after the connection starts, this waits a moment for an answer, as a request does.
        """
        if self._conductor.reached():
            return HealthcheckResult(available=True, reason="A conductor answers.")
        reason = "No conductor answers yet."
        return HealthcheckResult(available=False, reason=reason, details=self._conductor.trouble)

    def _components(self) -> list[Component]:
        """Return the health view, at most ``_FRESH`` seconds old, as monitoring may poll often."""
        with self._observing:
            if self._observation is None or time.monotonic() - self._observation[0] > _FRESH:
                components = self._observer.components()
                self._observation = time.monotonic(), components
            return self._observation[1]

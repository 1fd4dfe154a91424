# SPDX-License-Identifier: Apache-2.0
"""``/healthcheck``: whether this process reaches its database and a conductor; no token needed.

``GET /`` is the shallow check for load balancers, which must not take every API away when the
database is; this one is for people and monitoring.
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final

import sqlalchemy as sa
from oslo_config import cfg
from oslo_middleware import healthcheck
from oslo_middleware.healthcheck.pluginbase import HealthcheckResult

from cyborg import exception
from cyborg.db.engine import Reader
from cyborg.rpc.conductor import ConductorClient

PATH: Final = "/healthcheck"


class DatabaseCheck:
    """Asks the database for nothing, and sees whether it answers."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def healthcheck(self, _server_port: int) -> HealthcheckResult:
        """One statement on a connection of the pool."""
        try:
            with self._reader.reader() as tx:
                tx.execute(sa.select(sa.literal(1)))
        except exception.CyborgError as error:
            return HealthcheckResult(available=False, reason=str(error))
        return HealthcheckResult(available=True, reason="The database answers.")


class BusCheck:
    """Tells whether a conductor answers over the message bus."""

    def __init__(self, conductor: ConductorClient) -> None:
        self._conductor = conductor

    def healthcheck(self, _server_port: int) -> HealthcheckResult:
        """What the connection knows; it looks again by itself while nobody answers.

        Who has only just begun to look waits a moment for it, as a request would.
        """
        if self._conductor.reached():
            return HealthcheckResult(available=True, reason="A conductor answers.")
        return HealthcheckResult(available=False, reason="No conductor answers yet.")


class Health(healthcheck.Healthcheck):
    """oslo.middleware's health check with ours, besides those of ``[healthcheck] backends``."""

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        conf: cfg.ConfigOpts,
        *,
        reader: Reader,
        conductor: ConductorClient,
    ) -> None:
        super().__init__(app, conf)
        self._app = app
        # Its own way to name checks, entry points, cannot hand them what they look at.
        self._backends: Any = [
            *self._backends,
            *(SimpleNamespace(obj=check) for check in (DatabaseCheck(reader), BusCheck(conductor))),
        ]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Answer the one path; everything else is the application's."""
        if environ.get("PATH_INFO", "").rstrip("/") == PATH:
            return super().__call__(environ, start_response)
        return self._app(environ, start_response)

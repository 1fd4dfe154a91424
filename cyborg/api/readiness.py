# SPDX-License-Identifier: Apache-2.0
"""``/healthcheck``: whether this process reaches its database and a conductor; no token needed.

Load balancers use ``GET /``, so that they do not remove every API when the database is
unreachable. ``/healthcheck`` is for operators and monitoring. With ``[healthcheck] detailed`` the
answer has the reasons and the health view: every process and peer with state, cause and remedy.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final
from uuid import uuid4

import sqlalchemy as sa
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.base import BaseIdentityPlugin
from oslo_config import cfg
from oslo_middleware.healthcheck.pluginbase import HealthcheckResult

from cyborg import exception
from cyborg.api.framework import HealthPage, WsgiApp
from cyborg.api.middleware import auth_token
from cyborg.clients import http
from cyborg.clients.http import KEYSTONE, Sessions
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.db import revisions, services
from cyborg.db.engine import Reader
from cyborg.model import process, readiness
from cyborg.model.readiness import DATABASE, Component, Look
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.threads import in_thread

PATH: Final = "/healthcheck"
PLACEMENT: Final = "Placement"
NOVA: Final = "Nova"
#: Seconds for which one observation answers all requests for details.
_FRESH: Final = 5.0
#: Timeout of the checks, in seconds; all of them run in parallel.
_PATIENCE: Final = 8.0
_ORDER: Final = (DATABASE, KEYSTONE, PLACEMENT, NOVA)
#: The configuration group of the account for each peer.
_GROUPS: Final = {PLACEMENT: "placement", NOVA: "nova", KEYSTONE: "keystone_authtoken"}


class ReadinessCheck:
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
        self._lock = threading.Lock()
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
        with self._lock:
            if self._observation is None or time.monotonic() - self._observation[0] > _FRESH:
                components = self._observer.components()
                self._observation = time.monotonic(), components
            return self._observation[1]


def down_after(conf: cfg.ConfigOpts) -> dict[str, int]:
    """Return ``process.down_after`` for the configuration of this API."""
    return process.down_after(
        heartbeat_interval=conf.agent.heartbeat_interval, lease=conf.conductor.lease
    )


class Observer:
    """Checks the components that the service depends on, for the health view.

    ``cyborg-status check`` runs the same checks as the page: the schema and the process rows of the
    database, a conductor over the message bus, tokens of Keystone for the configured accounts, and
    one read-only request each to Placement and Nova.
    """

    def __init__(self, conf: cfg.ConfigOpts, *, reader: Reader, conductor: ConductorClient) -> None:
        auth_token.register_opts(conf)
        self._conf = conf
        self._reader = reader
        self._conductor = conductor

    def components(self) -> list[Component]:
        """Return the state of every component; takes at most ``_PATIENCE`` seconds."""
        sessions = Sessions(self._conf)
        accounts = {PLACEMENT: sessions.placement, NOVA: sessions.nova}
        if self._conf.api.auth_strategy == "keystone":
            accounts[KEYSTONE] = sessions.keystone
        futures: dict[str, Future[Look]] = {
            DATABASE: in_thread(self._database, name="health-database"),
            PLACEMENT: in_thread(
                partial(_peer, PLACEMENT, sessions.placement, _ask_placement),
                name="health-placement",
            ),
            NOVA: in_thread(partial(_peer, NOVA, sessions.nova, _ask_nova), name="health-nova"),
            KEYSTONE: in_thread(partial(_keystone, accounts), name="health-keystone"),
        }
        processes = in_thread(self._processes, name="health-processes")
        bus = in_thread(self._bus, name="health-bus")
        wait([*futures.values(), processes, bus], _PATIENCE)
        looks = [
            future.result()
            if future.done()
            else Look(name, False, f"No answer within {_PATIENCE:g} seconds.")
            for name, future in sorted(futures.items(), key=lambda item: _ORDER.index(item[0]))
        ]
        trouble = bus.result() if bus.done() else "no connection over the message bus yet"
        rows = processes.result() if processes.done() else []
        return readiness.view(rows, down_after(self._conf), looks=looks, trouble=trouble)

    def _processes(self) -> list[readiness.Process]:
        """Return the processes; none if the database is away: ``_database`` reports that."""
        try:
            with self._reader.reader() as tx:
                return [services.readiness_of(row) for row in services.processes(tx, EVERYWHERE)]
        except exception.CyborgError:
            return []

    def _database(self) -> Look:
        try:
            revisions.check(self._reader)
        except exception.Unavailable as error:
            reason = error.fields["reason"]
            remedy = (
                "Check [database] connection: its account, database, host and port, and that the "
                "server runs."
            )
            return Look(DATABASE, False, f"{reason}.", remedy)
        except exception.SchemaError as error:
            return Look(DATABASE, False, str(error))
        return Look(DATABASE, True)

    def _bus(self) -> str:
        if self._conductor.reached():
            return ""
        return self._conductor.trouble or "no connection over the message bus yet"


def _keystone(accounts: Mapping[str, Callable[[], Adapter]]) -> Look:
    """Check that Keystone issues a token for every configured account that needs one."""
    has_account = False
    for name, make in sorted(accounts.items()):
        group = _GROUPS[name]
        try:
            adapter = make()
            if isinstance(adapter.auth or adapter.session.auth, BaseIdentityPlugin):
                has_account = True
                http.fetch_token(adapter)
        except exception.ConfigError:
            continue
        except exception.Unavailable as error:
            refused = error.fields.get("http") in (401, 403)
            remedy = (
                f"Check user, password and project of [{group}]."
                if refused
                else f"Start Keystone, or correct [{group}] auth_url."
            )
            return Look(KEYSTONE, False, f"[{group}]: {error.fields['reason']}.", remedy)
    if not has_account:
        return Look(KEYSTONE, None, "No account of this configuration uses Keystone.")
    return Look(KEYSTONE, True)


def _ask_placement(adapter: Adapter) -> None:
    Placement(adapter).find_by_uuid(str(uuid4()))


def _ask_nova(adapter: Adapter) -> None:
    Servers(adapter).vanished(())


def _peer(name: str, make: Callable[[], Adapter], ask: Callable[[Adapter], None]) -> Look:
    """Send one request to a peer with the account of its configuration group."""
    group = _GROUPS[name]
    try:
        ask(make())
    except exception.ConfigError as error:
        return Look(name, None, str(error), "Run this with the configuration of a conductor.")
    except exception.NotFound:
        cause = f"Something else answers at the endpoint of [{group}]."
        return Look(name, False, cause, f"Check the catalogue, or [{group}] endpoint_override.")
    except exception.CyborgError as error:
        if error.fields.get("peer") == KEYSTONE:
            return Look(name, None, f"Keystone gives no token for [{group}].")
        refused = error.fields.get("http") in (401, 403)
        remedy = (
            f"Give the account of [{group}] the roles that 'cyborg-status upgrade check' names."
            if refused
            else f"Start {name}, or correct the endpoint of [{group}]."
        )
        return Look(name, False, f"{error.fields.get('reason', error)}.", remedy)
    return Look(name, True)

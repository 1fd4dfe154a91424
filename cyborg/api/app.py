# SPDX-License-Identifier: Apache-2.0
"""Build the WSGI application of the API: the pipeline of filters and the controllers behind it.

Nothing here opens a connection. The reader and the bus connect at the first request of a process,
as pre-forking servers need.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

from oslo_config import cfg
from oslo_middleware import CORS, HTTPProxyToWSGI, RequestId, cors
from paste import deploy

from cyborg import exception
from cyborg.api import expose, viewer
from cyborg.api.clock import CachedClock
from cyborg.api.controllers.root import Root
from cyborg.api.controllers.v2.arqs import Arqs
from cyborg.api.controllers.v2.attributes import Attributes
from cyborg.api.controllers.v2.capacity import Capacity
from cyborg.api.controllers.v2.deployables import Deployables
from cyborg.api.controllers.v2.device_profiles import DeviceProfiles
from cyborg.api.controllers.v2.devices import Devices
from cyborg.api.controllers.v2.events import Events
from cyborg.api.controllers.v2.host_drivers import Backends, Drivers, Hardware
from cyborg.api.controllers.v2.instances import Instances
from cyborg.api.controllers.v2.limits import Limits as LimitsController
from cyborg.api.controllers.v2.operations import Operations
from cyborg.api.controllers.v2.services import Services
from cyborg.api.controllers.v2.usage import Usage
from cyborg.api.controllers.v2.vendordata import Vendordata
from cyborg.api.expose import Controller, Neighbours, Settings
from cyborg.api.framework import Application, WsgiApp
from cyborg.api.middleware import auth_token
from cyborg.api.middleware.body_limit import BodyLimit
from cyborg.api.middleware.heartbeat import Heartbeat
from cyborg.api.middleware.metering import Metering, MetricsEndpoint
from cyborg.api.readiness import ReadinessCheck, down_after
from cyborg.api.watching import EventWatch
from cyborg.clients.http import Sessions
from cyborg.clients.limits import ProjectLimits, UnifiedLimits
from cyborg.conf.api import ApiOptions
from cyborg.conf.conductor import ConductorOptions, QuotaOptions
from cyborg.db.engine import Reader
from cyborg.model.process import API
from cyborg.policy import Policy
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import Bus

LOG = logging.getLogger(__name__)

#: The resources below /v2.
NOUNS: Final[Sequence[type[Controller]]] = (
    Arqs,
    Attributes,
    Backends,
    Capacity,
    Deployables,
    DeviceProfiles,
    Devices,
    Drivers,
    Events,
    Hardware,
    Instances,
    LimitsController,
    Operations,
    Services,
    Usage,
    Vendordata,
)


def load(conf: cfg.ConfigOpts) -> WsgiApp:
    """Return the application of this process, as ``conf`` describes it.

    If the operator has a paste file, it defines the pipeline; else the code does. Factories of a
    paste file use the global ``cfg.CONF``, so ``conf`` must be that object. Raises ConfigError if
    the paste file cannot be used.
    """
    paste_file = conf.find_file(ApiOptions.read(conf).api_paste_config)
    if paste_file is None:
        return _of_process(build, conf)
    LOG.info("Paste file %s defines the filters", paste_file)
    try:
        app: WsgiApp = deploy.loadapp(f"config:{paste_file}")
    except (AttributeError, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        raise exception.ConfigError(
            reason=f"[api] api_paste_config = {paste_file} cannot be used: {error}"
        ) from error
    return _outermost(app, conf)


def build(
    conf: cfg.ConfigOpts,
    *,
    reader: Reader,
    conductor: ConductorClient,
    limits: ProjectLimits | None = None,
    neighbours: Neighbours | None = None,
    watch: EventWatch | None = None,
) -> WsgiApp:
    """Return the application with the filters that the code defines; see ``core``."""
    app = core(
        conf,
        reader=reader,
        conductor=conductor,
        limits=limits,
        neighbours=neighbours,
        watch=watch,
    )
    return _outermost(behind_filters(app, conf), conf)


def behind_filters(app: WsgiApp, conf: cfg.ConfigOpts) -> WsgiApp:
    """Return an application behind the filters that the code defines."""
    _set_cors_defaults()
    app = auth_token.protect(app, conf)
    for wrap in (RequestId, HTTPProxyToWSGI, CORS):
        app = wrap(app, conf)
    return app


def app_factory(global_conf: dict[str, Any], **local_conf: Any) -> WsgiApp:
    """Return the application behind the filters; named as a factory in paste files."""
    _set_cors_defaults()
    return _of_process(core, cfg.CONF)


def core(
    conf: cfg.ConfigOpts,
    *,
    reader: Reader,
    conductor: ConductorClient,
    limits: ProjectLimits | None = None,
    neighbours: Neighbours | None = None,
    watch: EventWatch | None = None,
) -> WsgiApp:
    """Return the API with its health check and metrics endpoint, without filters.

    ``limits`` are those of projects; None: those of Keystone, if quotas are enabled.
    ``neighbours`` are Placement and Nova; None: those of the configuration. ``watch`` wakes the
    requests that wait; None: one that polls with ``reader``.
    """
    auth_token.register_opts(conf)
    options = ApiOptions.read(conf)
    settings = Settings(
        policy=Policy(conf),
        options=options,
        conductor=ConductorOptions.read(conf),
        service_roles=frozenset(conf.keystone_authtoken.service_token_roles),
        down_after=down_after(conf),
        neighbours=neighbours or Sessions(conf),
        watch=watch or EventWatch(reader, limit=options.max_watchers),
        unified_limits=limits or (UnifiedLimits() if QuotaOptions.read(conf).enabled else None),
    )
    nouns = {noun.collection: noun(settings, reader, conductor) for noun in NOUNS}
    root = Root(nouns, options.public_endpoint)
    app: WsgiApp = Application(root, expose.fault)
    whole: WsgiApp = ReadinessCheck(app, conf, reader=reader, conductor=conductor)
    return MetricsEndpoint(whole) if options.metrics else whole


class Prefixed:
    """Serves an application below a path and at the root.

    uWSGI and mod_wsgi mount an application below a path, and many proxies strip it. ``cyborg-api``
    alone, and proxies that pass paths on unchanged, do neither.
    """

    def __init__(self, app: WsgiApp, path: str) -> None:
        self._app = app
        self._path = path

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Move the prefix from PATH_INFO to SCRIPT_NAME, and pass the request on."""
        path = environ.get("PATH_INFO", "")
        if path == self._path or path.startswith(f"{self._path}/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + self._path
            environ["PATH_INFO"] = path.removeprefix(self._path)
        return self._app(environ, start_response)


def _outermost(app: WsgiApp, conf: cfg.ConfigOpts) -> WsgiApp:
    """Add the layers outside any pipeline; the filters match paths without the prefix."""
    options = ApiOptions.read(conf)
    app = BodyLimit(app)
    if options.metrics:
        app = Metering(app)
    # WSGI paths have no escapes, and each of their bytes is a character.
    path = unquote(viewer.path_of(options.public_endpoint), "latin-1")
    return Prefixed(app, path) if path else app


def _of_process(make: Callable[..., WsgiApp], conf: cfg.ConfigOpts) -> WsgiApp:
    """Return the application that ``make`` builds, with the clients and heartbeats of a process."""
    reader = Reader.from_conf(conf)
    clock = CachedClock(reader)
    conductor = ConductorClient(
        Bus(conf),
        timeout=conf.rpc_response_timeout,
        sender=f"{API}@{conf.host}",
        now_ms=clock.now_ms,
    )
    return Heartbeat(
        make(conf, reader=reader, conductor=conductor),
        conductor=conductor,
        clock=clock,
        host=conf.host,
        endpoint=ApiOptions.read(conf).public_endpoint,
    )


def _set_cors_defaults() -> None:
    cors.set_defaults(
        allow_headers=[
            "X-Auth-Token",
            "X-Service-Token",
            "X-OpenStack-Request-ID",
            "OpenStack-API-Version",
            "Idempotency-Key",
        ],
        expose_headers=["X-OpenStack-Request-ID", "OpenStack-API-Version", "Location"],
        allow_methods=["GET", "HEAD", "POST", "PATCH", "DELETE"],
    )

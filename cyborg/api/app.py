# SPDX-License-Identifier: Apache-2.0
"""Build the WSGI application of the API: the pipeline of filters and the controllers behind it.

Nothing here opens a connection. The reader and the bus connect at the first request of a process,
as pre-forking servers need.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import webob
from oslo_config import cfg
from oslo_middleware import CORS, HTTPProxyToWSGI, RequestId, cors
from paste import deploy
from pecan.core import ExplicitPecan
from pecan.hooks import PecanHook

from cyborg import exception
from cyborg.api import expose, microversion
from cyborg.api.controllers.root import Root
from cyborg.api.controllers.v2.arqs import Arqs
from cyborg.api.controllers.v2.attributes import Attributes
from cyborg.api.controllers.v2.backends import Backends
from cyborg.api.controllers.v2.deployables import Deployables
from cyborg.api.controllers.v2.device_profiles import DeviceProfiles
from cyborg.api.controllers.v2.devices import Devices
from cyborg.api.controllers.v2.drivers import Drivers
from cyborg.api.controllers.v2.events import Events
from cyborg.api.controllers.v2.hardware import Hardware
from cyborg.api.controllers.v2.instances import Instances
from cyborg.api.controllers.v2.operations import Operations
from cyborg.api.controllers.v2.services import Services
from cyborg.api.controllers.v2.usage import Usage
from cyborg.api.expose import Rules
from cyborg.api.health import Health
from cyborg.api.middleware import auth_token, prefix
from cyborg.api.middleware.heartbeat import Heartbeat
from cyborg.api.middleware.metering import Metering, MetricsEndpoint
from cyborg.api.observing import down_after
from cyborg.api.request import Request
from cyborg.db.clock import CachedClock
from cyborg.db.engine import Reader
from cyborg.model.device_profile import Limits
from cyborg.model.process import API
from cyborg.policy import Policy
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import Bus

LOG = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-openstack-request-id"

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def load(conf: cfg.ConfigOpts) -> WsgiApp:
    """Return the application of this process, as ``conf`` describes it.

    If the operator has a paste file, it defines the pipeline; else the code does. Factories of a
    paste file use the global ``cfg.CONF``, so ``conf`` must be that object. Raises ConfigError if
    the paste file cannot be used.
    """
    paste_file = conf.find_file(conf.api.api_paste_config)
    if paste_file is None:
        reader = Reader.from_conf(conf)
        clock = CachedClock(reader)
        conductor = _conductor(conf, clock)
        return _with_heartbeat(
            build(conf, reader=reader, conductor=conductor), conf, conductor, clock
        )
    LOG.info("Paste file %s defines the filters", paste_file)
    try:
        app: WsgiApp = deploy.loadapp(f"config:{paste_file}")
    except (AttributeError, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        raise exception.ConfigError(
            reason=f"[api] api_paste_config = {paste_file} cannot be used: {error}"
        ) from error
    return _outermost(app, conf)


def build(conf: cfg.ConfigOpts, *, reader: Reader, conductor: ConductorClient) -> WsgiApp:
    """Return the application with the filters that the code defines."""
    return _outermost(behind_filters(core(conf, reader=reader, conductor=conductor), conf), conf)


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
    conf = cfg.CONF
    reader = Reader.from_conf(conf)
    clock = CachedClock(reader)
    conductor = _conductor(conf, clock)
    return _with_heartbeat(core(conf, reader=reader, conductor=conductor), conf, conductor, clock)


def core(conf: cfg.ConfigOpts, *, reader: Reader, conductor: ConductorClient) -> WsgiApp:
    """Return the API with its health check and metrics endpoint, without filters."""
    rules = Rules(
        policy=Policy(conf),
        service_roles=auth_token.service_roles(conf),
        public_endpoint=conf.api.public_endpoint,
    )
    limits = Limits(groups=conf.api.max_groups, units=conf.api.max_units_per_group)
    root = Root(
        {
            "accelerator_requests": Arqs(rules, reader, conductor),
            "attributes": Attributes(rules, reader, conductor),
            "deployables": Deployables(rules, reader, conductor),
            "device_profiles": DeviceProfiles(rules, reader, conductor, limits=limits),
            "devices": Devices(rules, reader, conductor),
            "backends": Backends(rules, reader),
            "drivers": Drivers(rules, reader, conductor),
            "events": Events(rules, reader),
            "hardware": Hardware(rules, reader),
            "instances": Instances(rules, conductor),
            "operations": Operations(rules, reader),
            "services": Services(rules, reader, conductor, down_after=down_after(conf)),
            "usage": Usage(rules, reader),
        },
        rules.public_endpoint,
    )
    app = _Application(
        root,
        hooks=[_AnswerHook()],
        request_cls=Request,
        force_canonical=False,
        guess_content_type_from_ext=False,
    )
    whole: WsgiApp = Health(app, conf, reader=reader, conductor=conductor)
    return MetricsEndpoint(whole) if conf.api.metrics else whole


class _AnswerHook(PecanHook):
    """Turns every exception into an error answer, and sets the common headers of all answers."""

    def on_route(self, state: Any) -> None:
        """Set the content type, so that pecan does not choose one (see ``Root``)."""
        state.request.pecan["content_type"] = expose.JSON

    def on_error(self, state: Any, error: Exception) -> webob.Response:
        """Return the answer for an exception of a handler or of the routing."""
        return expose.fault(error, state.request.request_id)

    def after(self, state: Any) -> None:
        """Set the headers of the request id and the microversion."""
        headers = state.response.headers
        headers[REQUEST_ID_HEADER] = state.request.request_id
        if state.request.versioned:
            microversion.stamp(headers, state.request.minor)


class _Application(ExplicitPecan):
    """pecan without context locals; it takes each route directly from the root controller.

    pecan's own walk over controllers also ends at the root, but it creates a named tuple class for
    every request, which takes a tenth of the time of a small request.
    """

    def route(self, req: Request, node: Root, path: str) -> tuple[Any, list[str]]:
        """Return the handler and the parts of the path that it takes as arguments."""
        route: tuple[Any, list[str]] = node._route(path.split("/")[1:], req)
        return route


def _outermost(app: WsgiApp, conf: cfg.ConfigOpts) -> WsgiApp:
    """Add the layers outside any pipeline; the filters match paths without the prefix."""
    return prefix.below(Metering(app) if conf.api.metrics else app, conf.api.public_endpoint)


def _conductor(conf: cfg.ConfigOpts, clock: CachedClock) -> ConductorClient:
    return ConductorClient(
        Bus(conf),
        timeout=conf.rpc_response_timeout,
        sender=f"{API}@{conf.host}",
        now_ms=clock.now_ms,
    )


def _with_heartbeat(
    app: WsgiApp, conf: cfg.ConfigOpts, conductor: ConductorClient, clock: CachedClock
) -> WsgiApp:
    return Heartbeat(
        app,
        conductor=conductor,
        clock=clock,
        host=conf.host,
        endpoint=conf.api.public_endpoint,
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

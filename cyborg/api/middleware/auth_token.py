# SPDX-License-Identifier: Apache-2.0
"""Authenticate requests with keystonemiddleware, except those to paths that need no token.

Paste files of deployers name ``AuthTokenMiddleware.factory``, with ``acl_public_routes``.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import webob
import webob.exc
from keystoneauth1 import exceptions as ks_exceptions
from keystonemiddleware import auth_token
from oslo_config import cfg

from cyborg import exception
from cyborg.api import expose, microversion
from cyborg.api.middleware.noauth import NoAuthMiddleware
from cyborg.api.middleware.request_log import RequestLog
from cyborg.clients.http import KEYSTONE
from cyborg.conf import clients

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

PUBLIC_ROUTES: Final = ("/", "/v2")
#: Pages that never need a token, because monitoring has none.
_HEALTH: Final = "/healthcheck"
_METRICS: Final = "/metrics"


class AuthTokenMiddleware(auth_token.AuthProtocol):
    """Requires a valid token for every path that is not public.

    A path matches a public route with any slashes at its end and with ``.json``. Options of
    ``[keystone_authtoken]`` may be overridden one by one in ``overrides``, as paste files do.
    Raises ConfigError if they give no account that can validate tokens.
    """

    def __init__(
        self,
        app: WsgiApp,
        conf: cfg.ConfigOpts,
        *,
        public_routes: Iterable[str] = PUBLIC_ROUTES,
        overrides: dict[str, Any] | None = None,
    ) -> None:
        try:
            super().__init__(app, {**(overrides or {}), "oslo_config_config": conf})
        except ks_exceptions.ClientException as fault:
            raise exception.ConfigError(
                reason=f"[keystone_authtoken] cannot be used: {fault}"
            ) from fault
        if self._auth is None:
            # Without this check the service starts and then fails at the first token.
            raise exception.ConfigError(
                reason="[keystone_authtoken] auth_type is not set: there is no account to check "
                "tokens with. Without Keystone set [api] auth_strategy = noauth."
            )
        monitoring = (_HEALTH, _METRICS) if conf.api.metrics else (_HEALTH,)
        self._public = frozenset(_plain(route) for route in (*public_routes, *monitoring))

    @classmethod
    def factory(cls, global_conf: dict[str, Any], **local_conf: Any) -> Callable[[WsgiApp], Any]:
        """Return a paste filter: keystonemiddleware, or no authentication if so configured."""
        routes = local_conf.pop("acl_public_routes", ",".join(PUBLIC_ROUTES)).split(",")
        public = [route.strip() for route in routes if route.strip()]
        return lambda app: protect(app, cfg.CONF, public_routes=public, overrides=local_conf)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Pass public paths on without a look at the token; authenticate all others."""
        if _plain(environ.get("PATH_INFO", "")) in self._public:
            return self._app(environ, start_response)
        return super().__call__(environ, start_response)

    def process_request(self, request: webob.Request) -> webob.Response | None:
        """Check the tokens; add ``error_message`` to the refusals of keystonemiddleware."""
        try:
            super().process_request(request)
        except webob.exc.HTTPUnauthorized as refusal:
            body = refusal.json
            refusal.json = {**body, "error_message": body["error"]["message"]}
            return _stamped(refusal)
        except webob.exc.HTTPServiceUnavailable as fault:
            rejected = isinstance(_first_cause(fault), ks_exceptions.Unauthorized)
            reason = (
                "the identity service refuses the account with which Cyborg checks tokens "
                "([keystone_authtoken])"
                if rejected
                else "the identity service cannot check the token"
            )
            error = exception.Unavailable(peer=KEYSTONE, reason=reason)
            return _stamped(expose.fault(error, ""))
        return None


def protect(
    app: WsgiApp,
    conf: cfg.ConfigOpts,
    *,
    public_routes: Iterable[str] = PUBLIC_ROUTES,
    overrides: dict[str, Any] | None = None,
) -> WsgiApp:
    """Add the filter that ``[api] auth_strategy`` names; raises ConfigError.

    Log lines of the filter and of the application have the id of their request.
    """
    register_opts(conf)
    if conf.api.auth_strategy == "noauth":
        return RequestLog(NoAuthMiddleware(app, conf))
    return RequestLog(
        AuthTokenMiddleware(app, conf, public_routes=public_routes, overrides=overrides)
    )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[keystone_authtoken]`` with Cyborg's defaults; may be called repeatedly."""
    clients.set_auth_token_defaults()
    for group, options in auth_token.list_opts():
        conf.register_opts(options, group=group)


def service_roles(conf: cfg.ConfigOpts) -> frozenset[str]:
    """Return the roles that make a token a service token."""
    register_opts(conf)
    return frozenset(conf.keystone_authtoken.service_token_roles)


def _first_cause(error: BaseException) -> BaseException:
    """Return the first error in the chain of causes."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _plain(path: str) -> str:
    return path.rstrip("/").removesuffix(".json").rstrip("/")


def _stamped(response: webob.Response) -> webob.Response:
    microversion.stamp(response.headers, None)
    return response

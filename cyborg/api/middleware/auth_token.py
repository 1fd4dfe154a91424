# SPDX-License-Identifier: Apache-2.0
"""Who is asking: keystonemiddleware, with the few paths that need no token let through.

``AuthTokenMiddleware.factory`` is named in deployers' paste files, with ``acl_public_routes``.
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
from cyborg.conf import keystone_authtoken

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

PUBLIC_ROUTES: Final = ("/", "/v2")
#: Always open, where there is such a page: whoever watches over the service has no token.
_HEALTH: Final = "/healthcheck"
_METRICS: Final = "/metrics"


class AuthTokenMiddleware(auth_token.AuthProtocol):
    """Demands a valid token for every path but the public ones.

    A path matches a public route with any slashes at its end and with ``.json``. Options of
    ``[keystone_authtoken]`` may be overridden one by one in ``overrides``, as paste files do.
    Raises ConfigError when they give no account with which tokens can be checked.
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
            # By itself it would start, and fail at the first token.
            raise exception.ConfigError(
                reason="[keystone_authtoken] auth_type is not set: there is no account to check "
                "tokens with. Without Keystone set [api] auth_strategy = noauth."
            )
        monitoring = (_HEALTH, _METRICS) if conf.api.metrics else (_HEALTH,)
        self._public = frozenset(_plain(route) for route in (*public_routes, *monitoring))

    @classmethod
    def factory(cls, global_conf: dict[str, Any], **local_conf: Any) -> Callable[[WsgiApp], Any]:
        """Paste's filter factory; builds the no-token filter where the configuration says so."""
        routes = local_conf.pop("acl_public_routes", ",".join(PUBLIC_ROUTES)).split(",")
        public = [route.strip() for route in routes if route.strip()]
        return lambda app: protect(app, cfg.CONF, public_routes=public, overrides=local_conf)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Let public paths pass, whatever token they come with."""
        if _plain(environ.get("PATH_INFO", "")) in self._public:
            return self._app(environ, start_response)
        return super().__call__(environ, start_response)

    def process_request(self, request: webob.Request) -> webob.Response | None:
        """Check the tokens; refusals keep keystonemiddleware's form and get ours besides."""
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
    """Put the filter in front that ``[api] auth_strategy`` names; raises ConfigError.

    Whatever is logged from there on carries the id of its request.
    """
    register_opts(conf)
    if conf.api.auth_strategy == "noauth":
        return RequestLog(NoAuthMiddleware(app, conf))
    return RequestLog(
        AuthTokenMiddleware(app, conf, public_routes=public_routes, overrides=overrides)
    )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[keystone_authtoken]`` with our defaults; calling twice does no harm."""
    keystone_authtoken.set_defaults()
    for group, options in auth_token.list_opts():
        conf.register_opts(options, group=group)


def service_roles(conf: cfg.ConfigOpts) -> frozenset[str]:
    """The roles that make a token a service's."""
    register_opts(conf)
    return frozenset(conf.keystone_authtoken.service_token_roles)


def _first_cause(error: BaseException) -> BaseException:
    """The error that was raised first on the way to this one."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _plain(path: str) -> str:
    return path.rstrip("/").removesuffix(".json").rstrip("/")


def _stamped(response: webob.Response) -> webob.Response:
    microversion.stamp(response.headers, None)
    return response

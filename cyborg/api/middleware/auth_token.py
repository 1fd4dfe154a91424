# SPDX-License-Identifier: Apache-2.0
"""Authenticate requests: with keystonemiddleware, or not at all (``auth_strategy = noauth``).

Paste files of deployers name ``AuthTokenMiddleware.factory``, with ``acl_public_routes``.
"""

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any, Final

import webob
import webob.exc
from keystoneauth1 import exceptions as ks_exceptions
from keystonemiddleware import auth_token
from oslo_config import cfg

from cyborg import exception
from cyborg.api import expose, microversion, openapi
from cyborg.api.framework import WsgiApp, has_account
from cyborg.api.middleware.request_log import RequestLog
from cyborg.clients.http import KEYSTONE
from cyborg.conf import clients

PUBLIC_ROUTES: Final = ("/", "/v2", f"/v2/{openapi.FILE}")
#: Pages that never need a token, because monitoring has none.
_HEALTH: Final = "/healthcheck"
_METRICS: Final = "/metrics"

#: The project and user of every request, unless ``X-Project-Id`` names another project.
PROJECT_ID: Final = "00000000000000000000000000000000"
USER_ID: Final = "00000000000000000000000000000001"
#: The user of the service token that every request has.
SERVICE_USER_ID: Final = "00000000000000000000000000000002"
_PROJECT_HEADER: Final = "HTTP_X_PROJECT_ID"
_IDENTITY: Final = {
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_USER_ID": USER_ID,
    "HTTP_X_USER_NAME": "noauth",
    "HTTP_X_ROLES": "admin,manager,member,reader",
    "HTTP_X_SERVICE_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_SERVICE_USER_ID": SERVICE_USER_ID,
}
_FOREIGN: Final = ("HTTP_X_DOMAIN_ID", "HTTP_OPENSTACK_SYSTEM_SCOPE", "HTTP_X_TENANT_ID")


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
        if not has_account(self):
            # Without this check the service starts and then fails at the first token.
            raise exception.ConfigError(
                reason="[keystone_authtoken] auth_type is not set: there is no account to check "
                "tokens with. Without Keystone set [api] auth_strategy = noauth."
            )
        self._application = app
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
            return self._application(environ, start_response)
        return super().__call__(environ, start_response)

    def process_request(self, request: webob.Request) -> webob.Response | None:
        """Check the tokens; add ``error_message`` to the refusals of keystonemiddleware."""
        try:
            super().process_request(request)
        except webob.exc.HTTPUnauthorized as refusal:
            body = refusal.json
            refusal.json = {**body, "error_message": body["error"]["message"]}
            microversion.stamp(refusal.headers, None)
            return refusal
        except webob.exc.HTTPServiceUnavailable as fault:
            cause: BaseException = fault
            while (earlier := cause.__cause__ or cause.__context__) is not None:
                cause = earlier
            rejected = isinstance(cause, ks_exceptions.Unauthorized)
            reason = (
                "the identity service refuses the account with which Cyborg checks tokens "
                "([keystone_authtoken])"
                if rejected
                else "the identity service cannot check the token"
            )
            error = exception.Unavailable(peer=KEYSTONE, reason=reason)
            response = expose.fault(error, "")
            microversion.stamp(response.headers, None)
            return response
        return None


class NoAuthMiddleware:
    """Makes every caller an administrator with a service token, without a look at its tokens.

    Unless ``[api] noauth_anywhere`` is set, raises ConfigError if the service listens on an
    address that is not loopback, and answers 403 to clients on other machines, because an external
    WSGI server may listen on any address.
    """

    def __init__(self, app: WsgiApp, conf: cfg.ConfigOpts) -> None:
        self._app = app
        self._anywhere = conf.api.noauth_anywhere
        self._service_roles = ",".join(conf.keystone_authtoken.service_token_roles)
        if not self._anywhere and not is_loopback(conf.api.host_ip):
            raise exception.ConfigError(
                reason="[api] auth_strategy = noauth lets everybody in, and [api] host_ip = "
                f"{conf.api.host_ip} is not a loopback address; set noauth_anywhere = true if "
                "that is what you want."
            )

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Set the identity headers that keystonemiddleware sets, and pass the request on."""
        if not self._anywhere and not is_loopback(environ.get("REMOTE_ADDR", "127.0.0.1")):
            error = exception.Forbidden(
                reason="Without authentication ([api] auth_strategy = noauth) this service "
                "answers its own machine only."
            )
            refusal: Iterable[bytes] = expose.fault(error, "")(environ, start_response)
            return refusal
        for name in _FOREIGN:
            environ.pop(name, None)
        environ.update(_IDENTITY, HTTP_X_SERVICE_ROLES=self._service_roles)
        environ[_PROJECT_HEADER] = environ.get(_PROJECT_HEADER) or PROJECT_ID
        return self._app(environ, start_response)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can use the address.

    An empty address is that of a peer on a Unix socket.
    """
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def _plain(path: str) -> str:
    return path.rstrip("/").removesuffix(".json").rstrip("/")

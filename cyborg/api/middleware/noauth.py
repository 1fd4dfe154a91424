# SPDX-License-Identifier: Apache-2.0
"""No Keystone: every client is an administrator; for a single machine only."""

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any, Final

from oslo_config import cfg

from cyborg import exception
from cyborg.api import expose

#: The project and user of every request, unless ``X-Project-Id`` names another project.
PROJECT_ID: Final = "00000000000000000000000000000000"
USER_ID: Final = "00000000000000000000000000000001"
_PROJECT_HEADER: Final = "HTTP_X_PROJECT_ID"
_IDENTITY: Final = {
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_USER_ID": USER_ID,
    "HTTP_X_USER_NAME": "noauth",
    "HTTP_X_ROLES": "admin,manager,member,reader",
    "HTTP_X_SERVICE_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_SERVICE_USER_ID": USER_ID,
}
_FOREIGN: Final = ("HTTP_X_DOMAIN_ID", "HTTP_OPENSTACK_SYSTEM_SCOPE", "HTTP_X_TENANT_ID")


class NoAuthMiddleware:
    """Makes every caller an administrator with a service token, without a look at its tokens.

    Unless ``[api] noauth_anywhere`` is set, raises ConfigError if the service listens on an
    address that is not loopback, and answers 403 to clients on other machines, because an external
    WSGI server may listen on any address.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], conf: cfg.ConfigOpts) -> None:
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
    """Whether only this machine can reach the address, or come from it.

    An empty address is that of a peer on a Unix socket.
    """
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

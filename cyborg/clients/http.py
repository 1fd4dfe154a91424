# SPDX-License-Identifier: Apache-2.0
"""Sessions with other services, and single requests over them.

The sessions are built once per process from the configuration. It can use every plug-in of
keystoneauth: ``auth_type = password`` and similar with Keystone, ``none`` and ``admin_token`` with
a fixed endpoint without Keystone. Every failure of a request becomes Unavailable, which names the
failed service.
"""

import contextlib
import re
import threading
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading, session
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.base import BaseIdentityPlugin
from keystoneauth1.plugin import BaseAuthPlugin
from opentelemetry.trace import SpanKind
from oslo_config import cfg

from cyborg import context, exception, tracing

#: The name of the identity service in errors.
KEYSTONE: Final = "Keystone"
_REFUSALS = frozenset({401, 403})
#: What keystoneauth adds to the text of an error. It differs in each answer, so that an error that
#: lasts would seem to be a new one each time.
_REQUEST_ID = re.compile(r" *\(Request-ID: [^()]*\)")
#: Seconds without any data after which a request fails, unless ``timeout`` is set: a peer that
#: accepts a request and never answers must not block a thread for ever.
_TIMEOUT = 60.0


def ask(peer: str, adapter: Adapter, method: str, path: str, **arguments: Any) -> requests.Response:
    """Send one request and return the answer, whatever its status below 500.

    Raises exception.Unavailable, which names ``peer``, if there is no connection, no endpoint, no
    permission (401, 403), or a status from 500; the field ``http`` holds the status, if any. The
    error names Keystone if Keystone issues no token.
    """
    fetch_token(adapter)
    try:
        answer = adapter.request(path, method, raise_exc=False, **arguments)
    except ks_exceptions.HttpError as fault:
        # An error answer of the peer is returned; Keystone's is raised, as when a token expired.
        raise _without_token(adapter, fault) from fault
    except (ks_exceptions.ClientException, requests.RequestException) as fault:
        raise exception.Unavailable(peer=peer, reason=_reason(fault), http=None) from fault
    if answer.status_code in _REFUSALS or answer.status_code >= 500:
        raise exception.Unavailable(
            peer=peer,
            reason=f"{method} {path.partition('?')[0]} was answered {answer.status_code}",
            http=answer.status_code,
        )
    return answer


def fetch_token(adapter: Adapter) -> None:
    """Fetch the token of an account, unless a valid one is cached.

    Raises exception.Unavailable, which names Keystone, its URL and the reason.
    """
    if (adapter.auth or adapter.session.auth) is None:
        return
    try:
        adapter.get_token()
    except (ks_exceptions.ClientException, requests.RequestException) as fault:
        raise _without_token(adapter, fault) from fault


def account_roles(adapter: Adapter) -> tuple[str, ...]:
    """Return the roles of an account at Keystone; none without Keystone, or without its answer."""
    plugin = adapter.auth or adapter.session.auth
    if isinstance(plugin, BaseIdentityPlugin):
        with contextlib.suppress(ks_exceptions.ClientException, requests.RequestException):
            return tuple(sorted(plugin.get_access(adapter.session).role_names or ()))
    return ()


def _without_token(adapter: Adapter, fault: Exception) -> exception.Unavailable:
    url = getattr(adapter.auth or adapter.session.auth, "auth_url", None) or "the identity service"
    status = getattr(fault, "http_status", None)
    words = _reason(fault)
    refused = status in _REFUSALS
    reason = f"{url} refuses the account: {words}" if refused else f"no token from {url}: {words}"
    return exception.Unavailable(
        peer=KEYSTONE,
        reason=reason,
        http=status,
        public="The identity service (Keystone) is not available.",
    )


def document(peer: str, answer: requests.Response) -> Any:
    """Return the JSON body of an answer; raise exception.Unavailable if it is not JSON."""
    try:
        return answer.json()
    except ValueError as fault:
        raise exception.Unavailable(
            peer=peer, reason="the answer is not JSON", http=answer.status_code
        ) from fault


def _reason(fault: BaseException) -> str:
    """Return the first line of an error; of a failed connection, the operating system's error.

    The same error has the same text each time.
    """
    words = _REQUEST_ID.sub("", str(fault).strip().partition("\n")[0])
    step: BaseException | None = fault
    while step is not None:
        if isinstance(step, OSError) and step.errno is not None:
            # requests adds the names of its own classes and of urllib3's.
            place = words.partition(": HTTP")[0]
            return f"{place}: {step.strerror or step}"
        step = step.__cause__ or step.__context__
    return words


class Session(session.Session):
    """A keystoneauth session that sends our request id along with each of its requests."""

    def request(self, url: str, method: str, *given: Any, **arguments: Any) -> requests.Response:
        """Send a request; headers of the caller override ours."""
        with tracing.span(method, SpanKind.CLIENT, http__request__method=method) as span:
            headers = {**context.headers(), **(arguments.pop("headers", None) or {})}
            answer = super().request(url, method, *given, headers=headers, **arguments)
            tracing.answered(span, answer.status_code, first_error=400)
            span.set_attribute("server.address", urlsplit(answer.url).hostname or "")
            return answer


class _Loader(loading.session.Session):
    """Make a ``Session`` from the options of a group."""

    @property
    def plugin_class(self) -> type[Session]:
        """Return the class of the sessions."""
        return Session


class Sessions:
    """Make one adapter per peer and process, at its first use.

    Groups with equal credentials share their token, which is fetched with the first request and
    again only when it expires. ``conf`` has the groups [placement], [nova], [glance] and
    [service_user] registered. Safe for threads.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._adapters: dict[str, Adapter] = {}
        self._plugins: dict[str, BaseAuthPlugin] = {}

    def placement(self) -> Adapter:
        """Return the adapter of [placement]; raise exception.ConfigError if it is unusable."""
        return self._adapter("placement")

    def nova(self) -> Adapter:
        """Return the adapter of [nova]; raise exception.ConfigError if it is unusable."""
        return self._adapter("nova")

    def glance(self) -> Adapter:
        """Return the adapter of [glance], with the account of [service_user] if it has none.

        Raises exception.ConfigError if neither can be used.
        """
        return self._adapter("glance", fallback="service_user")

    def keystone(self) -> Adapter:
        """Return an adapter with the account of [keystone_authtoken].

        Its options must be registered. Raises exception.ConfigError if the group cannot be used.
        """
        with self._lock:
            plugin = self._plugin("keystone_authtoken")
        if plugin is None:
            raise exception.ConfigError(reason="[keystone_authtoken] auth_type is not set.")
        options = self._conf.keystone_authtoken
        made = Session(
            auth=plugin,
            verify=not options.insecure and (options.cafile or True),
            cert=(options.certfile, options.keyfile) if options.certfile else None,
            timeout=options.http_connect_timeout or _TIMEOUT,
        )
        return Adapter(made, service_type="identity")

    def _adapter(self, group: str, fallback: str | None = None) -> Adapter:
        with self._lock:
            if group in self._adapters:
                return self._adapters[group]
            plugin = self._plugin(group)
            if plugin is None and fallback is not None:
                plugin = self._plugin(fallback)
            if plugin is None:
                raise exception.ConfigError(
                    reason=f"[{group}] auth_type is not set: there is no account to work with."
                )
            try:
                made = _Loader().load_from_conf_options(self._conf, group, auth=plugin)
                adapter = loading.load_adapter_from_conf_options(self._conf, group, session=made)
            except (ks_exceptions.ClientException, TypeError, ValueError) as fault:
                raise exception.ConfigError(reason=f"[{group}] cannot be used: {fault}") from fault
            if made.timeout is None:
                made.timeout = _TIMEOUT
            self._adapters[group] = adapter
            return adapter

    def _plugin(self, group: str) -> BaseAuthPlugin | None:
        """Return the plug-in of a group; groups with equal credentials share one."""
        try:
            plugin = loading.load_auth_from_conf_options(self._conf, group)
        except ks_exceptions.ClientException as fault:
            raise exception.ConfigError(reason=f"[{group}] auth_type: {fault}") from fault
        if plugin is None:
            return None
        return self._plugins.setdefault(plugin.get_cache_id() or group, plugin)

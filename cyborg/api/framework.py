# SPDX-License-Identifier: Apache-2.0
"""Adapt pecan, wsme, oslo.middleware and keystonemiddleware; no other module uses their internals.

Each of the following goes around a public interface that does not do what this API promises
(``tools/lint insides`` keeps private attributes and imports of pecan out of the other modules):

* pecan 1.8, ``pecan.core.ExplicitPecan.route``: its walk over controllers creates a class for every
  request, and its REST controllers accept the method as a query parameter, add ``/new`` and
  ``/edit``, and are not consistent about 404 and 405. ``Application`` asks the root controller, and
  ``Noun`` routes by a table.
* pecan 1.8, ``_pecan["argspec"]`` of an exposed function: pecan looks for the signature inside
  closures, and finds that of the decorated method. ``handler`` sets the signature that is called.
* pecan 1.8, ``pecan.Request``: it logs a stack trace for each URL that is not UTF-8, and parses
  each body to find arguments, which fails on malformed bodies. ``Request`` replaces both.
* pecan 1.8, ``request.pecan["content_type"]``: pecan chooses a content type by the Accept header
  and by the suffix of a path, unless this is set. The root controller checks the header.
* wsme 0.13, ``_wsme_attr_order`` of a type: without it, wsme reads and parses the source file to
  learn the order of the attributes. ``set_order`` sets it.
* oslo.middleware 8.2, ``Healthcheck._backends``: checks are loaded by entry point, which cannot
  pass them a reader or a client. ``_make_json_response`` and ``_make_text_response``: a detailed
  answer has the stacks of all threads and no place for the health view. ``_show_details``: the
  option, as a paste file may set it. ``HealthPage`` uses them.
* oslo.middleware 6.6, ``Healthcheck._ignore_path``: it compares the path with an option of its own.
* keystonemiddleware 13.0, ``AuthProtocol._conf``, its options as the paste file overrides them:
  without an account, the filter starts and then fails at the first token. ``has_account`` tells.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final, NoReturn

import pecan
import webob
import webob.exc
from keystonemiddleware.auth_token import AuthProtocol
from oslo_config import cfg
from oslo_context import context
from oslo_middleware import healthcheck
from oslo_middleware.healthcheck.pluginbase import HealthcheckResult
from pecan.core import ExplicitPecan
from pecan.hooks import PecanHook

from cyborg.api import microversion
from cyborg.context import RequestContext
from cyborg.model.readiness import Component

JSON: Final = "application/json"
REQUEST_ID_HEADER: Final = "x-openstack-request-id"
#: Key of the route in the environment of a request: the path, with ``{id}`` for each identifier.
ROUTE: Final = "cyborg.route"
#: Where the filter of oslo.middleware puts the id of the request.
_REQUEST_ID: Final = "openstack.request_id"
_MINOR: Final = "cyborg.microversion"

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
#: For each path below a resource, the name of the handler by method.
Routes = Mapping[str, Mapping[str, str]]


def request_id(environ: dict[str, Any]) -> str:
    """Return the request id that oslo.middleware set; generate it if there is no such filter."""
    environ[_REQUEST_ID] = environ.get(_REQUEST_ID) or context.generate_request_id()
    return str(environ[_REQUEST_ID])


class Request(pecan.Request):
    """A request with id, microversion and caller; only ``cyborg.api.parsing`` reads its body."""

    __getattribute__ = webob.Request.__getattribute__

    @property
    def json(self) -> NoReturn:
        """Raise ValueError, so that pecan uses ``params`` instead."""
        raise ValueError

    @property
    def params(self) -> Any:
        """Return the parameters of the query string, without those of the body."""
        return self.GET

    @property
    def request_id(self) -> str:
        """Return the id of the request."""
        return request_id(self.environ)

    def negotiate(self) -> None:
        """Set the microversion from the header; raises NotAcceptable."""
        self.environ[_MINOR] = None
        self.environ[_MINOR] = microversion.negotiate(self.headers.get(microversion.HEADER))

    def assume(self, minor: int) -> None:
        """Set the microversion of a request that has no header."""
        if microversion.HEADER not in self.headers:
            self.environ[_MINOR] = minor

    def check_accept(self) -> None:
        """Raise 406 if the client does not accept JSON."""
        if not self.accept.acceptable_offers([JSON]):
            raise webob.exc.HTTPNotAcceptable(f"Answers are {JSON}.")

    @property
    def minor(self) -> int | None:
        """Return the negotiated minor version; None if the requested one does not exist."""
        minor: int | None = self.environ.get(_MINOR)
        return minor

    def identity(self) -> RequestContext:
        """Return the caller's identity from the headers of the authentication middleware.

        The middleware removes the same headers of clients.
        """
        return RequestContext.from_environ(self.environ, request_id=self.request_id)


class Noun:
    """One resource; ``routes`` maps paths below it to the handler's name for each method.

    The path is "" for the collection, "*" for one item, "*/enable" for an action on an item. HEAD
    uses the handler of GET. A path without a route answers 404; a path that has no route for the
    method answers 405 with Allow.
    """

    routes: ClassVar[Routes]

    def route(self, parts: Sequence[str], request: Request) -> tuple[Any, list[str]]:
        """Return the handler and the identifiers in the parts of the path, none of them empty."""
        for pattern, methods in self.routes.items():
            expected = pattern.split("/") if pattern else []
            if len(expected) != len(parts) or any(
                name not in ("*", part) for name, part in zip(expected, parts, strict=True)
            ):
                continue
            path = "".join("/{id}" if name == "*" else f"/{name}" for name in expected)
            request.environ[ROUTE] = request.environ.get(ROUTE, "") + path
            handler = methods.get("GET" if request.method == "HEAD" else request.method)
            if handler is None:
                allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
                raise webob.exc.HTTPMethodNotAllowed(
                    f"{request.method} is not allowed here.",
                    headers={"Allow": ", ".join(allowed)},
                )
            identifiers = [part for name, part in zip(expected, parts, strict=True) if name == "*"]
            return getattr(self, handler), identifiers
        raise webob.exc.HTTPNotFound("There is no such resource.")


def handler(function: Callable[..., webob.Response]) -> Callable[..., webob.Response]:
    """Make ``function(self, request, response, *identifiers)`` a handler; it returns its answer."""
    exposed: Callable[..., webob.Response] = pecan.expose(content_type=JSON)(function)
    exposed._pecan["argspec"] = inspect.getfullargspec(function)  # type: ignore[attr-defined]
    return exposed


class Application(ExplicitPecan):
    """pecan without context locals; ``fault`` gives the answer for an exception and a request id.

    Every answer has the headers of the request id and, below /v2, of the microversion.
    """

    def __init__(self, root: Noun, fault: Callable[[Exception, str], webob.Response]) -> None:
        super().__init__(
            root,
            hooks=[_AnswerHook(fault)],
            request_cls=Request,
            force_canonical=False,
            guess_content_type_from_ext=False,
        )

    def route(self, req: Request, node: Noun, path: str) -> tuple[Any, list[str]]:
        """Return the handler and the parts of the path that it takes as arguments."""
        return node.route([part for part in path.split("/")[1:] if part], req)


class _AnswerHook(PecanHook):
    def __init__(self, fault: Callable[[Exception, str], webob.Response]) -> None:
        self._fault = fault

    def on_route(self, state: Any) -> None:
        state.request.pecan["content_type"] = JSON

    def on_error(self, state: Any, error: Exception) -> webob.Response:
        return self._fault(error, state.request.request_id)

    def after(self, state: Any) -> None:
        request, headers = state.request, state.response.headers
        headers[REQUEST_ID_HEADER] = request.request_id
        if _MINOR in request.environ:
            microversion.stamp(headers, request.minor)


def set_order(declared: type, names: Iterable[str]) -> None:
    """Set the order of the attributes of a wsme type."""
    declared._wsme_attr_order = list(names)  # type: ignore[attr-defined]


class HealthPage(healthcheck.Healthcheck):
    """oslo.middleware's health check: ``[healthcheck] backends`` and ``checks``.

    Each check gets the port of the server. A detailed answer also has the ``components``.
    """

    def __init__(
        self,
        app: WsgiApp,
        conf: cfg.ConfigOpts,
        checks: Iterable[Callable[[int], HealthcheckResult]],
        components: Callable[[], Sequence[Component]],
    ) -> None:
        super().__init__(app, conf)
        self._components = components
        self._ignore_path = True
        plugins = [SimpleNamespace(healthcheck=check) for check in checks]
        self._backends: Any = [
            *self._backends,
            *(SimpleNamespace(obj=plugin) for plugin in plugins),
        ]

    def _make_json_response(
        self, results: list[HealthcheckResult], healthy: bool
    ) -> tuple[str, str]:
        if not self._show_details:
            return super()._make_json_response(results, healthy)
        document = {
            "detailed": True,
            "reasons": [result.reason for result in results],
            "components": [component.document for component in self._components()],
        }
        return json.dumps(document, indent=4), JSON

    def _make_text_response(
        self, results: list[HealthcheckResult], healthy: bool
    ) -> tuple[str, str]:
        body, kind = super()._make_text_response(results, healthy)
        if self._show_details:
            body = "\n".join([body, *(component.sentence for component in self._components())])
        return body, kind


def has_account(protocol: AuthProtocol) -> bool:
    """Return whether the filter has an account with which it can check tokens."""
    group = protocol._conf.get("auth_section") or "keystone_authtoken"
    return bool(protocol._conf.get("auth_type", group=group))

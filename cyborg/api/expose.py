# SPDX-License-Identifier: Apache-2.0
"""Expose handlers as resources: authorise, validate, call, answer; and build error bodies.

Clients expect ``{"error_message": "<JSON text of faultcode, faultstring, debuginfo>"}``: the SDK
decodes the string a second time and shows ``faultstring``.
"""

import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol
from uuid import uuid4

import webob
import webob.exc
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.framework import JSON, ROUTE, Noun, Request, handler
from cyborg.api.operations import OPERATION_VIEW, OPERATIONS
from cyborg.api.paging import Followed, bound_of
from cyborg.api.viewer import Links, Viewer
from cyborg.api.watching import HOLD, EventWatch, Wait
from cyborg.clients.limits import ProjectLimits
from cyborg.conf.api import ApiOptions
from cyborg.conf.conductor import ConductorOptions
from cyborg.db.engine import Reader
from cyborg.model.caller import Caller
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.policy import Policy
from cyborg.rpc.conductor import ConductorClient

LOG = logging.getLogger(__name__)

#: The policy rule of hardware of which the caller's project holds no unit.
_UNHELD: Final = "cyborg:device:get_unheld"
#: Who may remove units that are not cleaned.
LEAVE_UNCLEAN: Final = "cyborg:device:leave_unclean"
#: The header by which a client chooses the operation id of a long verb.
IDEMPOTENCY_KEY = "Idempotency-Key"
_CONTRACT = "contract"


@dataclass(frozen=True, kw_only=True)
class Call(Viewer):
    """What a handler gets from its request besides its validated arguments.

    ``request_key`` is the idempotency key of calls to the conductor. ``scope`` has the objects that
    the caller reaches.
    """

    caller: Caller
    request_key: str
    #: Whether the caller meets another rule of the policy.
    allows: Callable[[str], bool]
    #: Lets this request wait without a thread, see ``watching``; None: this web server cannot.
    hold: Callable[[Wait], object] | None = None

    @property
    def origin(self) -> tuple[Caller, str]:
        """Return the first two arguments of each write: who requests it, and its request key."""
        return self.caller, self.request_key

    @property
    def held(self) -> Scope:
        """Return the scope of changes: the hardware of which the project holds units."""
        return replace(self.scope, unheld=self.scope.everywhere)

    def check_everywhere(self) -> None:
        """Raise Forbidden for a change of the whole cloud that policy grants to one project."""
        if not self.scope.everywhere:
            raise exception.Forbidden(
                reason="This changes hosts that all projects use, and the policy rule grants it to "
                "the caller's project only."
            )

    def forced(self, query: Mapping[str, Any]) -> bool | None:
        """Return whether units go although they are not cleaned; raises Forbidden.

        None: the caller does not ask for it.
        """
        if not query.get("force"):
            return None
        if not self.allows(LEAVE_UNCLEAN):
            raise exception.Forbidden(
                reason=f"Policy rule {LEAVE_UNCLEAN} does not allow you to remove units that are "
                "not cleaned."
            )
        return True

    def check_places(self, query: Mapping[str, Any], *names: str) -> None:
        """Raise Forbidden for a filter or sort key that would tell the caller where objects are."""
        if self.scope.shows_hosts:
            return
        for name in names:
            if query.get(name) or query.get("sort_key") == name:
                raise exception.Forbidden(
                    reason=f"Lists by {name} tell where objects are; policy does not allow you to "
                    "see that."
                )


class Neighbours(Protocol):
    """The services that the API asks for explanations and zones; see ``http.Sessions``."""

    def placement(self) -> Adapter:
        """Return the adapter of Placement; raise exception.ConfigError if it is unusable."""
        ...

    def nova(self) -> Adapter:
        """Return the adapter of Nova; raise exception.ConfigError if it is unusable."""
        ...


@dataclass(frozen=True)
class Settings:
    """The options of the API, and what is made of them; read once per process.

    ``conductor`` has the limits that conductors enforce. For ``service_roles`` see
    ``RequestContext``. ``down_after`` has for each binary the milliseconds without a heartbeat
    after which it is down.
    """

    policy: Policy
    options: ApiOptions
    conductor: ConductorOptions
    service_roles: frozenset[str]
    down_after: Mapping[str, int]
    #: The limits of projects; None: they have no quotas.
    unified_limits: ProjectLimits | None
    neighbours: Neighbours
    watch: EventWatch


@dataclass(frozen=True)
class Controller(Noun):
    """A resource below /v2: its handlers read the database and call the conductor."""

    #: The first part of the path below /v2; also the name of the list in answers.
    collection: ClassVar[str]
    settings: Settings
    reader: Reader
    conductor: ConductorClient


@dataclass(frozen=True)
class Contract:
    """What a handler accepts and answers; see ``expose`` for the members."""

    rule: str
    path: Sequence[types.Strict]
    query: type[types.Declared]
    body: types.Strict | None
    strict: types.Strict | None
    status: int
    since: int
    long: bool
    unversioned: bool
    own: str | None
    answer: types.Strict | None
    answered: int
    errors: Mapping[str, str]
    text: str

    def body_at(self, minor: int) -> types.Strict | None:
        """Return the type of the body at microversion 2.``minor``; None if there is no body."""
        strict = self.strict if minor >= microversion.EXTENDED else None
        kind = strict or self.body
        return kind and kind.at(minor)

    def answer_at(self, minor: int) -> types.Strict | None:
        """Return the type of the answer at microversion 2.``minor``; None if it has no body."""
        return None if self.answer is None or minor < self.answered else self.answer.at(minor)


def expose(
    rule: str,
    *path: types.Strict,
    query: type[types.Declared] = types.NoQuery,
    body: types.Strict | None = None,
    strict: types.Strict | None = None,
    status: int = 200,
    since: int = microversion.BASE,
    long: bool = False,
    unversioned: bool = False,
    own: str | None = None,
    answer: types.Strict | None = None,
    answered: int = microversion.BASE,
    errors: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[..., Any]], Callable[..., webob.Response]]:
    """Make a method the handler of a request.

    The handler is called as ``method(self, call, *path, query, body)`` after the policy rule has
    allowed the request and all input is valid. ``query`` (a dict of the given parameters) and
    ``body`` are passed only if they are declared. From microversion 2.100 on, ``strict`` validates
    the body, if it is given. Below microversion 2.``since`` the resource does not exist; declare a
    parameter or field of a later microversion as ``types.Field``. ``unversioned``: a request
    without the header has the newest microversion, because its clients cannot send one. From 2.100
    on, a caller that
    ``rule`` refuses may still pass by the rule ``own``, limited to what its project holds. The
    return value is an object of the service, which ``answer`` renders as JSON; without ``answer``,
    and below microversion 2.``answered``, the answer has no body. An exception becomes an error
    answer (see ``fault``); ``errors`` describes the statuses that only this request has, and each
    answer 403 is logged once. If ``query`` is a ``types.Paging``, the handler gets a limit, and
    ``paging`` bounds the list that it returns, unless that is a ``Followed``.

    A ``long`` verb returns the Operation that it started: the answer is 202 with the location of
    the operation, and the client may choose the operation's id.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., webob.Response]:
        shown = OPERATION_VIEW if long else answer
        text = inspect.getdoc(method) or ""
        contract = Contract(
            *(rule, path, query, body, strict, 202 if long else status, since, long),
            unversioned=unversioned,
            own=own,
            answer=shown,
            answered=answered,
            errors=errors,
            text=text,
        )

        def handle(
            self: Controller, req: Request, resp: webob.Response, *segments: str
        ) -> webob.Response:
            try:
                return _perform(contract, method, self, req, *segments)
            except exception.Forbidden as error:
                denial = error
            # Outside of the handler of the exception: oslo.log would add the exception to the line.
            _log_denial(req, rule, denial)
            raise denial

        handle.__name__ = method.__name__
        exposed = handler(handle)
        vars(exposed)[_CONTRACT] = contract
        return exposed

    return decorate


def _perform(
    contract: Contract,
    method: Callable[..., Any],
    controller: Controller,
    req: Request,
    *segments: str,
) -> webob.Response:
    """Authorise and validate a request, and return the answer of its handler."""
    if contract.unversioned:
        req.assume(microversion.LATEST)
    if (req.minor or microversion.BASE) < contract.since:
        raise webob.exc.HTTPNotFound(
            f"There is no such resource below microversion 2.{contract.since}."
        )
    call = _call(controller.settings, req, contract.rule, contract.own, long=contract.long)
    arguments = [
        _checked(kind.read, segment, "uuid")
        for kind, segment in zip(contract.path, segments, strict=False)
    ]
    sent = parsing.read_query(req.GET)
    params = _checked(lambda given: types.query(contract.query, given, call.minor), sent)
    bound = None
    if issubclass(contract.query, types.Paging):
        bound = bound_of(controller.settings.options, params.get("limit"), call.minor)
        params["limit"] = bound.fetched
    if contract.query is not types.NoQuery:
        arguments.append(params)
    if (shape := contract.body_at(call.minor)) is not None:
        arguments.append(_checked(shape.read, parsing.read_body(req)))
    result = method(controller, call, *arguments)
    followed = result if isinstance(result, Followed) else None
    content = None
    if contract.answer is not None and call.minor >= contract.answered:
        content = contract.answer.render(followed.rows if followed else result, call)
    if bound is not None and content is not None:
        url = f"{call.links.v2}/{controller.collection}"
        if followed:
            replace(followed, place={**sent, **followed.place}).link(content, call, url)
        else:
            bound.close(content, call, url, sent)
    response = respond(contract.status, content)
    if followed and followed.pause is not None:
        response.headers["Retry-After"] = str(followed.pause)
    if contract.long:
        response.headers["Location"] = call.links.self_of(OPERATIONS) + result.uuid
    return response


def contract(method: Callable[..., Any]) -> Contract:
    """Return the contract of an exposed method."""
    attached: Contract = vars(method)[_CONTRACT]
    return attached


def respond(status: int, content: Any) -> webob.Response:
    """Return a JSON answer; for None, an answer without body and content type."""
    if content is None:
        empty = webob.Response(status=status)
        del empty.content_type
        return empty
    return webob.Response(
        status=status, body=json.dumps(content).encode(), content_type=JSON, charset="UTF-8"
    )


def fault(error: Exception, request_id: str) -> webob.Response:
    """Return the answer to a request that failed.

    Errors of ``cyborg.exception`` and of the routing keep their status and text. Any other error is
    logged with its stack trace and becomes a 500 whose text has only the request id.
    """
    if isinstance(error, webob.exc.HTTPException):
        response = refusal(error.status_int, str(error.detail or error.explanation))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    if isinstance(error, UnicodeDecodeError):
        return refusal(400, "The URL is not valid UTF-8.")
    if isinstance(error, exception.CyborgError) and (
        error.status != 500 or isinstance(error, exception.PeerFault)
    ):
        return refusal(error.status, error.public)
    LOG.error("Request %s failed", request_id, exc_info=error)
    return refusal(500, f"An unexpected error occurred; the log has the details of {request_id}.")


def refusal(status: int, sentence: str) -> webob.Response:
    """Return the answer to a request that is refused with a sentence for its client."""
    detail = {
        "faultcode": "Client" if status < 500 else "Server",
        "faultstring": sentence,
        "debuginfo": None,
    }
    return respond(status, {"error_message": json.dumps(detail)})


def _log_denial(req: Request, rule: str, denial: exception.Forbidden) -> None:
    context = req.identity()
    LOG.warning(
        "%s %s of user %s of project %s denied by %s (request %s): %s",
        *(req.method, req.environ[ROUTE], context.user_id, context.project_id),
        *(rule, req.request_id, denial.public),
    )


def _call(settings: Settings, req: Request, rule: str, own: str | None, *, long: bool) -> Call:
    context = req.identity()
    minor = microversion.BASE if req.minor is None else req.minor
    limited = False
    try:
        all_projects = settings.policy.authorize(context, rule)
    except exception.Forbidden:
        if own is None or minor < microversion.EXTENDED:
            raise
        try:
            settings.policy.authorize(context, own)
        except exception.Forbidden:
            raise exception.Forbidden(
                reason=f"Policy does not allow {rule} to be performed, nor {own}."
            ) from None
        all_projects, limited = False, True
    compute_users = frozenset(settings.options.compute_users)
    compute = context.is_compute(settings.service_roles, compute_users)
    # With its own account, Nova works for the users of all projects.
    all_projects = all_projects or compute
    compute = compute or context.is_for_compute(settings.service_roles, compute_users)
    caller = Caller(
        project_id=context.project_id,
        user_id=context.user_id,
        request_id=req.request_id,
        all_projects=all_projects,
        service=compute,
    )
    key = req.headers.get(IDEMPOTENCY_KEY) if long else None
    request_key = (
        str(uuid4()) if key is None else _checked(types.UUID_TYPE.read, key, IDEMPOTENCY_KEY)
    )
    scope = EVERYWHERE
    if not all_projects:
        # Clients of 2.3 and below rely on the names of hosts. Nova needs them to attach devices.
        shows_hosts = compute or minor < microversion.EXTENDED
        scope = Scope.of_project(
            caller.project_id,
            shows_hosts=shows_hosts,
            unheld=not limited and settings.policy.allows(context, _UNHELD),
        )
    return Call(
        minor=minor,
        scope=scope,
        links=Links.of(req, settings.options.public_endpoint),
        caller=caller,
        request_key=request_key,
        allows=lambda rule: settings.policy.allows(context, rule),
        hold=req.environ.get(HOLD),
    )


def _checked(reader: Callable[[Any], Any], value: Any, field: str = "body") -> Any:
    try:
        return reader(value)
    except types.ValidationError as error:
        raise exception.Invalid(field=error.path or field, reason=error.reason) from None

# SPDX-License-Identifier: Apache-2.0
"""Expose handlers as resources: authorise, validate, call, answer; and build error bodies.

Clients expect ``{"error_message": "<JSON text of faultcode, faultstring, debuginfo>"}``: the SDK
decodes the string a second time and shows ``faultstring``.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import webob
import webob.exc

from cyborg import exception
from cyborg.api import microversion, parsing, rendering, types
from cyborg.api.framework import JSON, Noun, Request, handler
from cyborg.api.rendering import Links
from cyborg.db.engine import Reader
from cyborg.model.caller import Caller
from cyborg.model.device_profile import Limits
from cyborg.policy import Policy
from cyborg.rpc.conductor import ConductorClient

LOG = logging.getLogger(__name__)

#: The header by which a client chooses the operation id of a long verb.
IDEMPOTENCY_KEY = "Idempotency-Key"


@dataclass(frozen=True)
class Call:
    """What a handler gets from its request besides its validated arguments.

    ``request_key`` is the idempotency key of calls to the conductor; ``minor`` is the minor number
    of the microversion.
    """

    caller: Caller
    request_key: str
    minor: int
    links: Links
    #: The project whose objects the caller reaches; None: those of all projects.
    scope: str | None
    #: If set, the caller may use only the devices that ARQs of this project hold.
    own: str | None

    @property
    def origin(self) -> tuple[Caller, str]:
        """Return the first two arguments of each write: who requests it, and its request key."""
        return self.caller, self.request_key


@dataclass(frozen=True)
class Settings:
    """The settings of the API; read once per process.

    ``down_after`` has for each binary the milliseconds without a heartbeat after which it is down.
    """

    policy: Policy
    service_roles: frozenset[str]
    public_endpoint: str | None
    limits: Limits
    down_after: Mapping[str, int]


@dataclass(frozen=True)
class Controller(Noun):
    """A resource below /v2: its handlers read the database and call the conductor."""

    #: The first part of the path below /v2; also the name of the list in answers.
    collection: ClassVar[str]
    settings: Settings
    reader: Reader
    conductor: ConductorClient


def expose(
    rule: str,
    *path: types.Strict,
    query: type[types.Declared] = types.NoQuery,
    body: types.Strict | None = None,
    strict: types.Strict | None = None,
    status: int = 200,
    since: int = microversion.BASE,
    long: bool = False,
    own: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., webob.Response]]:
    """Make a method the handler of a request.

    The handler is called as ``method(self, call, *path, query, body)`` after the policy rule has
    allowed the request and all input is valid. ``query`` (a dict of the given parameters) and
    ``body`` are passed only if they are declared. From microversion 2.4 on, ``strict`` validates
    the body, if it is given. Below microversion 2.``since`` the resource does not exist; declare a
    parameter or field of a later microversion as ``types.Field``. From 2.4 on, a caller that
    ``rule`` refuses may still pass by the rule ``own``, limited to what its project holds. The
    return value becomes the JSON answer; None gives an answer without a body. An exception becomes
    an error answer (see ``fault``).

    A ``long`` verb returns the Operation that it started: the answer is 202 with the location of
    the operation, and the client may choose the operation's id.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., webob.Response]:
        def handle(
            self: Controller, req: Request, resp: webob.Response, *segments: str
        ) -> webob.Response:
            if (req.minor or microversion.BASE) < since:
                raise webob.exc.HTTPNotFound(
                    f"There is no such resource below microversion 2.{since}."
                )
            call = _call(self.settings, req, rule, own, long=long)
            arguments = [
                _checked(kind.read, segment, "uuid")
                for kind, segment in zip(path, segments, strict=False)
            ]
            params = _checked(
                lambda sent: types.query(query, sent, call.minor), parsing.read_query(req.GET)
            )
            if query is not types.NoQuery:
                arguments.append(params)
            if body is not None:
                shape = strict if strict and call.minor >= microversion.STRICT_BODIES else body
                arguments.append(_checked(shape.at(call.minor).read, parsing.read_body(req)))
            result = method(self, call, *arguments)
            if not long:
                return answer(status, result)
            prefix = call.links.self_of(rendering.OPERATIONS)
            response = answer(202, rendering.operation(result, prefix, call.minor))
            response.headers["Location"] = prefix + result.uuid
            return response

        handle.__name__ = method.__name__
        return handler(handle)

    return decorate


def answer(status: int, content: Any) -> webob.Response:
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
        response = _fault(error.status_int, str(error.detail or error.explanation))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    if isinstance(error, UnicodeDecodeError):
        return _fault(400, "The URL is not valid UTF-8.")
    if isinstance(error, exception.CyborgError) and (
        error.status != 500 or isinstance(error, exception.PeerFault)
    ):
        return _fault(error.status, error.public)
    LOG.error("Request %s failed", request_id, exc_info=error)
    return _fault(500, f"An unexpected error occurred; the log has the details of {request_id}.")


def _fault(status: int, sentence: str) -> webob.Response:
    detail = {
        "faultcode": "Client" if status < 500 else "Server",
        "faultstring": sentence,
        "debuginfo": None,
    }
    return answer(status, {"error_message": json.dumps(detail)})


def _call(settings: Settings, req: Request, rule: str, own: str | None, *, long: bool) -> Call:
    context = req.identity()
    minor = microversion.BASE if req.minor is None else req.minor
    own_project = None
    try:
        all_projects = settings.policy.authorize(context, rule)
    except exception.Forbidden:
        if own is None or minor < microversion.OPERATORS:
            raise
        try:
            settings.policy.authorize(context, own)
        except exception.Forbidden:
            raise exception.Forbidden(
                reason=f"Policy does not allow {rule} to be performed, nor {own}."
            ) from None
        all_projects, own_project = False, context.project_id
    caller = Caller(
        project_id=context.project_id,
        user_id=context.user_id,
        request_id=req.request_id,
        all_projects=all_projects,
        service=context.is_service(settings.service_roles),
    )
    key = req.headers.get(IDEMPOTENCY_KEY) if long else None
    request_key = (
        str(uuid4()) if key is None else _checked(types.UUID_TYPE.read, key, IDEMPOTENCY_KEY)
    )
    links = Links.of(req, settings.public_endpoint)
    scope = None if all_projects else caller.project_id
    return Call(caller, request_key, minor, links, scope, own_project)


def _checked(reader: Callable[[Any], Any], value: Any, field: str = "body") -> Any:
    try:
        return reader(value)
    except types.ValidationError as error:
        raise exception.Invalid(field=error.path or field, reason=error.reason) from None

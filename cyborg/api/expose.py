# SPDX-License-Identifier: Apache-2.0
"""The one way in and out of every resource: authorise, check, call, answer; and the error body.

Clients expect ``{"error_message": "<JSON text of faultcode, faultstring, debuginfo>"}``: the SDK
decodes the string a second time and shows ``faultstring``.
"""

import inspect
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast
from uuid import uuid4

import pecan
import webob
import webob.exc
from wsme.rest import args

from cyborg import exception
from cyborg.api import microversion, parsing, rendering, types
from cyborg.api.rendering import Links
from cyborg.api.request import Request
from cyborg.context import RequestContext
from cyborg.model.caller import Caller
from cyborg.model.operation import Operation
from cyborg.policy import Policy

LOG = logging.getLogger(__name__)

JSON = "application/json"
#: The header by which a client chooses the operation id of a long verb.
IDEMPOTENCY_KEY = "Idempotency-Key"


@dataclass(frozen=True)
class Call:
    """What a handler knows of its request besides its checked arguments.

    ``operation`` is the id under which the conductor may be asked again; ``minor`` the
    microversion.
    """

    caller: Caller
    operation: str
    minor: int
    links: Links
    #: The caller may do this with what the own project's requests hold, and nothing else.
    own: bool = False


@dataclass(frozen=True)
class Rules:
    """What decides about every request, made once per process."""

    policy: Policy
    service_roles: frozenset[str]
    public_endpoint: str | None


class Controller(Protocol):
    """What the decorator needs of the object whose method it decorates."""

    rules: Rules


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

    It is called as ``method(self, call, *path, query, body)``, with ``query`` (a dict of what was
    given) and ``body`` only where they are declared, once the policy rule allowed it and
    everything that came in is what was declared; from microversion 2.4 on a body is checked by
    ``strict`` where that is given. Below microversion 2.``since`` there is no such resource; a
    parameter or field of a later microversion is declared as ``types.Field``. From
    2.4 on whoever ``rule`` refuses may still pass by the rule ``own``, for what the own project
    holds. What it returns becomes the JSON answer; None an answer without a body. Whatever it
    raises becomes an error answer (see ``fault``).

    A ``long`` verb returns the Operation that it began: the answer is 202 with where to follow it,
    and the client may choose its id.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., webob.Response]:
        def handle(
            self: Controller, req: Request, resp: webob.Response, *segments: str
        ) -> webob.Response:
            _check_since(req, since)
            call = _call(self.rules, req, rule, own, long=long)
            given = [_segment(kind, raw) for kind, raw in zip(path, segments, strict=False)]
            params = _checked(
                lambda sent: types.query(query, sent, call.minor), parsing.read_query(req.GET)
            )
            if query is not types.NoQuery:
                given.append(params)
            if body is not None:
                shape = strict if strict and call.minor >= microversion.STRICT_BODIES else body
                given.append(_checked(shape.at(call.minor).read, parsing.read_body(req)))
            result = method(self, call, *given)
            return _accepted(call, result) if long else answer(status, result)

        handle.__name__ = method.__name__
        exposed = pecan.expose(content_type=JSON)(handle)
        # pecan would look through the closure and find the signature of the method.
        exposed._pecan["argspec"] = inspect.getfullargspec(handle)
        return cast(Callable[..., webob.Response], exposed)

    return decorate


def _check_since(req: Request, since: int) -> None:
    if (req.minor or microversion.BASE) < since:
        raise webob.exc.HTTPNotFound(f"There is no such resource below microversion 2.{since}.")


def answer(status: int, content: Any) -> webob.Response:
    """A JSON answer; for None one that has no body and no content type."""
    if content is None:
        empty = webob.Response(status=status)
        del empty.content_type
        return empty
    return webob.Response(
        status=status, body=json.dumps(content).encode(), content_type=JSON, charset="UTF-8"
    )


def _accepted(call: Call, begun: Operation) -> webob.Response:
    prefix = call.links.self_of(rendering.OPERATIONS)
    response = answer(202, rendering.operation(begun, prefix, call.minor))
    response.headers["Location"] = prefix + begun.uuid
    return response


def fault(error: Exception, request_id: str) -> webob.Response:
    """The answer to a request that failed.

    Errors of our own tree and of the routing keep their status and sentence; anything else is
    logged in full and becomes a 500 that tells the request id only.
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


def _call(rules: Rules, req: Request, rule: str, own: str | None, *, long: bool) -> Call:
    context = req.identity()
    minor = microversion.BASE if req.minor is None else req.minor
    limited = False
    try:
        everywhere = rules.policy.authorize(context, rule)
    except exception.Forbidden:
        if own is None or minor < microversion.OPERATORS:
            raise
        _check_own(rules.policy, context, rule, own)
        everywhere, limited = False, True
    caller = Caller(
        project_id=context.project_id,
        user_id=context.user_id,
        request_id=req.request_id,
        everywhere=everywhere,
        service=context.is_service(rules.service_roles),
    )
    key = req.headers.get(IDEMPOTENCY_KEY) if long else None
    operation = (
        str(uuid4()) if key is None else _checked(types.UUID_TYPE.read, key, IDEMPOTENCY_KEY)
    )
    return Call(caller, operation, minor, Links.of(req, rules.public_endpoint), limited)


def _check_own(policy: Policy, context: RequestContext, rule: str, own: str) -> None:
    """Raise Forbidden, naming both rules, unless the second one lets the caller pass."""
    try:
        policy.authorize(context, own)
    except exception.Forbidden:
        raise exception.Forbidden(
            reason=f"Policy does not allow {rule} to be performed, nor {own}."
        ) from None


def _segment(kind: types.Strict, raw: str) -> Any:
    return _checked(lambda value: args.from_param(kind, value), raw, "uuid")


def _checked(reader: Callable[[Any], Any], value: Any, field: str = "body") -> Any:
    try:
        return reader(value)
    except types.ValidationError as error:
        raise exception.Invalid(field=error.path or field, reason=error.reason) from None

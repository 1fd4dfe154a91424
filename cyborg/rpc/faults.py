# SPDX-License-Identifier: Apache-2.0
"""Errors on the bus: every reply is ``{"ok": body}`` or ``{"error": {type, fields}}``.

Exceptions of oslo.messaging's own kind never carry ours: a class with keyword fields cannot be
rebuilt by it, and a traceback of the peer is nothing a client should see.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cyborg import exception

LOG = logging.getLogger(__name__)


def _tree(root: type[exception.CyborgError]) -> dict[str, type[exception.CyborgError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def answering(peer: str) -> Callable[[Callable[..., Any]], Callable[..., dict[str, Any]]]:
    """Make an endpoint's method answer with data, whatever happens inside.

    ``peer`` names this process in the bland PeerFault that stands for a fault nobody foresaw; its
    detail goes to the log only, together with the request id of the caller where there is one.
    Arguments that are not the method's (the caller is of another release) are Invalid.
    """

    def wrap(method: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def answer(self: object, context: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
            try:
                _bind(signature, self, context, arguments)
                return {"ok": method(self, context, **arguments)}
            except exception.CyborgError as error:
                return {"error": {"type": type(error).__name__, "fields": error.fields}}
            except Exception:
                request_id = str(context.get("request_id", ""))
                LOG.exception("%s failed in %s [%s]", peer, method.__name__, request_id)
                fault = exception.PeerFault(peer=peer, request_id=request_id)
                return {"error": {"type": "PeerFault", "fields": fault.fields}}

        return answer

    return wrap


def _bind(
    signature: inspect.Signature,
    endpoint: object,
    context: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> None:
    try:
        signature.bind(endpoint, context, **arguments)
    except TypeError as error:
        raise exception.Invalid(field="arguments", reason=str(error)) from None


def unwrap(reply: Any, peer: str, request_id: str) -> Any:
    """The body of a reply, or the error it carries, raised as our own class."""
    if isinstance(reply, Mapping) and "ok" in reply:
        return reply["ok"]
    error = reply.get("error") if isinstance(reply, Mapping) else None
    if isinstance(error, Mapping) and isinstance(error.get("fields"), Mapping):
        kind = _tree(exception.CyborgError).get(str(error.get("type")))
        if kind is not None:
            try:
                raise kind(**error["fields"])
            except KeyError:
                LOG.warning("%s answered with a %s that lacks fields", peer, kind.__name__)
    raise exception.PeerFault(peer=peer, request_id=request_id)

# SPDX-License-Identifier: Apache-2.0
"""Errors on the bus: every reply is ``{"ok": body}`` or ``{"error": {type, fields}}``.

``type`` is the ``kind`` that the error's class declares; see ``cyborg.exception``. The exceptions
of oslo.messaging do not carry our errors: oslo.messaging cannot rebuild a class with keyword
fields, and clients must not see a traceback of the peer.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cyborg import exception

LOG = logging.getLogger(__name__)


def answering(peer: str) -> Callable[[Callable[..., Any]], Callable[..., dict[str, Any]]]:
    """Return a decorator that makes an endpoint's method answer with data, also if it fails.

    An unexpected exception is answered as PeerFault, in which ``peer`` names this process. Its
    details are written to the log only, with the request id of the caller, if there is one.
    Arguments that do not fit the method (a caller of another release) are answered as Invalid.
    """

    def wrap(method: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def answer(self: object, context: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
            try:
                signature.bind(self, context, **arguments)
            except TypeError as error:
                return _reply(exception.Invalid(field="arguments", reason=str(error)))
            try:
                return {"ok": method(self, context, **arguments)}
            except exception.CyborgError as error:
                return _reply(error)
            except Exception:
                request_id = str(context.get("request_id", ""))
                LOG.exception("%s failed in %s [%s]", peer, method.__name__, request_id)
                return _reply(exception.PeerFault(peer=peer, request_id=request_id))

        return answer

    return wrap


def _reply(error: exception.CyborgError) -> dict[str, Any]:
    return {"error": {"type": error.kind, "fields": error.fields}}


def unwrap(reply: Any, peer: str, request_id: str) -> Any:
    """Return the body of a reply; raise the error that the reply carries instead, if it does.

    Raises exception.PeerFault for a reply without body and without an error that this release has.
    """
    if isinstance(reply, Mapping) and "ok" in reply:
        return reply["ok"]
    error = reply.get("error") if isinstance(reply, Mapping) else None
    if isinstance(error, Mapping) and isinstance(error.get("fields"), Mapping):
        error_class = _classes(exception.CyborgError).get(str(error.get("type")))
        if error_class is not None:
            try:
                raise error_class(**error["fields"])
            except KeyError:
                LOG.warning("%s answered with error %s without its fields", peer, error_class.kind)
    raise exception.PeerFault(peer=peer, request_id=request_id)


def _classes(root: type[exception.CyborgError]) -> dict[str, type[exception.CyborgError]]:
    """Return an error class and all classes below it, by the kind that names them on the bus."""
    classes = {root.kind: root}
    for child in root.__subclasses__():
        classes.update(_classes(child))
    return classes

# SPDX-License-Identifier: Apache-2.0
"""Answers on the bus: every reply is ``{"ok": body}`` or ``{"error": {type, fields}}``.

``type`` is the ``kind`` that the error's class declares; see ``cyborg.exception``. The exceptions
of oslo.messaging do not carry our errors: oslo.messaging cannot rebuild a class with keyword
fields, and clients must not see a traceback of the peer.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import oslo_messaging

from cyborg import exception
from cyborg.model import wire
from cyborg.rpc.command import COMMON, Handler, Later, newest

LOG = logging.getLogger(__name__)

Context = Mapping[str, Any]


class Endpoint:
    """The methods that clients call: a verb for each handler, with plain data, and ``ping``.

    ``peer`` names this process in errors, and ``later`` is the history of the verbs. An unexpected
    exception is answered as PeerFault. Its details are written to the log only, with the request id
    of the caller, if there is one. An error that the command does not declare is answered as it is,
    and logged.
    """

    def __init__(self, peer: str, later: Later, *handlers: Handler) -> None:
        self.target = oslo_messaging.Target(version=newest(later))
        self._peer = peer
        for handler in handlers:
            setattr(self, handler.command.verb, partial(self._answer, handler))

    def ping(self, _context: Context) -> dict[str, Any]:
        """Answer that this process receives messages."""
        return {"ok": "pong"}

    def _run(self, handler: Handler, _context: Context, arguments: Mapping[str, Any]) -> Any:
        """Return the answer to a command; subclasses check the command and its sender first."""
        return handler.handle(handler.command.load(arguments))

    def _answer(self, handler: Handler, context: Context, /, **arguments: Any) -> dict[str, Any]:
        command = handler.command
        try:
            return {"ok": wire.pack(self._run(handler, context, arguments))}
        except exception.CyborgError as error:
            if not isinstance(error, COMMON + command.raises):
                LOG.warning(
                    "Request %s over the message bus was answered with an error that it does not "
                    "declare: %s: %s",
                    *(command.verb, error.kind, error),
                )
            return {"error": {"type": error.kind, "fields": error.fields}}
        except Exception:
            request_id = str(context.get("request_id", ""))
            LOG.exception("%s failed in %s [%s]", self._peer, command.verb, request_id)
            fault = exception.PeerFault(peer=self._peer, request_id=request_id)
            return {"error": {"type": fault.kind, "fields": fault.fields}}


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

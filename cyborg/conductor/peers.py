# SPDX-License-Identifier: Apache-2.0
"""Checks of requests to the conductor: who sends them, and for which host an agent speaks."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cyborg import exception

LOG = logging.getLogger(__name__)

#: What is refused because of who says it, or how.
_REFUSALS = (exception.Invalid, exception.Forbidden, exception.StaleEpoch)
#: Types of the arguments that verbs of agents have in common.
_TYPES = {"host": str, "epoch": int}

Verb = Callable[..., Any]


def named() -> Callable[[Verb], Verb]:
    """Make an endpoint's methods refuse requests without a sender; for all verbs but ``ping``.

    Raises Forbidden. The first refusal of each verb is logged.
    """
    logged: set[str] = set()

    def wrap(method: Verb) -> Verb:
        @functools.wraps(method)
        def checked(self: object, context: Mapping[str, Any], **arguments: Any) -> Any:
            sender = context.get("sender")
            if isinstance(sender, str) and sender:
                return method(self, context, **arguments)
            verb = method.__name__
            if verb not in logged:
                logged.add(verb)
                LOG.warning(
                    "Request %s over the message bus refused: it names no sender. Later requests "
                    "of this kind are refused without a log line.",
                    verb,
                )
            raise exception.Forbidden(reason=f"The request {verb} names no sender.")

        return checked

    return wrap


def hearing() -> Callable[[Verb], Verb]:
    """Make endpoint's methods refuse what an agent must not say; for all verbs of one endpoint.

    Below ``named``, which sees that there is a sender.

    Raises Invalid for a host or epoch of a wrong type, Forbidden for a host that is not the
    sender's. Each refusal is logged, but not again while an agent goes on saying the same.
    """
    said: dict[tuple[str, str], str] = {}

    def wrap(method: Verb) -> Verb:
        @functools.wraps(method)
        def checked(self: object, context: Mapping[str, Any], **arguments: Any) -> Any:
            sender = str(context["sender"])
            try:
                _check(context, arguments)
                answer = method(self, context, **arguments)
            except _REFUSALS as error:
                if said.get((method.__name__, sender)) != str(error):
                    said[method.__name__, sender] = str(error)
                    LOG.warning("What %s says (%s) is refused: %s", sender, method.__name__, error)
                raise
            said.pop((method.__name__, sender), None)
            return answer

        return checked

    return wrap


def _check(context: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    for name, kind in _TYPES.items():
        if name in arguments and type(arguments[name]) is not kind:
            raise exception.Invalid(field=name, reason=f"{kind.__name__} is needed")
    sender, host = str(context["sender"]), arguments.get("host")
    if host is not None and sender.rpartition("@")[2] != host:
        raise exception.Forbidden(reason=f"{sender} cannot speak for host {host}.")

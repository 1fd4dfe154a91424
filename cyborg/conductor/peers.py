# SPDX-License-Identifier: Apache-2.0
"""What agents say is heard when it is about their own host, in words that can be read."""

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


def hearing() -> Callable[[Verb], Verb]:
    """Make endpoint's methods refuse what an agent must not say; for all verbs of one endpoint.

    Raises Invalid for a host or epoch of a wrong type, Forbidden for a host that is not the
    sender's. Each refusal is logged, but not again while an agent goes on saying the same.
    """
    said: dict[tuple[str, str], str] = {}

    def wrap(method: Verb) -> Verb:
        @functools.wraps(method)
        def checked(self: object, context: Mapping[str, Any], **arguments: Any) -> Any:
            sender = str(context.get("sender") or arguments.get("host") or "an agent")
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
    sender, host = context.get("sender"), arguments.get("host")
    # Agents of the release before this one do not say who they are.
    if sender and host is not None and str(sender).rpartition("@")[2] != host:
        raise exception.Forbidden(reason=f"{sender} cannot speak for host {host}.")

# SPDX-License-Identifier: Apache-2.0
"""What each verb takes and answers, as today's clients have it."""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from cyborg.model import wire
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient, ReportClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC

CLIENTS: dict[str, tuple[type, ...]] = {
    CONDUCTOR_TOPIC: (ConductorClient, ReportClient),
    AGENT_TOPIC: (AgentClient,),
}


def client_of(topic: str, verb: str) -> type:
    """Who asks for a verb."""
    return next(one for one in CLIENTS[topic] if verb in vars(one))


def method(topic: str, verb: str) -> Callable[..., Any]:
    """How a verb is asked for."""
    found: Callable[..., Any] = getattr(client_of(topic, verb), verb)
    return found


def answer_type(topic: str, verb: str) -> Any:
    """What a verb answers, None for nothing."""
    found = get_type_hints(method(topic, verb))["return"]
    return None if found is type(None) else found


def argument_types(topic: str, verb: str) -> dict[str, Any]:
    """What a verb takes; for those of agents also the host that is asked, and a time."""
    ask = method(topic, verb)
    hints = get_type_hints(ask)
    names = [name for name in inspect.signature(ask).parameters if name != "self"]
    return {name: hints[name] for name in names}


def rebuilt(hint: Any, value: Any) -> Any:
    """A value of the wire as those who ask, or are answered, have it."""
    if isinstance(value, list):
        return [rebuilt(get_args(hint)[0], one) for one in value]
    if isinstance(value, dict) and "kind" in value:
        return wire.load(hint, value)
    kinds = [one for one in (hint, *get_args(hint)) if get_origin(one) is None]
    words = [one for one in kinds if isinstance(one, type) and issubclass(one, Enum)]
    return words[0](value) if words and value is not None else value


def flat(value: Any) -> Any:
    """The reverse."""
    if isinstance(value, list | tuple):
        return [flat(one) for one in value]
    return wire.dump(value) if hasattr(value, "__dataclass_fields__") else value

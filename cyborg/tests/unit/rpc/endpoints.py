# SPDX-License-Identifier: Apache-2.0
"""The doors of both services: which verbs they have, and with which arguments."""

import inspect
from collections.abc import Callable
from typing import Any

from cyborg.agent.endpoint import Endpoint as AgentEndpoint
from cyborg.conductor.endpoint import Endpoint as ConductorEndpoint
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC

DOORS: dict[str, type] = {CONDUCTOR_TOPIC: ConductorEndpoint, AGENT_TOPIC: AgentEndpoint}


def verbs(topic: str) -> dict[str, Callable[..., Any]]:
    """The endpoint's methods that may be called over the bus."""
    return {
        name: method
        for name, method in vars(DOORS[topic]).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


def arguments(topic: str, verb: str) -> dict[str, inspect.Parameter]:
    """What a verb is called with, by name."""
    parameters = inspect.signature(verbs(topic)[verb]).parameters
    return {
        name: one for name, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY
    }

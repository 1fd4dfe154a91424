# SPDX-License-Identifier: Apache-2.0
"""The endpoints of both services, with use cases that answer anything."""

from typing import Any

from cyborg.agent.endpoint import Endpoint as AgentEndpoint
from cyborg.conductor.endpoint import Endpoint as ConductorEndpoint
from cyborg.rpc.command import Command, Handler, commands
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import ToAgent, ToConductor

#: The commands of each topic, by verb.
COMMANDS: dict[str, dict[str, type[Command[Any]]]] = {
    CONDUCTOR_TOPIC: commands(ToConductor),
    AGENT_TOPIC: commands(ToAgent),
}


class Parts:
    """Use cases that give the same answer to everything, or raise it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_arguments: Any, **_more: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def endpoint(topic: str, answer: Any = None) -> Endpoint:
    """The endpoint of a service with such use cases."""
    parts: Any = Parts(answer)
    if topic == CONDUCTOR_TOPIC:
        return ConductorEndpoint(Handler(command, parts) for command in COMMANDS[topic].values())
    return AgentEndpoint(
        parts, discoveries=parts, on_desired_changed=parts, check=lambda epoch: None, reload=parts
    )


def verbs(topic: str) -> set[str]:
    """The methods of the endpoint that may be called over the bus."""
    return {name for name in dir(endpoint(topic)) if not name.startswith("_")} - {"target"}

# SPDX-License-Identifier: Apache-2.0
"""Client of the agents: the verbs that the conductor calls on one host."""

import logging
from typing import Any, TypeVar

from cyborg import exception
from cyborg.model import wire
from cyborg.model.work import (
    Discovered,
    DiscoveryTask,
    HandleTask,
    ImageOrder,
    InstallTask,
    Outcome,
    ProgramTask,
)
from cyborg.rpc import versions
from cyborg.rpc.transport import AGENT_TOPIC, Bus, RPCClient

LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer", Discovered, Outcome)
Task = HandleTask | ProgramTask | InstallTask | DiscoveryTask


class AgentClient:
    """Asks the agent of a host (its ``[DEFAULT] host``); all verbs are idempotent by request key.

    Every verb but ``desired_changed`` raises Unavailable when the agent does not answer within
    ``timeout`` seconds, and Invalid for an answer that is about something else, or in words of a
    wrong type; one that is not ``done`` means: ask again.
    """

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        self._line = RPCClient(
            bus, AGENT_TOPIC, peer="agent", timeout=timeout, later=versions.AGENT
        )

    def close(self) -> None:
        """Give up calls in flight."""
        self._line.close()

    def prepare(
        self, host: str, task: HandleTask, *, image: ImageOrder | None = None, within: float
    ) -> Outcome:
        """Make an attach handle ready for its guest; after ``within`` seconds nobody wants it.

        With ``image`` the agent loads that image first; raises UnknownVerb for an agent of an older
        release, which cannot.
        """
        wish = None if image is None else wire.dump(image)
        return self._ask(Outcome, host, "prepare", task, within=within, image=wish)

    def release(self, host: str, task: HandleTask) -> Outcome:
        """Undo what prepare did, and clean up after the guest."""
        return self._ask(Outcome, host, "release", task)

    def program(self, host: str, task: ProgramTask) -> Outcome:
        """Load an image into a deployable."""
        return self._ask(Outcome, host, "program", task)

    def discovery(self, host: str, task: DiscoveryTask) -> Discovered:
        """Fetch what is desired, look at the hardware, and report; answers what was found."""
        return self._ask(Discovered, host, "discovery", task)

    def reload(self, host: str, agent_epoch: int) -> None:
        """Have the agent of this epoch finish what is in hand and execute itself again.

        It is done when the host's agent sends a heartbeat with another epoch.
        """
        self._line.call_server(host, "reload", agent_epoch=agent_epoch)

    def install(self, host: str, task: InstallTask) -> Outcome:
        """Set a device up, look whether it is ready then, and look at the host again."""
        return self._ask(Outcome, host, "install", task)

    def desired_changed(self, host: str) -> None:
        """Hint that the desired state changed; a lost hint costs one heartbeat."""
        self._line.tell_server(host, "desired_changed")

    def _ask(self, kind: type[Answer], host: str, verb: str, task: Task, **more: Any) -> Answer:
        """Return the answer to a task; raise exception.Invalid if it belongs to another task."""
        reply = self._line.call_server(host, verb, task=wire.dump(task), **more)
        try:
            answer = wire.load(kind, reply)
            if answer.request_key != task.request_key:
                raise exception.Invalid(
                    field="request_key", reason=f"{answer.request_key} is not {task.request_key}"
                )
        except exception.Invalid as error:
            LOG.warning("Answer of the agent on host %s to %s refused: %s", host, verb, error)
            raise
        return answer

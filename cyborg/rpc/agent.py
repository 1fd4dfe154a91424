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


class AgentClient(RPCClient):
    """Call the agent of a host (``[DEFAULT] host``); all verbs are idempotent by request key.

    Every verb except ``desired_changed`` raises Unavailable if the agent does not answer within
    ``timeout`` seconds, and Invalid for an answer to another task or of a wrong type. If an answer
    is not ``done``, the caller repeats the call.
    """

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        super().__init__(bus, AGENT_TOPIC, peer="agent", timeout=timeout, later=versions.AGENT)

    def prepare(
        self, host: str, task: HandleTask, *, image: ImageOrder | None = None, within: float
    ) -> Outcome:
        """Prepare an attach handle for its guest; give up after ``within`` seconds.

        With ``image`` the agent loads that image first. Raises UnknownVerb for an agent of an older
        release, which cannot do that.
        """
        dumped = None if image is None else wire.dump(image)
        return self._ask(Outcome, host, "prepare", task, within=within, image=dumped)

    def release(self, host: str, task: HandleTask) -> Outcome:
        """Revert the preparation of an attach handle, and clean up after the guest."""
        return self._ask(Outcome, host, "release", task)

    def program(self, host: str, task: ProgramTask) -> Outcome:
        """Load an image into a deployable."""
        return self._ask(Outcome, host, "program", task)

    def discovery(self, host: str, task: DiscoveryTask) -> Discovered:
        """Fetch the desired state, scan the hardware and report it; return the findings."""
        return self._ask(Discovered, host, "discovery", task)

    def reload(self, host: str, agent_epoch: int) -> None:
        """Restart the agent of this epoch, after it has finished its current work.

        The restart is complete when the agent of the host sends a heartbeat with another epoch.
        """
        self.call_server(host, "reload", agent_epoch=agent_epoch)

    def install(self, host: str, task: InstallTask) -> Outcome:
        """Set up a device, check that it is ready, and scan the host again."""
        return self._ask(Outcome, host, "install", task)

    def desired_changed(self, host: str) -> None:
        """Hint that the desired state has changed; without it the next heartbeat shows this."""
        self.cast_server(host, "desired_changed")

    def _ask(self, kind: type[Answer], host: str, verb: str, task: Task, **more: Any) -> Answer:
        """Return the answer to a task; raise exception.Invalid if it belongs to another task."""
        reply = self.call_server(host, verb, task=wire.dump(task), **more)
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

# SPDX-License-Identifier: Apache-2.0
"""The agent's RPC endpoint: check which agent a task is for, and call the agent's parts."""

from collections.abc import Callable, Mapping
from typing import Any

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.model.process import AGENT
from cyborg.rpc import endpoint, verbs
from cyborg.rpc.command import Handler
from cyborg.rpc.endpoint import Context


def _cannot_reload(epoch: int) -> None:
    """Refuse: this agent does not run in a process of its own."""
    raise exception.Unavailable(peer="agent", reason="it cannot restart its own process")


class Endpoint(endpoint.Endpoint):
    """The verbs of agents.

    ``on_desired_changed`` is called when the desired state changed. ``check`` is called with the
    epoch of the agent that a task is for, because two agents of one host share a queue; it raises
    StaleEpoch if this agent is not that one any more. ``reload`` restarts the process of this agent
    if the agent has the given epoch, and does nothing otherwise.
    """

    def __init__(
        self,
        tasks: DeviceTasks,
        *,
        discoveries: DiscoveryRequests,
        on_desired_changed: Callable[[], None],
        check: Callable[[int], None],
        reload: Callable[[int], None] = _cannot_reload,
    ) -> None:
        super().__init__(
            AGENT,
            verbs.AGENT,
            verbs.Prepare.handled(lambda c: tasks.prepare(c.task, c.image)),
            verbs.Release.handled(lambda c: tasks.release(c.task)),
            verbs.Program.handled(lambda c: tasks.program(c.task)),
            verbs.Discover.handled(lambda c: discoveries.request(c.task, wake=on_desired_changed)),
            verbs.Reload.handled(lambda c: reload(c.agent_epoch)),
            verbs.Install.handled(lambda c: tasks.install(c.task)),
            verbs.DesiredChanged.handled(lambda _: on_desired_changed()),
        )
        self._check = check

    def _run(self, handler: Handler, context: Context, arguments: Mapping[str, Any]) -> Any:
        command = handler.command.load(arguments)
        if isinstance(command, verbs.Task):
            self._check(command.task.agent_epoch)
        return handler.handle(command)

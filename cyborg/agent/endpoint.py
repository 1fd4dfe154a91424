# SPDX-License-Identifier: Apache-2.0
"""The agent's RPC endpoint: load the arguments, call the agent's parts, dump the results."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import oslo_messaging

from cyborg import exception
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.operations import Operations
from cyborg.model import wire
from cyborg.model.process import AGENT
from cyborg.model.work import DiscoveryTask, HandleTask, ImageOrder, InstallTask, ProgramTask
from cyborg.rpc import versions
from cyborg.rpc.faults import answering

Context = Mapping[str, Any]
_answering = answering(AGENT)
T = TypeVar("T", DiscoveryTask, HandleTask, InstallTask, ProgramTask)


def _cannot_reload(epoch: int) -> None:
    """Refuse: this agent does not run in a process of its own."""
    raise exception.Unavailable(peer="agent", reason="it cannot restart its own process")


class Endpoint:
    """The methods that ``cyborg.rpc.agent`` calls.

    ``on_poke`` is called when the desired state changed. ``check`` is called with the epoch of the
    agent that the request is for, because two agents of one host share a queue; it raises
    StaleEpoch if this agent is not that one any more. ``reload`` restarts the process of this agent
    if the agent has the given epoch, and does nothing otherwise.
    """

    target = oslo_messaging.Target(version=versions.newest(versions.AGENT))

    def __init__(
        self,
        operations: Operations,
        *,
        discoveries: DiscoveryRequests,
        on_desired_changed: Callable[[], None],
        check: Callable[[int], None],
        reload: Callable[[int], None] = _cannot_reload,
    ) -> None:
        self._operations = operations
        self._discoveries = discoveries
        self._check = check
        self._on_desired_changed = on_desired_changed
        self._reload = reload

    @_answering
    def ping(self, context: Context) -> str:
        return "pong"

    @_answering
    def prepare(self, context: Context, *, task: Any, image: Any = None) -> Any:
        image_order = None if image is None else wire.load(ImageOrder, image)
        return wire.dump(self._operations.prepare(self._checked(HandleTask, task), image_order))

    @_answering
    def release(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.release(self._checked(HandleTask, task)))

    @_answering
    def program(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.program(self._checked(ProgramTask, task)))

    @_answering
    def discovery(self, context: Context, *, task: Any) -> Any:
        request = self._checked(DiscoveryTask, task)
        return wire.dump(self._discoveries.request(request, wake=self._on_desired_changed))

    @_answering
    def reload(self, context: Context, *, agent_epoch: int) -> None:
        self._reload(agent_epoch)

    @_answering
    def install(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.install(self._checked(InstallTask, task)))

    @_answering
    def desired_changed(self, context: Context) -> None:
        self._on_desired_changed()

    def _checked(self, kind: type[T], task: Any) -> T:
        loaded = wire.load(kind, task)
        self._check(loaded.agent_epoch)
        return loaded

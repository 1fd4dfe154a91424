# SPDX-License-Identifier: Apache-2.0
"""The agent's door on the bus: unpack, hand on, pack."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import oslo_messaging

from cyborg import exception
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.operations import Operations
from cyborg.model import wire
from cyborg.model.names import AGENT
from cyborg.model.work import DiscoveryTask, HandleTask, ImageOrder, InstallTask, ProgramTask
from cyborg.rpc import versions
from cyborg.rpc.faults import answering

Context = Mapping[str, Any]
_answering = answering(AGENT)
T = TypeVar("T", DiscoveryTask, HandleTask, InstallTask, ProgramTask)


def _cannot_reload(epoch: int) -> None:
    """For an agent that is no process of its own."""
    raise exception.Unavailable(peer="agent", reason="it cannot execute itself anew")


class Endpoint:
    """The verbs of ``cyborg.rpc.agent``.

    ``on_poke`` is called when the desired state changed; ``check`` with the epoch of the agent that
    is asked: two agents of one host share its queue. ``reload`` has the agent of an epoch executed
    anew, and one of another epoch left alone.
    """

    target = oslo_messaging.Target(version=versions.newest(versions.AGENT))

    def __init__(
        self,
        operations: Operations,
        *,
        discoveries: DiscoveryRequests,
        on_poke: Callable[[], None],
        check: Callable[[int], None],
        reload: Callable[[int], None] = _cannot_reload,
    ) -> None:
        self._operations = operations
        self._discoveries = discoveries
        self._check = check
        self._on_poke = on_poke
        self._reload = reload

    @_answering
    def ping(self, context: Context) -> str:
        return "pong"

    @_answering
    def prepare(self, context: Context, *, task: Any, image: Any = None) -> Any:
        order = None if image is None else wire.load(ImageOrder, image)
        return wire.dump(self._operations.prepare(self._checked(HandleTask, task), order))

    @_answering
    def release(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.release(self._checked(HandleTask, task)))

    @_answering
    def program(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.program(self._checked(ProgramTask, task)))

    @_answering
    def discovery(self, context: Context, *, task: Any) -> Any:
        asked = self._checked(DiscoveryTask, task)
        return wire.dump(self._discoveries.ask(asked, wake=self._on_poke))

    @_answering
    def reload(self, context: Context, *, agent_epoch: int) -> None:
        self._reload(agent_epoch)

    @_answering
    def install(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.install(self._checked(InstallTask, task)))

    @_answering
    def poke(self, context: Context) -> None:
        self._on_poke()

    def _checked(self, kind: type[T], task: Any) -> T:
        loaded = wire.load(kind, task)
        self._check(loaded.agent_epoch)
        return loaded

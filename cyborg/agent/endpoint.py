# SPDX-License-Identifier: Apache-2.0
"""The agent's door on the bus: unpack, hand on, pack."""

from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging

from cyborg.agent.operations import Operations
from cyborg.model import wire
from cyborg.model.names import AGENT
from cyborg.model.work import HandleTask, ProgramTask
from cyborg.rpc.faults import answering
from cyborg.rpc.transport import VERSION

Context = Mapping[str, Any]
_answering = answering(AGENT)


class Endpoint:
    """The verbs of ``cyborg.rpc.agent``; ``on_poke`` is called when the desired state changed."""

    target = oslo_messaging.Target(version=VERSION)

    def __init__(self, operations: Operations, *, on_poke: Callable[[], None]) -> None:
        self._operations = operations
        self._on_poke = on_poke

    @_answering
    def ping(self, context: Context) -> str:
        return "pong"

    @_answering
    def prepare(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.prepare(wire.load(HandleTask, task)))

    @_answering
    def release(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.release(wire.load(HandleTask, task)))

    @_answering
    def program(self, context: Context, *, task: Any) -> Any:
        return wire.dump(self._operations.program(wire.load(ProgramTask, task)))

    @_answering
    def poke(self, context: Context) -> None:
        self._on_poke()

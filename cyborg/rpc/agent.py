# SPDX-License-Identifier: Apache-2.0
"""The agents' verbs, as the conductor calls them on one host."""

from typing import TypeVar

from cyborg import exception
from cyborg.model import wire
from cyborg.model.work import (
    Discovered,
    DiscoveryTask,
    HandleTask,
    InstallTask,
    Outcome,
    ProgramTask,
)
from cyborg.rpc.transport import AGENT_TOPIC, Bus, Line

T = TypeVar("T", Discovered, Outcome)


class AgentClient:
    """Asks the agent of a host (its ``[DEFAULT] host``); all verbs are idempotent by operation.

    Every verb but ``poke`` raises Unavailable when the agent does not answer within ``timeout``
    seconds, and Invalid for an answer that cannot be read or is about another task; one that is not
    ``done`` means: ask again.
    """

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        self._line = Line(bus, AGENT_TOPIC, peer="agent", timeout=timeout)

    def close(self) -> None:
        """Give up calls in flight."""
        self._line.close()

    def prepare(self, host: str, task: HandleTask, *, within: float) -> Outcome:
        """Make an attach handle ready for its guest; after ``within`` seconds nobody wants it."""
        reply = self._line.call_server(host, "prepare", within=within, task=wire.dump(task))
        return _about(task.operation, wire.load(Outcome, reply))

    def release(self, host: str, task: HandleTask) -> Outcome:
        """Undo what prepare did, and clean up after the guest."""
        reply = self._line.call_server(host, "release", task=wire.dump(task))
        return _about(task.operation, wire.load(Outcome, reply))

    def program(self, host: str, task: ProgramTask) -> Outcome:
        """Load an image into a deployable."""
        reply = self._line.call_server(host, "program", task=wire.dump(task))
        return _about(task.operation, wire.load(Outcome, reply))

    def discovery(self, host: str, task: DiscoveryTask) -> Discovered:
        """Fetch what is desired, look at the hardware, and report; answers what was found."""
        reply = self._line.call_server(host, "discovery", task=wire.dump(task))
        return _about(task.operation, wire.load(Discovered, reply))

    def reload(self, host: str, epoch: int) -> None:
        """Have the agent of this epoch finish what is in hand and execute itself anew.

        It is done when the host's agent says hello with another epoch.
        """
        self._line.call_server(host, "reload", agent_epoch=epoch)

    def install(self, host: str, task: InstallTask) -> Outcome:
        """Set a device up, look whether it is ready then, and look at the host anew."""
        reply = self._line.call_server(host, "install", task=wire.dump(task))
        return _about(task.operation, wire.load(Outcome, reply))

    def poke(self, host: str) -> None:
        """Hint that the desired state changed; a lost hint costs one heartbeat."""
        self._line.tell_server(host, "poke")


def _about(operation: str, answer: T) -> T:
    """The answer to this task; raises Invalid for that to another one."""
    if answer.operation != operation:
        raise exception.Invalid(
            field="operation", reason=f"{operation} was asked for, {answer.operation} answered"
        )
    return answer

# SPDX-License-Identifier: Apache-2.0
"""The agents' verbs, as the conductor calls them on one host."""

from cyborg.model import wire
from cyborg.model.work import HandleTask, Outcome, ProgramTask
from cyborg.rpc.transport import AGENT_TOPIC, Bus, Line


class AgentClient:
    """Asks the agent of a host (its ``[DEFAULT] host``); all verbs are idempotent by operation.

    Every verb but ``poke`` raises Unavailable when the agent does not answer within ``timeout``
    seconds; an answer that is not ``done`` means: ask again.
    """

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        self._line = Line(bus, AGENT_TOPIC, peer="agent", timeout=timeout)

    def close(self) -> None:
        """Give up calls in flight."""
        self._line.close()

    def prepare(self, host: str, task: HandleTask, *, within: float) -> Outcome:
        """Make an attach handle ready for its guest; after ``within`` seconds nobody wants it."""
        reply = self._line.call_server(host, "prepare", within=within, task=wire.dump(task))
        return wire.load(Outcome, reply)

    def release(self, host: str, task: HandleTask) -> Outcome:
        """Undo what prepare did, and clean up after the guest."""
        return wire.load(Outcome, self._line.call_server(host, "release", task=wire.dump(task)))

    def program(self, host: str, task: ProgramTask) -> Outcome:
        """Load an image into a deployable."""
        return wire.load(Outcome, self._line.call_server(host, "program", task=wire.dump(task)))

    def poke(self, host: str) -> None:
        """Hint that the desired state changed; a lost hint costs one heartbeat."""
        self._line.tell_server(host, "poke")

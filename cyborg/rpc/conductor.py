# SPDX-License-Identifier: Apache-2.0
"""Client of the conductors, for the API and the agents."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from cyborg.model.process import API
from cyborg.rpc import verbs
from cyborg.rpc.transport import (
    AGENT_TOPIC,
    CONDUCTOR_AGENTS_TOPIC,
    CONDUCTOR_TOPIC,
    Bus,
    RPCClient,
)

Answer = TypeVar("Answer")

#: How much earlier a write expires than this process stops to wait for it, in seconds. The clocks
#: of a database's servers may differ by that, and an answer needs time to arrive. The margin is at
#: most a quarter of the timeout.
_MARGIN: Final = 1.0


class ConductorClient(RPCClient):
    """Send commands to any conductor; ``sender`` is the endpoint or the name of the caller.

    Both methods raise the errors that the command declares, and Unavailable or OutcomeUnknown of
    the bus. ``timeout`` is how long this process waits for a write, in seconds. ``now_ms`` returns
    the time of the database's clock, never ahead of it; it may raise Unavailable. With it, a write
    expires before this process stops to wait for it: a conductor that receives it later changes
    nothing. Without it, as in tests, writes do not expire and are repeated once.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        timeout: float,
        sender: str = API,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(
            bus,
            CONDUCTOR_AGENTS_TOPIC if sender.startswith(AGENT_TOPIC) else CONDUCTOR_TOPIC,
            peer="conductor",
            timeout=timeout,
            sender=sender,
            later=verbs.CONDUCTOR,
        )
        self._now_ms = now_ms

    def request(self, command: verbs.ToConductor[Answer]) -> Answer:
        """Return the answer to a command."""
        return command.read(self.call(command.verb, **command.dump()))

    def write(self, command: verbs.Write[Answer]) -> Answer:
        """Return the answer to a write, which expires as described above."""
        request_id = command.caller.request_id
        if self._now_ms is None:
            return command.read(self.call(command.verb, request_id=request_id, **command.dump()))
        # Before the clock is read: the wait for the first connection is not part of the timeout.
        self.require_peer()
        left = self._timeout - min(_MARGIN, self._timeout / 4)
        caller = replace(command.caller, expires_ms=self._now_ms() + int(left * 1000))
        arguments = replace(command, caller=caller).dump()
        return command.read(
            self.call_until(command.verb, within=self._timeout, request_id=request_id, **arguments)
        )

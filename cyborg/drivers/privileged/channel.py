# SPDX-License-Identifier: Apache-2.0
"""A connection of the agent to the privileged process, in the protocol of oslo.privsep."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_privsep import comm

from cyborg import exception


class Channel(comm.ClientChannel):
    """Sends the calls of one context.

    Raises exception.HostError if the process at the other end does not answer, which is so when it
    could not take the capabilities of the context.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        try:
            answer = self.send_recv((comm.Message.PING.value,))
        except OSError:
            answer = (None,)
        if answer[0] != comm.Message.PONG:
            raise exception.HostError(
                action="starting a privileged process",
                reason="it ended at its start; the log of cyborg-privileged has the reason",
            )

    def remote_call(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], timeout: float | None
    ) -> Any:
        """Call a function and return its result; oslo.privsep calls this method."""
        kind, value, *details = self.send_recv(
            (comm.Message.CALL.value, name, args, kwargs), timeout
        )
        if kind == comm.Message.RET:
            return value
        reason = " ".join(str(detail) for detail in details[:1]) or "no details"
        raise exception.HostError(action=f"calling {name}", reason=f"{value}: {reason}")

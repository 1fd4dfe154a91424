# SPDX-License-Identifier: Apache-2.0
"""A connection of the agent to the privileged process, in the protocol of oslo.privsep."""

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from oslo_privsep import comm

from cyborg import exception
from cyborg.drivers.privileged.action import Context

#: How long the other end may take to give its privileges away and answer, in seconds.
_START_TIMEOUT: Final = 60.0
#: What oslo.privsep returns in place of an answer that did not come in time.
_NOT_IN_TIME: Final = f"{comm.PrivsepTimeout.__module__}.{comm.PrivsepTimeout.__name__}"
#: struct ucred of unix(7): process, user, group.
_UCRED: Final = struct.Struct("=iII")


class Peer(NamedTuple):
    """The process at the other end of a Unix socket; for a client, the one that began to listen."""

    process: int
    user: int
    group: int


def peer(connection: socket.socket) -> Peer:
    """Return what the kernel knows about the other end (unix(7), SO_PEERCRED)."""
    value = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(value))


class Connection(socket.socket):
    """A Unix socket whose other end may stop at any time.

    The kernel reports a reset if the other end did not read everything. The thread of oslo.privsep
    that reads from a channel handles only the end of the data; a reset would end the thread, and
    calls would then wait for ever.
    """

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return data, and nothing after a reset."""
        try:
            return super().recv(size, flags)
        except ConnectionResetError:
            return b""


class Channel(comm.ClientChannel):
    """Sends the calls of one context.

    Raises exception.HostError if the process at the other end does not answer, which is so when it
    could not take the capabilities of the context. ``patience`` is how long that may take, in
    seconds.
    """

    def __init__(
        self, connection: Connection, kind: Context, *, patience: float = _START_TIMEOUT
    ) -> None:
        super().__init__(connection)
        try:
            connection.sendall(f"{kind}\n".encode())
            answer = self.send_recv((comm.Message.PING.value,), patience)
        except OSError:
            answer = (None,)
        if answer[0] != comm.Message.PONG:
            raise exception.HostError(
                action="starting a privileged process",
                reason="it did not begin to answer; the log of cyborg-privileged has the reason",
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
        if value == _NOT_IN_TIME:
            raise exception.HostError(
                action=f"calling {name}",
                reason=f"the privileged process has not answered for {timeout:g} s; the action may "
                "still be under way",
            )
        reason = " ".join(str(detail) for detail in details[:1]) or "no details"
        raise exception.HostError(action=f"calling {name}", reason=f"{value}: {reason}")

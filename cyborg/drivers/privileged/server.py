# SPDX-License-Identifier: Apache-2.0
"""The privileged process: one child for each connection, with the capabilities of one context.

The process listens on a socket and starts a child for each connection. The first line that the
child reads names a context. The child gives away everything that the context does not need, and
then answers requests of oslo.privsep until the agent closes the connection. Before that it reads
nothing but the line. So no process that interprets requests has the capabilities of two contexts.

The agent runs without capabilities and in a sandbox of its own. This is why the process is not a
child of the agent: a child could have no more than the agent's unit has, and would see its
read-only /sys.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import tempfile
from typing import Any, Final, NoReturn

from oslo_config import cfg
from oslo_privsep import capabilities, comm
from oslo_privsep.daemon import Daemon, ProtocolError

from cyborg.drivers.privileged.action import Context
from cyborg.drivers.privileged.channel import peer
from cyborg.drivers.privileged.client import Export
from cyborg.drivers.privileged.contexts import EXPORTS, PROCESS

LOG = logging.getLogger(__name__)

#: How long a child waits for the name of the context, in seconds.
_LINE_TIMEOUT: Final = 10.0
_LINE_LENGTH: Final = 32
#: The directory for large temporary files (hier(7)).
_COPIES: Final = "/var/tmp"  # noqa: S108 - mkdtemp makes a directory of its own there
#: linux/prctl.h.
_PR_SET_NO_NEW_PRIVS: Final = 38


class Requests(comm.ServerChannel):
    """The requests of one connection: only calls of one function pass.

    oslo.privsep imports the module that a request names before it checks the function. Here a
    request with any other name ends the iteration with ProtocolError, and with it the process.
    """

    def __init__(self, connection: socket.socket, export: Export) -> None:
        super().__init__(connection)
        self._name = export.name

    def __next__(self) -> Any:
        message = super().__next__()
        match message:
            case (str(), (comm.Message.PING,)):
                return message
            case (str(), (comm.Message.CALL, self._name, (_, _), {**options})) if not options:
                return message
        raise ProtocolError(f"a request that is not allowed: {message!r:.200}")


class Server:
    """Accepts connections of the agent's user and of its own, and starts a child for each."""

    def __init__(self, listener: socket.socket, user: int, functions: str) -> None:
        self._listener = listener
        self._user = user
        cfg.CONF.set_override("socket", listener.getsockname(), group=PROCESS)
        cfg.CONF.set_override("functions", functions, group=PROCESS)

    def run(self) -> NoReturn:
        """Serve until the process is stopped."""
        # The kernel removes children that have ended.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        # Children may have the user of the agent, who must not be able to change their copies: only
        # the user of this process may enter the directory, and children with CAP_DAC_OVERRIDE.
        with tempfile.TemporaryDirectory(prefix="cyborg-privileged-", dir=_COPIES) as copies:
            cfg.CONF.set_override("copies", copies, group=PROCESS)
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    if os.fork() == 0:
                        self._listener.close()
                        for number in (signal.SIGCHLD, signal.SIGTERM):
                            signal.signal(number, signal.SIG_DFL)
                        os._exit(self._serve(connection))

    def _serve(self, connection: socket.socket) -> int:
        """Serve one connection and return the exit status; runs in the child."""
        process, user, group = peer(connection)
        # The processes of this user ask the observer, which runs as the same user.
        if user not in {0, self._user, os.geteuid()}:
            LOG.warning("Process %s of user %s refused: not the user of the agent", process, user)
            return 1
        try:
            export = EXPORTS[Context(_first_line(connection))]
            _drop_privileges(export, user, group)
            Daemon(Requests(connection, export), export.context).run()
        except (OSError, ValueError, ProtocolError) as error:
            LOG.warning("Connection of process %s closed: %s", process, error)
            return 1
        return 0


def _first_line(connection: socket.socket) -> str:
    """Return the first line of a connection without reading more than the line."""
    connection.settimeout(_LINE_TIMEOUT)
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > _LINE_LENGTH:
            raise ValueError("it does not begin with the name of a context")
        line += byte
    connection.settimeout(None)
    return line[:-1].decode()


def _drop_privileges(export: Export, user: int, group: int) -> None:
    """Prepare this process so that oslo.privsep leaves it the capabilities of the context only.

    A process of root takes the user of the agent: root may write its own files without any
    capability. Programs that this process starts get no new privileges from setuid bits.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(*map(ctypes.c_ulong, (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), "new privileges cannot be refused")
    section = export.context.cfg_section
    if os.geteuid() == 0 and user != 0:
        cfg.CONF.set_override("user", str(user), group=section)
        cfg.CONF.set_override("group", str(group), group=section)
    missing = set(export.context.conf.capabilities) - set(capabilities.get_caps()[1])
    if missing:
        names = ", ".join(sorted(capabilities.CAPS_BYVALUE[number] for number in missing))
        raise OSError(f"this process does not have {names}")

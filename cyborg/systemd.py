# SPDX-License-Identifier: Apache-2.0
"""What a process tells the service manager that started it, as sd_notify(3) has it.

systemd says where it listens in NOTIFY_SOCKET, and how often it wants a heartbeat in
WATCHDOG_USEC. Without these variables nothing is told. oslo.service tells readiness alone.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

LOG = logging.getLogger(__name__)

#: Seconds that a service manager which does not read may hold us up.
_PATIENCE: Final = 2.0
#: Characters of a status line; a whole message must fit into a page.
_LONGEST: Final = 500


class Manager:
    """The service manager, or nobody; ``environment`` is that of this process.

    Both variables are left where they are, for this program when it executes itself anew; the
    commands that drivers run do not get them.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._status = ""
        #: Seconds after which it takes a silent process for dead; None: it does not watch.
        self.watchdog = _seconds(environment) if self._address else None

    def ready(self) -> None:
        """The process serves, for the first time or again."""
        self._tell("READY=1")

    def status(self, sentence: str) -> None:
        """How the process is, for whoever asks; told when it is news."""
        line = " ".join(sentence.split())[:_LONGEST]
        if line != self._status:
            self._status = line
            self._tell(f"STATUS={line}")

    def alive(self) -> None:
        """A heartbeat, if it is wanted."""
        if self.watchdog is not None:
            self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        """The process will be ready again, under the same process id."""
        self._tell("RELOADING=1")

    def stopping(self) -> None:
        """The process ends."""
        self._tell("STOPPING=1")

    def _tell(self, message: str) -> None:
        """Send one message; that it cannot be sent is no reason to do anything else."""
        if not self._address:
            return
        # One socket for each: whoever restarts systemd makes a new one under the same name.
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as line:
            line.settimeout(_PATIENCE)
            try:
                line.sendto(message.encode(errors="replace"), self._address)
            except OSError as error:
                LOG.debug("The service manager was not told %s: %s", message, error)


def _address(name: str) -> str:
    """The socket's address; a name with @ is one in the abstract namespace."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else ""


def _seconds(environment: Mapping[str, str]) -> float | None:
    """The time of the watchdog, if this process is the one that is watched."""
    told, whose = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not told.isdecimal() or int(told) == 0 or whose not in ("", str(os.getpid())):
        return None
    return int(told) / 1_000_000

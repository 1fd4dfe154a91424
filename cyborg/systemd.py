# SPDX-License-Identifier: Apache-2.0
"""Messages of a process to the service manager that started it, in the protocol of sd_notify(3).

systemd sets the address of its socket in NOTIFY_SOCKET, and the time limit of its watchdog in
WATCHDOG_USEC. Without these variables the process sends nothing. oslo.service can report readiness
only.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

LOG = logging.getLogger(__name__)

#: How long to wait for a service manager that does not read, in seconds.
_SEND_TIMEOUT: Final = 2.0
#: Maximum length of a status, in characters; a message must fit into a memory page.
_STATUS_LENGTH: Final = 500


class Manager:
    """The service manager, or no manager; ``environment`` is the environment of this process.

    Both variables stay in the environment, for this program when it executes itself again. The
    commands that drivers run do not get them.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = ""
        name = environment.get("NOTIFY_SOCKET", "")
        if name.startswith("@"):
            # This name is in the abstract namespace.
            self._address = f"\0{name[1:]}"
        elif name.startswith("/"):
            self._address = name
        self._status = ""
        #: Seconds without a message after which the watchdog acts; None: no watchdog.
        self.watchdog: float | None = None
        limit, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        watched = process in ("", str(os.getpid()))
        if self._address and watched and limit.isdecimal() and int(limit) > 0:
            self.watchdog = int(limit) / 1_000_000

    def ready(self) -> None:
        """Report that the process is ready, at its start or after a reload."""
        self._send("READY=1")

    def status(self, sentence: str) -> None:
        """Report the state of the process in one sentence, if it differs from the last report."""
        line = " ".join(sentence.split())[:_STATUS_LENGTH]
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def alive(self) -> None:
        """Send a keep-alive message, if there is a watchdog."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that the process restarts and keeps its process ID."""
        self._send("RELOADING=1")

    def stopping(self) -> None:
        """Report that the process stops."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        """Send one message; log an error and continue."""
        if not self._address:
            return
        # A new socket for each message: a restart of systemd replaces its socket under this name.
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
            sender.settimeout(_SEND_TIMEOUT)
            try:
                sender.sendto(message.encode(errors="replace"), self._address)
            except OSError as error:
                LOG.debug("Cannot send %s to the service manager: %s", message, error)

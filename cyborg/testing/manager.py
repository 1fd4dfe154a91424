# SPDX-License-Identifier: Apache-2.0
"""A service manager that listens to one process, as systemd does with ``Type=notify``."""

import os
import socket
import threading
from pathlib import Path
from typing import Self

from cyborg import service


class SimulatedManager:
    """Keeps every message in order; a context manager. ``watchdog`` is in seconds.

    The socket is a file in ``directory``, or an abstract name without one.
    """

    def __init__(self, directory: Path | None = None, *, watchdog: float | None = None) -> None:
        if directory is None:
            self._name = f"@cyborg-test-{os.getpid()}-{id(self)}"
            address = f"\0{self._name[1:]}"
        else:
            self._name = address = str(directory / "notify")
        self._watchdog = watchdog
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._messages: list[str] = []
        self._thread = threading.Thread(target=self._listen, name="manager", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the process must have."""
        found = {"NOTIFY_SOCKET": self._name}
        if self._watchdog is not None:
            found["WATCHDOG_USEC"] = str(int(self._watchdog * 1_000_000))
        return found

    @property
    def told(self) -> list[str]:
        """All messages but the signs of life."""
        return [one for one in self._messages if one != "WATCHDOG=1"]

    @property
    def signs(self) -> int:
        """How many signs of life there were."""
        return self._messages.count("WATCHDOG=1")

    def hears(self, message: str, *, times: int = 1, timeout: float = 30.0) -> bool:
        """Wait until a message that begins so has come ``times`` times."""

        def come() -> bool:
            return sum(one.startswith(message) for one in tuple(self._messages)) >= times

        return service.wait_until(come, timeout=timeout)

    def silent(self, seconds: float) -> bool:
        """Wait until there has been no sign of life for so long; False if that never comes."""

        def quiet() -> bool:
            before = self.signs
            return not service.wait_until(lambda: self.signs > before, timeout=seconds)

        return service.wait_until(quiet, timeout=30.0)

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            self._messages.append(message.decode())

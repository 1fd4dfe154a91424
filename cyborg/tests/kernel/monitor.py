# SPDX-License-Identifier: Apache-2.0
"""The monitor of QEMU (QMP), which a guest of ``tools/kernel`` has on its second serial port."""

import contextlib
import json
import os
import tty
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Monitor:
    """Commands to the QEMU that runs this guest; a context that closes the port.

    The protocol has one JSON object for each line: QEMU's document "QMP protocol specification".
    """

    def __init__(self, port: Path) -> None:
        self._file = os.open(port, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self._file)
        self._rest = b""
        self._number = 0
        self._plugged: set[str] = set()

    def __enter__(self) -> Self:
        # The port may have echoed a part of the greeting: this byte makes QEMU forget it.
        os.write(self._file, b"\xff")
        # An error, except for the first time.
        self._answer("qmp_capabilities")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in tuple(self._plugged):
            self.pull(name)
        os.close(self._file)

    def plug(self, name: str, *, driver: str, bus: str, **properties: str) -> None:
        """Plug a device of QEMU into an empty slot; ``name`` is its id in QEMU.

        The end of the context pulls it, if that has not been done before.
        """
        self.run("device_add", driver=driver, id=name, bus=bus, **properties)
        self._plugged.add(name)

    def pull(self, name: str) -> None:
        """Ask the guest to give up a device; its uevent ``remove`` tells when it is gone."""
        self._plugged.remove(name)
        self.run("device_del", id=name)

    def run(self, command: str, **arguments: object) -> Any:
        """Run a command, and return its result; an error of QEMU fails the test."""
        answer = self._answer(command, **arguments)
        assert "return" in answer, answer
        return answer["return"]

    def _answer(self, command: str, **arguments: object) -> dict[str, Any]:
        """Send a command and return the answer to it; skip events and all else."""
        self._number += 1
        name = f"{os.getpid()}.{id(self)}.{self._number}"
        request = {"execute": command, "arguments": arguments, "id": name}
        data = f"{json.dumps(request)}\n".encode()
        while data:
            data = data[os.write(self._file, data) :]
        while True:
            while b"\n" not in self._rest:
                self._rest += os.read(self._file, 4096)
            line, _, self._rest = self._rest.partition(b"\n")
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("id") == name:
                    return answer

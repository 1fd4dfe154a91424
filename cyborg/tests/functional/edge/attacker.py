# SPDX-License-Identifier: Apache-2.0
"""A client that sends what it should not, over plain HTTP or TLS."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyborg.tests.fixtures.processes import Program
from cyborg.tests.fixtures.waiting import PATIENCE

_GET: Final = b"GET /v2/devices HTTP/1.1\r\nHost: cyborg\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Target:
    """A server on this machine; ``certificate`` if it requires TLS."""

    port: int
    certificate: Path | None
    programs: Sequence[Program]

    @contextmanager
    def connection(self, *, silent: bool = False) -> Iterator[socket.socket]:
        """Connect; a silent connection sends nothing of a TLS handshake either."""
        address = ("127.0.0.1", self.port)
        with closing(socket.create_connection(address, timeout=PATIENCE)) as plain:
            if self.certificate is None or silent:
                yield plain
                return
            context = ssl.create_default_context(cafile=str(self.certificate))
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                yield secure

    def serves(self) -> bool:
        """Whether a client without bad intentions gets its answer now."""
        try:
            with self.connection() as client:
                client.sendall(_GET)
                return client.recv(65536).startswith(b"HTTP/1.1 200 ")
        except ConnectionRefusedError:
            return False

    def status_of(self, *pieces: bytes, more: Iterator[bytes] | None = None) -> int:
        """The status of the answer to these bytes; 0 if the server closes without an answer."""
        with self.connection() as client:
            try:
                for piece in pieces:
                    client.sendall(piece)
                for piece in more or ():
                    client.sendall(piece)
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                # It may have answered before.
                pass
            try:
                line = client.recv(65536).split(b" ", 2)
            except (ConnectionResetError, ssl.SSLError):
                return 0
        return int(line[1]) if len(line) > 1 else 0

    @property
    def output(self) -> str:
        """What the programs have logged."""
        return "\n".join(program.output for program in self.programs)

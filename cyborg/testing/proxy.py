# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy in front of a server, to cut and to hang its connections while a test runs."""

import contextlib
import socket
import threading
from typing import Self

_CHUNK = 65536


class Proxy:
    """Forwards every connection to its port on the loopback interface to ``host``:``port``.

    A context manager, or start and stop.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener: socket.socket | None = _listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._fatal = b""
        #: How many answers were lost as ``lose_answer_to`` asked for.
        self.lost = 0

    def start(self) -> None:
        """Forward from now on."""
        assert self._listener is not None, "a stopped proxy is not started again"
        self._accept_on(self._listener)

    def stop(self) -> None:
        """Close everything; stopping twice does no harm."""
        self._flowing.set()
        self.cut()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def cut(self) -> None:
        """Break all connections and refuse new ones, as when the server's process is gone."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _close(listener)
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for one in pair:
                _close(one)

    def hang(self) -> None:
        """Keep connections open, take new ones, and forward nothing: the network is gone."""
        self._flowing.clear()

    def lose_answer_to(self, words: bytes) -> None:
        """Hand the next request that holds these words on, and cut its connection when it is done.

        The server has done what was asked, and its client cannot know.
        """
        self._fatal = words

    def heal(self) -> None:
        """Forward again, under the same port."""
        self._flowing.set()
        if self._listener is None:
            self._listener = _listen(self.port)
            self._accept_on(self._listener)

    def _accept_on(self, listener: socket.socket) -> None:
        thread = threading.Thread(target=self._accept, args=(listener,), name="proxy", daemon=True)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client, listener), daemon=True).start()

    def _connect(self, client: socket.socket, listener: socket.socket) -> None:
        self._flowing.wait()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            _close(client)
            return
        pair = (client, server)
        doomed = threading.Event()
        with self._lock:
            self._pairs.add(pair)
        if listener is not self._listener:  # it was cut meanwhile
            _close(client)
            _close(server)
        for number in (0, 1):
            threading.Thread(target=self._pump, args=(pair, number, doomed), daemon=True).start()

    def _pump(
        self, pair: tuple[socket.socket, socket.socket], number: int, doomed: threading.Event
    ) -> None:
        """Forward what comes from one of the two; 0 is the client."""
        source, sink = pair[number], pair[1 - number]
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flowing.wait()
                if number == 0 and self._is_fatal(data):
                    doomed.set()
                elif number == 1 and doomed.is_set():
                    break
                sink.sendall(data)
        with self._lock:
            self._pairs.discard(pair)
        for one in pair:
            _close(one)

    def _is_fatal(self, data: bytes) -> bool:
        with self._lock:
            found = bool(self._fatal) and self._fatal in data
            if found:
                self._fatal = b""
                self.lost += 1
        return found


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def _close(one: socket.socket) -> None:
    # Without the shutdown a thread that waits in accept or recv would keep waiting.
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

# SPDX-License-Identifier: Apache-2.0
"""Receive kernel events (uevents) about devices that appear, change or disappear."""

import errno
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

#: Linux's NETLINK_KOBJECT_UEVENT (include/uapi/linux/netlink.h); group 1 has the kernel's events,
#: group 2 those of udev.
_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
#: The kernel sends at most 2 KiB of variables after the header (UEVENT_BUFFER_SIZE).
_DATAGRAM = 16 * 1024
#: Large enough for a burst, such as all virtual functions of a card at the same time.
_RECEIVE_BUFFER = 4 * 1024 * 1024


@dataclass(frozen=True)
class Uevent:
    """One event; ``devpath`` is below ``/sys``.

    This module adds the action ``overflow``: events were lost, and a full scan is necessary.
    """

    action: str
    devpath: str = ""
    fields: dict[str, str] = field(default_factory=dict)


def parse(datagram: bytes) -> Uevent | None:
    """Parse one datagram: ``action@devpath``, then ``KEY=value``, each ended by a NUL byte.

    Returns None for a datagram of any other form.
    """
    header, *lines = datagram.decode(errors="replace").split("\0")
    action, at, devpath = header.partition("@")
    if not at or not action.isalpha():
        return None
    pairs = (line.partition("=") for line in lines if "=" in line)
    return Uevent(action, devpath, {key: value for key, _, value in pairs})


class KernelEvents:
    """An iterator over events, until any thread calls ``close``."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._wake, self._wake_sender = socket.socketpair()
        self._lock = threading.Lock()
        self._iterated = False
        self._closed = False

    @classmethod
    def open(cls) -> Self:
        """Listen to the kernel of this machine; raises OSError when that is not allowed."""
        source = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT
        )
        try:
            source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            source.bind((0, _KERNEL_GROUP))
        except OSError:
            source.close()
            raise
        return cls(source)

    def __iter__(self) -> Iterator[Uevent]:
        """Yield events until ``close``. Only one thread may iterate, and only once."""
        with self._lock:
            if self._closed:
                return
            self._iterated = True
        try:
            while True:
                ready, _, _ = select.select([self._source, self._wake], [], [])
                if self._wake in ready:
                    return
                if (event := self._receive()) is not None:
                    yield event
        finally:
            self._close_source()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; the method may be called twice."""
        with self._lock:
            self._closed = True
            self._wake_sender.close()
            if not self._iterated:
                self._close_source()

    def _close_source(self) -> None:
        self._source.close()
        self._wake.close()

    def _receive(self) -> Uevent | None:
        try:
            datagram, sender = self._source.recvfrom(_DATAGRAM)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return Uevent("overflow")
            raise
        # Any process may send to the group; the kernel's port number is 0.
        if isinstance(sender, tuple) and sender[0] != 0:
            return None
        return parse(datagram)

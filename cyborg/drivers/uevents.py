# SPDX-License-Identifier: Apache-2.0
"""Kernel events: what Linux says about devices that come, go and change, without any library."""

import errno
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

#: Linux's NETLINK_KOBJECT_UEVENT (include/uapi/linux/netlink.h); group 1 is the kernel's own voice,
#: group 2 would be udev's.
_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
#: The kernel puts at most 2 KiB of variables behind the header (UEVENT_BUFFER_SIZE).
_DATAGRAM = 16 * 1024
#: Room for a storm, such as all virtual functions of a card at once.
_RECEIVE_BUFFER = 4 * 1024 * 1024


@dataclass(frozen=True)
class Uevent:
    """One event; ``devpath`` is below ``/sys``.

    Action ``overflow`` is ours: events were lost, and only a full scan tells what is there.
    """

    action: str
    devpath: str = ""
    fields: dict[str, str] = field(default_factory=dict)


def parse(datagram: bytes) -> Uevent | None:
    """Read one datagram, ``action@devpath`` and then ``KEY=value``, each ended by a NUL byte.

    None for anything else.
    """
    header, *lines = datagram.decode(errors="replace").split("\0")
    action, at, devpath = header.partition("@")
    if not at or not action.isalpha():
        return None
    pairs = (line.partition("=") for line in lines if "=" in line)
    return Uevent(action, devpath, {key: value for key, _, value in pairs})


class KernelEvents:
    """Iterate over events until ``close`` is called, from whatever thread."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._wake, self._waker = socket.socketpair()
        self._lock = threading.Lock()
        self._iterated = False
        self._closed = False

    @classmethod
    def open(cls) -> Self:
        """Listen to this machine's kernel; raises OSError where that is not allowed."""
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
        """Yield events as they come; ends after ``close``. One thread may iterate, once."""
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
        """Stop listening; calling twice does no harm."""
        with self._lock:
            self._closed = True
            self._waker.close()
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

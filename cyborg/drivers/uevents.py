# SPDX-License-Identifier: Apache-2.0
"""Receive kernel events (uevents) about devices that appear, change or disappear."""

import contextlib
import errno
import select
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyudev

#: Large enough for a burst, such as all virtual functions of a card at the same time.
_RECEIVE_BUFFER = 4 * 1024 * 1024
#: The action of the event that stands for lost events: only a full scan tells what happened.
OVERFLOW = "overflow"


@dataclass(frozen=True)
class Uevent:
    """One event; ``devpath`` is below ``/sys``. The action may also be ``OVERFLOW``."""

    action: str
    devpath: str = ""
    fields: dict[str, str] = field(default_factory=dict)


class KernelEvents:
    """The events of the kernel since this object was made, until ``close``."""

    def __init__(self, monitor: pyudev.Monitor) -> None:
        self._monitor = monitor
        self._wake, self._wake_sender = socket.socketpair()
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls) -> Self:
        """Listen to the kernel of this machine; raises OSError when that is not possible."""
        try:
            # The events of the kernel itself: containers often have no udev daemon.
            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        except ImportError as error:
            raise OSError(errno.ENOENT, f"libudev is not installed ({error})") from error
        with contextlib.suppress(OSError):
            # This needs CAP_NET_ADMIN. An overflow of the smaller buffer leads to a full scan.
            monitor.set_receive_buffer_size(_RECEIVE_BUFFER)
        monitor.start()
        return cls(monitor)

    def poll(self, timeout: float | None = None) -> Uevent | None:
        """Return the next event; None after ``timeout`` seconds, and once closed.

        Only one thread may call this method.
        """
        if self._closed:
            return None
        ready, _, _ = select.select([self._monitor, self._wake], [], [], timeout)
        if self._monitor not in ready or self._closed:
            return None
        try:
            device = self._monitor.poll(0)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return Uevent(OVERFLOW)
            raise
        if device is None:
            return Uevent("unknown")
        fields = dict(device.properties)
        if "DEVNAME" in fields:
            # libudev puts the directory before the kernel's value.
            fields["DEVNAME"] = fields["DEVNAME"].removeprefix("/dev/")
        return Uevent(device.action, device.device_path, fields)

    @property
    def closed(self) -> bool:
        """Return whether ``close`` was called."""
        return self._closed

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
        """Stop listening, in any thread; the method may be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake_sender.close()

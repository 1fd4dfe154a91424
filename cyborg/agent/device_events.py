# SPDX-License-Identifier: Apache-2.0
"""Check devices and scan the host after kernel events, without waiting for the next interval."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from cyborg import exception
from cyborg.drivers.host import Events, Host
from cyborg.drivers.uevents import OVERFLOW, Uevent

LOG = logging.getLogger(__name__)

#: A round starts after this many seconds without an event, and at most _LONGEST after the first.
_QUIET: Final = 0.2
_LONGEST: Final = 0.8
#: The subsystems whose devices are accelerators, parts of them, or a sign of their use.
_SUBSYSTEMS: Final = frozenset(
    {
        *("accel", "auxiliary", "block", "cxl", "drm", "dsa", "fpga_manager", "fpga_region"),
        *("infiniband", "mdev", "misc", "net", "nvme", "pci", "vfio", "vfio-dev"),
    }
)


class DeviceEvents:
    """A thread that listens to the kernel; ``on_change`` is called after each burst of events.

    ``on_events`` is called with each event at once: an error must not wait for the end of a burst.
    Where the kernel's events cannot be received, this is logged once and only the interval counts.
    """

    def __init__(
        self,
        machine: Host,
        on_change: Callable[[], None],
        on_events: Callable[[Sequence[Uevent]], None] = lambda events: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = machine
        self._on_events = on_events
        self._on_change = on_change
        self._clock = clock
        self._events: Events | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to listen."""
        try:
            self._events = self._machine.events()
        except exception.HostError as error:
            LOG.warning(
                "Kernel events cannot be received, so changes of the hardware are noticed at the "
                "next scan: %s",
                error,
            )
            return
        self._thread = threading.Thread(
            target=self._run, args=(self._events,), name="device-events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop to listen."""
        if self._events is not None:
            self._events.close()

    def wait(self) -> None:
        """Wait until a call of ``on_change`` has ended, after ``stop``."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, events: Events) -> None:
        try:
            while not events.closed:
                event = events.poll()
                if event is None or not _matters(event):
                    continue
                self._on_events([event])
                end = self._clock() + _LONGEST
                while (left := end - self._clock()) > 0:
                    event = events.poll(min(_QUIET, left))
                    if event is None:
                        break
                    if _matters(event):
                        self._on_events([event])
                if not events.closed:
                    self._on_change()
        except OSError as error:
            LOG.warning("Kernel events are not received any more: %s", error)


def _matters(event: Uevent) -> bool:
    """Return whether the hardware, or what uses it, may have changed."""
    return event.action == OVERFLOW or event.fields.get("SUBSYSTEM") in _SUBSYSTEMS

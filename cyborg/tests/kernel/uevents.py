# SPDX-License-Identifier: Apache-2.0
"""Record uevents in the background, and wait for those that a test expects."""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from cyborg.drivers.uevents import KernelEvents, Uevent
from cyborg.tests.kernel.functions import PATIENCE


class Recorder:
    """All uevents of the kernel from the begin of the context to its end."""

    def __init__(self) -> None:
        self._events: list[Uevent] = []
        self._source = KernelEvents.open()
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._record)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._source.close()
        self._thread.join()

    def wait(
        self,
        action: str,
        name: str,
        *,
        subsystem: str = "pci",
        fields: Mapping[str, str] | None = None,
    ) -> Uevent:
        """Return the first event of a device with these fields; wait until it arrives.

        ``name`` is the last part of the path of the device in sysfs.
        """
        expected = {"SUBSYSTEM": subsystem, **(fields or {})}
        return self._wait(
            f"{action} of {name} with {expected}",
            lambda event: (
                (event.action, event.devpath.rpartition("/")[2]) == (action, name)
                and expected.items() <= event.fields.items()
            ),
        )

    def new_function(self, identity: tuple[str, str]) -> str:
        """Return the address of the next PCI function with this vendor and device id."""
        pci_id = ":".join(part.removeprefix("0x").upper() for part in identity)
        event = self._wait(
            f"add of {pci_id}",
            lambda event: event.action == "add" and event.fields.get("PCI_ID") == pci_id,
        )
        return event.fields["PCI_SLOT_NAME"]

    def first(self) -> Uevent:
        """Return the first event since the begin of the context; wait until there is one."""
        return self._wait("of any device", lambda _: True)

    def _wait(self, title: str, matches: Callable[[Uevent], bool]) -> Uevent:
        def match() -> Uevent | None:
            return next(filter(matches, self._events), None)

        with self._arrived:
            event = self._arrived.wait_for(match, PATIENCE)
        assert event, f"no uevent {title} in {PATIENCE:g} s"
        return event

    def _record(self) -> None:
        while not self._source.closed:
            event = self._source.poll()
            if event is not None:
                with self._arrived:
                    self._events.append(event)
                    self._arrived.notify_all()

# SPDX-License-Identifier: Apache-2.0
"""Ask one device at a time, in a thread that may hang without holding up anything else.

Files of sysfs and device nodes are answered by the driver of the device. One that waits for broken
hardware never returns, and cannot be interrupted.
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from cyborg import exception

T = TypeVar("T")

_PATIENCE: Final = 5.0

#: Waits for an event at most so many seconds, and returns whether it is set.
Wait = Callable[[threading.Event, float], bool]


class _Worker:
    """A daemon thread that runs one call after the other, until it is stopped."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="prober", daemon=True).start()

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call after those that were submitted before."""
        self._calls.put(call)

    def stop(self) -> None:
        """End the thread after the calls that were submitted before."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            # The call refers to the prober, which would keep its threads for ever.
            del call


def _stop(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.stop()


class Prober:
    """Run calls that may hang; a device that has not answered is not asked again until it does.

    ``patience`` is the time for one call, in seconds; ``wait`` waits that long. Any thread may use
    a prober. An agent has one for its whole life, so that each device that hangs costs one thread.
    The threads of a prober that nobody uses any more end.
    """

    def __init__(self, patience: float = _PATIENCE, *, wait: Wait = threading.Event.wait) -> None:
        self._patience = patience
        self._wait = wait
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._hanging: set[str] = set()
        weakref.finalize(self, _stop, self._idle)

    def run(self, device: str, call: Callable[[], T]) -> T:
        """Return the result of ``call``, which asks ``device``, or raise its error.

        Raises exception.HostError when the device does not answer in time, or has not answered an
        earlier call.
        """
        action = f"reading {device}"
        with self._lock:
            if device in self._hanging:
                raise exception.HostError(action=action, reason="an earlier call still hangs")
            worker = self._idle.pop() if self._idle else _Worker()
        answers: list[tuple[Any, Exception | None]] = []
        answered = threading.Event()

        def answer() -> None:
            try:
                answers.append((call(), None))
            except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits
                answers.append((None, error))
            with self._lock:
                self._hanging.discard(device)
                self._idle.append(worker)
            answered.set()

        worker.submit(answer)
        if not self._wait(answered, self._patience):
            with self._lock:
                if not answers:
                    self._hanging.add(device)
            reason = f"it did not answer within {self._patience:g} seconds"
            raise exception.HostError(action=action, reason=reason)
        [(value, error)] = answers
        if error is not None:
            raise error
        result: T = value
        return result

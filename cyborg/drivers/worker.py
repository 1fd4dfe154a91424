# SPDX-License-Identifier: Apache-2.0
"""The one way to call what may hang: drivers, and files that the driver of a device answers.

A call that waits for broken hardware never returns, and cannot be interrupted. So each call has a
thread, and its caller waits for a limited time. The threads are daemon threads: none of them keeps
the process from ending.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from cyborg import exception
from cyborg.context import carried

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: How long a read of a file or of a device may take, in seconds.
_PATIENCE: Final = 5.0
#: A thread that has had nothing to do for this many seconds ends.
_LINGER: Final = 1.0
#: The name of a thread that has nothing to do.
_IDLE: Final = "worker"


class Call(Future[T]):
    """A call of a worker; "still busy" is ``not call.done()``.

    ``name`` says what is called; ``thread``, which carries out the call, has it as its name
    meanwhile. An ``overdue`` call is one whose caller has given up.
    """

    def __init__(self, name: str, function: Callable[[], T], thread: "_Thread") -> None:
        super().__init__()
        self.name = name
        self.function = function
        self.thread = thread
        self.overdue = False


#: Waits until a call has ended, at most so many seconds.
Wait = Callable[[Call[Any], float], object]


def _wait(call: Call[Any], seconds: float) -> None:
    try:
        call.exception(seconds)
    except TimeoutError:
        return


def _ignore(driver: str, verb: str) -> None:
    """Do not count a failure."""


class Worker:
    """Carry out calls: those of one key in order and one at a time, of other keys meanwhile.

    Any thread may use a worker. A key that hangs occupies one thread and delays no other key; all
    others are reused. ``on_failure`` gets the driver and the verb of each call of a driver that
    failed. ``patience`` is the time, in seconds, of ``read``; ``wait`` waits for a call.
    """

    def __init__(
        self,
        on_failure: Callable[[str, str], None] = _ignore,
        *,
        patience: float = _PATIENCE,
        wait: Wait = _wait,
    ) -> None:
        self._on_failure = on_failure
        self._patience = patience
        self._wait = wait
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        #: By key: the call that runs, and those that follow it.
        self._calls: dict[Hashable, deque[Call[Any]]] = {}

    def submit(self, key: Hashable, name: str, function: Callable[[], T]) -> Call[T]:
        """Return a call that runs after the earlier ones of its key, for this thread's request."""
        with self._lock:
            return self._add(key, name, function)

    def begin(self, key: Hashable, name: str, function: Callable[[], T]) -> tuple[Call[T], bool]:
        """Return the call of this key that runs, else a new one, and whether the key was busy."""
        with self._lock:
            if key in self._calls:
                return self._calls[key][0], True
            return self._add(key, name, function), False

    def running(self, key: Hashable) -> Call[Any] | None:
        """Return the call of a key that runs, None if the key is not busy."""
        with self._lock:
            return self._calls[key][0] if key in self._calls else None

    def wait(self, calls: Iterable[Call[Any]], seconds: float) -> None:
        """Wait until these calls have ended, at most so many seconds for all together."""
        deadline = time.monotonic() + seconds
        for call in calls:
            self._wait(call, max(0.0, deadline - time.monotonic()))

    def read(self, device: str, function: Callable[[], T]) -> T:
        """Return the result of ``function``, which reads what ``device`` answers, or its error.

        Raises exception.HostError when the device does not answer in time. It is not asked again
        before it has answered.
        """
        action = f"reading {device}"
        with self._lock:
            if device in self._calls and self._calls[device][0].overdue:
                raise exception.HostError(action=action, reason="an earlier call still hangs")
            call = self._add(device, action, function)
        self._wait(call, self._patience)
        if not call.done():
            # One that waits for another reader of the device is not asked at all.
            call.overdue = not call.cancel()
            reason = f"it did not answer within {self._patience:g} seconds"
            raise exception.HostError(action=action, reason=reason)
        return call.result()

    def call_driver(self, driver: str, verb: str, function: Callable[[], T]) -> T:
        """Return the result of a driver's verb; every error is DriverFailed or DriverCannot.

        Raises RuntimeError outside the calls of a worker: a driver that hangs would hang its
        caller.
        """
        if not isinstance(threading.current_thread(), _Thread):
            raise RuntimeError(f"{verb} of driver {driver} is called outside a worker")
        try:
            return function()
        except exception.DriverCannot:
            raise
        except exception.DriverFailed:
            self._on_failure(driver, verb)
            raise
        except exception.CyborgError as error:
            self._on_failure(driver, verb)
            raise exception.DriverFailed(driver=driver, verb=verb, reason=str(error)) from error
        except (Exception, SystemExit) as error:
            # Vendors' code may raise anything, and even exit. It must not stop the agent or another
            # driver.
            LOG.exception("Driver %s failed in %s", driver, verb)
            self._on_failure(driver, verb)
            reason = f"{type(error).__name__}: {error}"
            raise exception.DriverFailed(driver=driver, verb=verb, reason=reason) from error

    def _add(self, key: Hashable, name: str, function: Callable[[], T]) -> Call[T]:
        """Return a new call of a key; the caller has the lock."""
        calls = self._calls.get(key)
        if calls is None:
            thread = self._idle.pop() if self._idle else _Thread(self._serve)
            thread.name = name
            thread.keys.put(key)
            calls = self._calls[key] = deque()
        else:
            thread = calls[0].thread
        call = Call(name, carried(function), thread)
        calls.append(call)
        return call

    def _serve(self, thread: "_Thread") -> None:
        """Carry out the calls of one key after the other."""
        while True:
            try:
                key = thread.keys.get(timeout=_LINGER)
            except queue.Empty:
                with self._lock:
                    if thread in self._idle:
                        self._idle.remove(thread)
                        return
                continue
            while self._run_next(key, thread):
                continue

    def _run_next(self, key: Hashable, thread: "_Thread") -> bool:
        """Carry out the next call of a key; return whether there are more."""
        with self._lock:
            calls = self._calls[key]
            call = calls[0]
        thread.name = call.name
        result, error = None, None
        if call.set_running_or_notify_cancel():
            function = call.function
            # The call is kept for its result; what it was called with is not.
            del call.function
            try:
                result = function()
            except BaseException as caught:  # noqa: BLE001 - the caller gets it from the call
                error = caught
        with self._lock:
            # Before the result: a caller that has it may begin the next call of the key.
            calls.popleft()
            more = bool(calls)
            if not more:
                del self._calls[key]
                thread.name = _IDLE
                self._idle.append(thread)
        if call.cancelled():
            return more
        if error is None:
            call.set_result(result)
        else:
            call.set_exception(error)
        return more


class _Thread(threading.Thread):
    """A thread of a worker, with the keys whose calls it has to carry out."""

    def __init__(self, serve: "Callable[[_Thread], None]") -> None:
        super().__init__(target=serve, args=(self,), name=_IDLE, daemon=True)
        self.keys: queue.SimpleQueue[Hashable] = queue.SimpleQueue()
        self.start()

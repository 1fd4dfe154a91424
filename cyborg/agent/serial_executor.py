# SPDX-License-Identifier: Apache-2.0
"""A thread pool that runs the calls of one key in order and one at a time."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from cyborg.context import carried

T = TypeVar("T")


class KeyedSerialExecutor:
    """Run calls in at most ``threads`` threads, of which each key occupies at most one.

    A device that hangs therefore blocks one thread, however many calls wait for the device.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="operation")
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._stopped = False

    def submit(self, key: Hashable, call: Callable[[], T]) -> Future[T]:
        """Run ``call`` after all earlier calls of this key, in the context of this request."""
        future: Future[T] = Future()
        with self._lock:
            has_thread = key in self._queues
            self._queues.setdefault(key, deque()).append((future, carried(call)))
            if not has_thread:
                self._pool.submit(self._run_queue, key)
        return future

    def stop(self) -> None:
        """Wait for the running calls; calls that still wait are never started."""
        with self._lock:
            self._stopped = True
        self._pool.shutdown()

    def _run_queue(self, key: Hashable) -> None:
        while True:
            with self._lock:
                queue = self._queues[key]
                if self._stopped or not queue:
                    del self._queues[key]
                    return
                future, call = queue.popleft()
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
                future.set_exception(error)
            else:
                future.set_result(result)

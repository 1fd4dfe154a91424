# SPDX-License-Identifier: Apache-2.0
"""Threads that run the calls for one device in order and one at a time."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from cyborg.context import carried

T = TypeVar("T")


class KeyedSerialExecutor:
    """Run calls in at most ``threads`` threads for each driver; each key occupies at most one.

    A key is the name of a driver, and a device. A device that hangs therefore blocks one thread,
    however many calls wait for the device, and a driver that hangs delays no other driver.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, str], deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._stopped = False

    def submit(self, key: tuple[str, str], call: Callable[[], T]) -> Future[T]:
        """Run ``call`` after all earlier calls of this key, in the context of this request."""
        future: Future[T] = Future()
        with self._lock:
            has_thread = key in self._queues
            if self._stopped and not has_thread:
                raise RuntimeError("the executor was stopped")
            self._queues.setdefault(key, deque()).append((future, carried(call)))
            if not has_thread:
                driver, _ = key
                if driver not in self._pools:
                    name = f"operation-{driver}"
                    self._pools[driver] = ThreadPoolExecutor(self._threads, name)
                self._pools[driver].submit(self._run_queue, key)
        return future

    def stop(self) -> None:
        """Wait for the running calls; calls that still wait are never started."""
        with self._lock:
            self._stopped = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.shutdown()

    def _run_queue(self, key: tuple[str, str]) -> None:
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

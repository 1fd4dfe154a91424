# SPDX-License-Identifier: Apache-2.0
"""Threads in lanes: what belongs to one lane runs in order and one at a time."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from cyborg.context import carried

T = TypeVar("T")


class KeyedSerialExecutor:
    """Runs calls. However much waits in a lane, it keeps one thread busy at most.

    So a device that hangs takes one of the ``threads``, and not all of them.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="operation")
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._stopped = False

    def submit(self, lane: Hashable, call: Callable[[], T]) -> Future[T]:
        """Have ``call`` run, for the same request, after everything that waits in its lane."""
        future: Future[T] = Future()
        with self._lock:
            served = lane in self._waiting
            self._waiting.setdefault(lane, deque()).append((future, carried(call)))
            if not served:
                self._pool.submit(self._serve, lane)
        return future

    def stop(self) -> None:
        """Finish what is running; what waits is never begun."""
        with self._lock:
            self._stopped = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _serve(self, lane: Hashable) -> None:
        while True:
            with self._lock:
                waiting = self._waiting[lane]
                if self._stopped or not waiting:
                    del self._waiting[lane]
                    return
                future, call = waiting.popleft()
            try:
                answer = call()
            except BaseException as error:  # noqa: BLE001 - it belongs to who waits, as in a pool
                future.set_exception(error)
            else:
                future.set_result(answer)

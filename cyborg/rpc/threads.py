# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang, in threads that do not delay the end of the process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cyborg.context import carried


def in_thread(call: Callable[[], Any], *, name: str = "rpc-call") -> Future[Any]:
    """Call in a daemon thread: unlike an executor's, it does not delay the end of the process."""
    future: Future[Any] = Future()
    call = carried(call)

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001
            # The libraries of the broker's driver raise errors of their own while they connect.
            # The caller gets each error from the future.
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future

# SPDX-License-Identifier: Apache-2.0
"""The runner of a daemon: RPC server, periodic jobs and signals, in threads.

oslo.service's launcher forks, which cuts threads; all that a daemon of ours needs is here.
"""

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from cyborg import exception

LOG = logging.getLogger(__name__)

#: How long a daemon that is told to end waits for each of its jobs, in seconds.
_PATIENCE = 30.0


class Server(Protocol):
    """What oslo.messaging calls an RPC server."""

    def start(self) -> Any: ...
    def stop(self) -> Any: ...
    def wait(self) -> Any: ...


class Periodic:
    """A job in a thread of its own, every ``interval`` seconds, sooner when woken.

    A job that fails is logged and runs again at its next turn: one sentence when it is one of our
    errors (and only when it is another than last time), a traceback when nobody foresaw it.
    ``jitter`` spreads the turns of many hosts, as a part of the interval.
    """

    def __init__(
        self, name: str, job: Callable[[], object], *, interval: float, jitter: float = 0.0
    ) -> None:
        self._name = name
        self._job = job
        self._interval = interval
        self._jitter = jitter
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Run the job now and from now on."""
        self._thread.start()

    def wake(self) -> None:
        """Run the job at once instead of at its next turn."""
        self._due.set()

    def stop(self) -> None:
        """Let a running job finish and run no more."""
        self._stopped.set()
        self._due.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            # In this order: a stop between the two is seen, one after them ends the wait below.
            self._due.clear()
            if self._stopped.is_set():
                return
            self._turn()
            spread = random.uniform(1 - self._jitter, 1 + self._jitter)
            self._due.wait(self._interval * spread)

    def _turn(self) -> None:
        before, self._complaint = self._complaint, ""
        try:
            self._job()
        except exception.CyborgError as error:
            self._complaint = str(error)
        except Exception:
            # A daemon outlives a fault in one of its jobs; the operator must see it.
            self._complaint = "a fault"
            LOG.exception("%s failed", self._name)
            return
        # Not while the error is handled: oslo.log would write it a second time behind the sentence.
        if self._complaint and self._complaint != before:
            LOG.warning("%s: %s", self._name, self._complaint)
        elif before and not self._complaint:
            LOG.info("%s works again", self._name)


class Daemon:
    """Everything of one process that starts and stops together, in this order and back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._servers: list[Server] = []
        self._jobs: list[Periodic] = []
        self._endings: list[Callable[[], None]] = []
        self._ended = threading.Event()
        self._again = threading.Event()
        self._starters: list[threading.Thread] = []

    def serve(self, server: Server) -> None:
        """Have an RPC server run; it connects in the background, for the broker may be away."""
        self._servers.append(server)

    def every(self, job: Periodic) -> None:
        """Have a periodic job run."""
        self._jobs.append(job)

    def at_end(self, ending: Callable[[], None]) -> None:
        """Have something done when everything has stopped, the last named first."""
        self._endings.append(ending)

    def start(self) -> None:
        """Start everything; returns at once."""
        for server in self._servers:
            thread = threading.Thread(target=server.start, name="rpc-start", daemon=True)
            thread.start()
            self._starters.append(thread)
        for job in self._jobs:
            job.start()
        LOG.info("%s is running", self._name)

    def stop(self) -> None:
        """Finish what is in hand, then end."""
        for server, starter in zip(self._servers, self._starters, strict=False):
            starter.join(1.0)
            if not starter.is_alive():
                server.stop()
                server.wait()
        for job in self._jobs:
            job.stop()
        for ending in reversed(self._endings):
            ending()
        LOG.info("%s has ended", self._name)

    def run(self) -> int:
        """Start, wait for SIGTERM or SIGINT, stop; answers the exit status.

        Does not return when the daemon is to begin anew: then this process executes the same
        command line again, with the code that is installed by then, under the same pid.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A container runtime's reload must not end a daemon that has nothing to reload.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.start()
        while not self._ended.wait(1.0):
            pass
        LOG.info("%s is told to end, and finishes what is in hand", self._name)
        self.stop()
        if self.beginning_anew:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        return 0

    def begin_anew(self) -> None:
        """Have ``run`` finish what is in hand and execute the program again; returns at once."""
        self._again.set()
        self._ended.set()

    @property
    def beginning_anew(self) -> bool:
        """Whether it was asked to begin anew, and nobody has told it to end since."""
        return self._again.is_set()

    def _on_signal(self, number: int, frame: object) -> None:
        self._again.clear()
        self._ended.set()


def wait_until(condition: Callable[[], bool], *, timeout: float, step: float = 0.05) -> bool:
    """Wait at most ``timeout`` seconds for a condition; answers whether it came true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True

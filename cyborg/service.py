# SPDX-License-Identifier: Apache-2.0
"""Run a daemon: its servers and periodic tasks in threads, signals, and reports to systemd.

The launcher of oslo.service forks, and threads do not survive a fork. This module is all that the
daemons of this service need.
"""

import contextlib
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from cyborg import exception
from cyborg.context import ids, working_for
from cyborg.model.process import BusFault
from cyborg.systemd import Manager

LOG = logging.getLogger(__name__)

#: How long a stopping daemon waits for each of its periodic tasks, in seconds.
_STOP_TIMEOUT = 30.0
#: How long a stopping or restarting daemon may finish its current work, in seconds: longer than any
#: command of a driver.
_FINISH_TIMEOUT = 4 * 3600.0
_TICK = 1.0
#: How long a broker may refuse this process before the process counts as stuck, in seconds. A
#: broker that does not answer at all never makes it stuck, because a restart does not help then.
_REFUSED_LIMIT = 600.0


class Server(Protocol):
    """A server that can be started, stopped and waited for, such as oslo.messaging's RPC server."""

    def start(self) -> Any: ...
    def stop(self) -> Any: ...
    def wait(self) -> Any: ...


def _end(server: Server) -> None:
    """Let a server finish what it has accepted; an error must not keep the others from stopping."""
    try:
        server.stop()
        server.wait()
    except Exception:
        LOG.exception("A server did not stop as it should")


class PeriodicTask:
    """A job that runs in a separate thread every ``interval`` seconds, or earlier when woken.

    A job that fails is logged and runs again after the interval: an error of this service as one
    sentence (only if it differs from the last one), any other exception with its traceback.
    ``jitter``, a fraction of the interval, spreads the runs of many hosts. A run that takes longer
    than ``limit`` seconds is stuck; without a limit a run may take any time. ``stop`` calls
    ``interrupt``, which ends what a run waits for.
    """

    def __init__(
        self,
        name: str,
        job: Callable[[], object],
        *,
        interval: float,
        jitter: float = 0.0,
        limit: float | None = None,
        interrupt: Callable[[], object] = lambda: None,
    ) -> None:
        self._name = name
        self._job = job
        self._interval = interval
        self._jitter = jitter
        self._limit = limit
        self._interrupt = interrupt
        self._run_began: float | None = None
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._error = ""
        self._waker_ids: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Run the job now and then periodically."""
        self._thread.start()

    def wake(self) -> None:
        """Run the job immediately; its log lines carry the ids of this thread's request."""
        self._waker_ids = ids()
        self._due.set()

    def stop(self) -> None:
        """Let a running job finish, and do not run it again."""
        self._stopped.set()
        self._due.set()
        self._interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT)

    @property
    def last_error(self) -> str:
        """Return the name and the error of the last run; empty when it succeeded."""
        return f"{self._name}: {self._error}" if self._error else ""

    @property
    def stuck(self) -> str:
        """Return a clause that says why the job will not run again; empty while it will."""
        return self.overdue(self._limit)

    def overdue(self, limit: float | None) -> str:
        """Return such a clause for a run that takes longer than ``limit`` seconds."""
        began = self._run_began
        if self._thread.ident is not None and not (
            self._thread.is_alive() or self._stopped.is_set()
        ):
            return f"{self._name} has ended unexpectedly"
        if limit and began is not None and time.monotonic() - began > limit:
            return f"{self._name} has been in one run for more than {limit:g} seconds"
        return ""

    def _run(self) -> None:
        while True:
            # In this order: the check sees a stop that comes between the two lines, and a stop that
            # comes later ends the wait below.
            self._due.clear()
            if self._stopped.is_set():
                return
            waker_ids, self._waker_ids = self._waker_ids, {}
            self._run_began = time.monotonic()
            with working_for(waker_ids):
                self._run_once()
            self._run_began = None
            spread = random.uniform(1 - self._jitter, 1 + self._jitter)  # noqa: S311 - spreads load
            self._due.wait(self._interval * spread)

    def _run_once(self) -> None:
        previous, current = self._error, ""
        try:
            self._job()
        except exception.CyborgError as error:
            current = str(error)
        except Exception:
            # An unexpected error in one job must not stop the daemon; the operator must see it.
            self._error = "unexpected error, see the log"
            LOG.exception("Periodic task %s failed with an unexpected error", self._name)
            return
        self._error = current
        # Outside the handler: oslo.log would append the error to the line a second time.
        if current and current != previous:
            LOG.warning("Periodic task %s failed: %s", self._name, current)
        elif previous and not current:
            LOG.info("Periodic task %s succeeds again", self._name)


class Daemon:
    """The servers and periodic tasks of one process, which start and stop together in this order.

    The daemon reports to the service manager that it is ready, its status and that it is alive.
    It waits for the message bus for ``ready_timeout`` seconds before it reports that it is ready: a
    daemon runs without a broker, and without this limit systemd would restart it repeatedly.
    """

    def __init__(self, name: str, *, ready_timeout: float = 10.0) -> None:
        self._name = name
        self._ready_timeout = ready_timeout
        self._manager = Manager()
        self._servers: list[Server] = []
        self._tasks: list[PeriodicTask] = []
        self._cleanups: list[Callable[[], None]] = []
        self._reloads: list[Callable[[], None]] = []
        self._alive_checks: list[Callable[[], bool]] = []
        self._trouble_checks: list[Callable[[], BusFault | None]] = []
        # What signals and ``restart`` request. An event would not do: its methods take a lock, and
        # a signal that arrives in the handler of another would wait for the lock forever. ``put``
        # of a SimpleQueue may be called again while it runs.
        self._requests: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._restarting = False
        self._stopping = threading.Event()
        self._starters: list[threading.Thread] = []

    def add_server(
        self,
        server: Server,
        *,
        alive: Callable[[], bool] | None = None,
        trouble: Callable[[], BusFault | None] | None = None,
    ) -> None:
        """Add a server; it starts in the background, because the broker may not be available.

        ``alive`` returns whether a started server still runs. ``trouble`` returns why an RPC server
        does not receive requests, and None while the server listens.
        """
        self._servers.append(server)
        if alive is not None:
            self._alive_checks.append(alive)
        if trouble is not None:
            self._trouble_checks.append(trouble)

    def add_task(self, task: PeriodicTask) -> None:
        """Add a periodic task."""
        self._tasks.append(task)

    def at_end(self, *cleanups: Callable[[], None]) -> None:
        """Add functions to call after everything has stopped; the last added runs first."""
        self._cleanups += cleanups

    def at_reload(self, *steps: Callable[[], None]) -> None:
        """Add functions to call, in this order, after SIGHUP.

        They must return at once. Without any, the daemon ignores the signal.
        """
        self._reloads += steps

    def start(self) -> None:
        """Start the servers and tasks; return without waiting."""
        for server in self._servers:
            thread = threading.Thread(target=server.start, name="rpc-start", daemon=True)
            thread.start()
            self._starters.append(thread)
        for task in self._tasks:
            task.start()
        LOG.info("%s is running", self._name)

    def stop(self) -> None:
        """Finish the current work, then stop."""
        ending = []
        for server, starter in zip(self._servers, self._starters, strict=False):
            starter.join(1.0)
            if not starter.is_alive():
                # oslo.messaging's servers for RabbitMQ take up to 5 seconds to notice it.
                ending.append(threading.Thread(target=_end, args=(server,), daemon=True))
                ending[-1].start()
        for thread in ending:
            thread.join()
        for task in self._tasks:
            task.stop()
        for cleanup in reversed(self._cleanups):
            cleanup()
        LOG.info("%s has stopped", self._name)

    def run(self) -> int:
        """Start, wait for SIGTERM or SIGINT, and stop; return the exit status.

        The method does not return when ``restart`` was called: this process then executes the same
        command line again, with the code that is installed at that time, under the same pid.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A reload signal of a container runtime must not end a daemon that has nothing to reload.
        signal.signal(signal.SIGHUP, self._on_signal if self._reloads else signal.SIG_IGN)
        self.start()
        threading.Thread(target=self._report_status, name="systemd", daemon=True).start()
        request = 0
        while request not in (signal.SIGTERM, signal.SIGINT):
            # Python runs handlers in this thread only, and only after a call has returned. A signal
            # that another thread gets, or this one just before it sleeps, would end no sleep.
            with contextlib.suppress(queue.Empty):
                request = self._requests.get(timeout=_TICK)
                if request == signal.SIGHUP:
                    for step in self._reloads:
                        step()
        self._stopping.set()
        action = "restarting" if self.restarting else "stopping"
        LOG.info("%s is %s; it finishes its current work first", self._name, action)
        if self.restarting:
            self._manager.reloading()
        else:
            self._manager.stopping()
        self._manager.status("Finishing the current work")
        self.stop()
        if self.restarting:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself
        return 0

    def restart(self) -> None:
        """Request that ``run`` finishes the current work and executes the program again."""
        self._restarting = True
        self._requests.put(signal.SIGTERM)

    @property
    def restarting(self) -> bool:
        """Return whether a restart was requested, and no signal to stop has come since."""
        return self._restarting

    @property
    def stuck(self) -> str:
        """Return a clause that says why only a restart can help; empty while there is no reason."""
        if (
            self._alive_checks
            and not self._connecting
            and not all(alive() for alive in self._alive_checks)
        ):
            return f"{self._name} no longer accepts requests"
        trouble = self.bus_trouble
        if trouble and trouble.refused and time.monotonic() - trouble.since > _REFUSED_LIMIT:
            return (
                f"{self._name} has received no requests for more than {_REFUSED_LIMIT:g} seconds: "
                f"{trouble.reason}"
            )
        return next((task.stuck for task in self._tasks if task.stuck), "")

    @property
    def bus_trouble(self) -> BusFault | None:
        """Return why this process receives no requests over the bus, None while it listens."""
        troubles = (check() for check in self._trouble_checks)
        return next((trouble for trouble in troubles if trouble is not None), None)

    @property
    def bus_error(self) -> str:
        """Return the reason of ``bus_trouble``; empty while this process listens."""
        trouble = self.bus_trouble
        return trouble.reason if trouble else ""

    @property
    def state(self) -> str:
        """Return the status of the daemon in a sentence."""
        if self.bus_error:
            return f"Receives no requests: {self.bus_error}"
        if self._connecting:
            return "Waiting for the message bus"
        errors = [task.last_error for task in self._tasks if task.last_error]
        return f"Running; {'; '.join(errors)}" if errors else "Running"

    @property
    def _connecting(self) -> bool:
        return any(starter.is_alive() for starter in self._starters)

    def _report_status(self) -> None:
        """Report the status to the service manager until the process ends.

        While the daemon is stuck, it does not report that it is alive, so the watchdog restarts it.
        """
        manager, logged = self._manager, ""
        wait_until(
            lambda: self._stopping.is_set() or not self._connecting,
            timeout=self._ready_timeout,
        )
        # Several times within the watchdog interval, so that one late report does not matter.
        tick = min(_TICK, (manager.watchdog or _TICK) / 3)
        if not self._stopping.is_set():
            manager.status(self.state)
            manager.ready()
        while not self._stopping.wait(tick):
            stuck = self.stuck
            manager.status(f"Stuck: {stuck}" if stuck else self.state)
            if not stuck:
                manager.alive()
            elif stuck != logged:
                LOG.error(
                    "%s. Only a restart helps; the systemd watchdog does it, if enabled.", stuck
                )
            logged = stuck
        deadline = time.monotonic() + _FINISH_TIMEOUT
        while time.monotonic() < deadline:
            manager.alive()
            time.sleep(tick)

    def _on_signal(self, number: int, frame: object) -> None:
        if number != signal.SIGHUP:
            self._restarting = False
        self._requests.put(number)


def wait_until(condition: Callable[[], bool], *, timeout: float, step: float = 0.05) -> bool:
    """Wait at most ``timeout`` seconds for a condition; return whether it became true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True

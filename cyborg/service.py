# SPDX-License-Identifier: Apache-2.0
"""The runner of a daemon: RPC server, periodic jobs, signals and heartbeats, in threads.

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
from cyborg.context import ids, working_for
from cyborg.model.trouble import Trouble
from cyborg.systemd import Manager

LOG = logging.getLogger(__name__)

#: How long a daemon that is told to end waits for each of its jobs, in seconds.
_PATIENCE = 30.0
#: How long a daemon that starts waits for the bus before it counts as ready all the same: it lives
#: with a broker that is away, and systemd would otherwise start it again and again.
_READY_AFTER = 10.0
#: How long a daemon that begins anew may finish what is in hand, in seconds: longer than any
#: command of a driver.
_FINISHING = 4 * 3600.0
_TICK = 1.0
#: How long a broker may refuse this process before it counts as stuck, in seconds. A broker that
#: does not answer at all never makes the process stuck: a restart cannot cure that.
_DEAF_LIMIT = 600.0


class Server(Protocol):
    """What oslo.messaging calls an RPC server."""

    def start(self) -> Any: ...
    def stop(self) -> Any: ...
    def wait(self) -> Any: ...


class PeriodicTask:
    """A job in a thread of its own, every ``interval`` seconds, sooner when woken.

    A job that fails is logged and runs again at its next turn: one sentence when it is one of our
    errors (and only when it is another than last time), a traceback when nobody foresaw it.
    ``jitter`` spreads the turns of many hosts, as a part of the interval. A turn that takes longer
    than ``limit`` seconds is stuck; without a limit it may take as long as it likes.
    """

    def __init__(
        self,
        name: str,
        job: Callable[[], object],
        *,
        interval: float,
        jitter: float = 0.0,
        limit: float | None = None,
    ) -> None:
        self._name = name
        self._job = job
        self._interval = interval
        self._jitter = jitter
        self._limit = limit
        self._since: float | None = None
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._complaint = ""
        self._asker: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Run the job now and from now on."""
        self._thread.start()

    def wake(self) -> None:
        """Run the job at once, for this thread's request, instead of at its next turn."""
        self._asker = ids()
        self._due.set()

    def stop(self) -> None:
        """Let a running job finish and run no more."""
        self._stopped.set()
        self._due.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    @property
    def complaint(self) -> str:
        """What kept the last turn from its end, in a sentence; empty when nothing did."""
        return f"{self._name}: {self._complaint}" if self._complaint else ""

    @property
    def stuck(self) -> str:
        """Why there will be no other turn, in a sentence; empty while there is no such reason."""
        since = self._since
        if self._thread.ident is not None and not (
            self._thread.is_alive() or self._stopped.is_set()
        ):
            return f"{self._name} has ended, which it never should"
        if self._limit and since is not None and time.monotonic() - since > self._limit:
            return f"{self._name} has been at one turn for more than {self._limit:g} seconds"
        return ""

    def _run(self) -> None:
        while True:
            # In this order: a stop between the two is seen, one after them ends the wait below.
            self._due.clear()
            if self._stopped.is_set():
                return
            asker, self._asker = self._asker, {}
            self._since = time.monotonic()
            with working_for(asker):
                self._turn()
            self._since = None
            spread = random.uniform(1 - self._jitter, 1 + self._jitter)
            self._due.wait(self._interval * spread)

    def _turn(self) -> None:
        before, now = self._complaint, ""
        try:
            self._job()
        except exception.CyborgError as error:
            now = str(error)
        except Exception:
            # A daemon outlives a fault in one of its jobs; the operator must see it.
            self._complaint = "a fault, see the log"
            LOG.exception("%s failed", self._name)
            return
        self._complaint = now
        # Not while the error is handled: oslo.log would write it a second time behind the sentence.
        if now and now != before:
            LOG.warning("%s: %s", self._name, now)
        elif before and not now:
            LOG.info("%s works again", self._name)


class Daemon:
    """Everything of one process that starts and stops together, in this order and back.

    ``manager`` is told when it is ready, how it is, and that it lives.
    """

    def __init__(self, name: str, manager: Manager | None = None) -> None:
        self._name = name
        self._manager = manager or Manager()
        self._servers: list[Server] = []
        self._jobs: list[PeriodicTask] = []
        self._endings: list[Callable[[], None]] = []
        self._lives: list[Callable[[], bool]] = []
        self._troubles: list[Callable[[], Trouble | None]] = []
        self._ended = threading.Event()
        self._again = threading.Event()
        self._starters: list[threading.Thread] = []

    def add_server(
        self,
        server: Server,
        *,
        alive: Callable[[], bool] | None = None,
        trouble: Callable[[], Trouble | None] | None = None,
    ) -> None:
        """Have a server run; it starts in the background, because the broker may be away.

        ``alive`` tells whether a server that has started still runs. ``trouble`` tells why an RPC
        server receives no requests, and is None while the server listens.
        """
        self._servers.append(server)
        if alive is not None:
            self._lives.append(alive)
        if trouble is not None:
            self._troubles.append(trouble)

    def add_task(self, job: PeriodicTask) -> None:
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
        threading.Thread(target=self._show, name="systemd", daemon=True).start()
        while not self._ended.wait(_TICK):
            pass
        LOG.info("%s is told to end, and finishes what is in hand", self._name)
        if self.restarting:
            self._manager.reloading()
        else:
            self._manager.stopping()
        self._manager.status("Finishing what is in hand")
        self.stop()
        if self.restarting:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        return 0

    def restart(self) -> None:
        """Have ``run`` finish what is in hand and execute the program again; returns at once."""
        self._again.set()
        self._ended.set()

    @property
    def restarting(self) -> bool:
        """Whether it was asked to begin anew, and nobody has told it to end since."""
        return self._again.is_set()

    @property
    def stuck(self) -> str:
        """Why only a new start can help, in a sentence; empty while there is no such reason."""
        if self._lives and not self._connecting and not all(alive() for alive in self._lives):
            return f"{self._name} takes no more requests"
        trouble = self.bus_trouble
        if trouble and trouble.refused and time.monotonic() - trouble.since > _DEAF_LIMIT:
            return (
                f"{self._name} has received no requests for more than {_DEAF_LIMIT:g} seconds: "
                f"{trouble.reason}"
            )
        return next((job.stuck for job in self._jobs if job.stuck), "")

    @property
    def bus_trouble(self) -> Trouble | None:
        """Why this process receives no requests over the bus; None while it listens."""
        found = (trouble() for trouble in self._troubles)
        return next((trouble for trouble in found if trouble is not None), None)

    @property
    def bus_error(self) -> str:
        """The reason of ``bus_trouble``; empty while this process listens."""
        trouble = self.bus_trouble
        return trouble.reason if trouble else ""

    @property
    def state(self) -> str:
        """How it is, in a sentence."""
        if self.bus_error:
            return f"Receives no requests: {self.bus_error}"
        if self._connecting:
            return "Waiting for the message bus"
        complaints = [job.complaint for job in self._jobs if job.complaint]
        return f"Running; {'; '.join(complaints)}" if complaints else "Running"

    @property
    def _connecting(self) -> bool:
        return any(starter.is_alive() for starter in self._starters)

    def _show(self) -> None:
        """Tell the service manager how this daemon is, for as long as the process lives.

        While a job is stuck it is not told that the daemon lives, and will start it again.
        """
        manager, said = self._manager, ""
        wait_until(lambda: self._ended.is_set() or not self._connecting, timeout=_READY_AFTER)
        # More than once within its time, so that one sign that comes late is not missed.
        tick = min(_TICK, (manager.watchdog or _TICK) / 3)
        if not self._ended.is_set():
            manager.status(self.state)
            manager.ready()
        while not self._ended.wait(tick):
            stuck = self.stuck
            manager.status(f"Stuck: {stuck}" if stuck else self.state)
            if not stuck:
                manager.alive()
            elif stuck != said:
                LOG.error("%s. Only a new start can help; a watchdog will make one.", stuck)
            said = stuck
        deadline = time.monotonic() + _FINISHING
        while time.monotonic() < deadline:
            manager.alive()
            time.sleep(tick)

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

# SPDX-License-Identifier: Apache-2.0
"""The parts of a simulated process that can crash at each of its steps."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter

from cyborg.db.engine import Database
from cyborg.db.transaction import Transaction
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.functional.life.cards import Rack


class Clock:
    """The one clock of all databases and processes; stands still until it is told to go on."""

    def __init__(self) -> None:
        self.ms = 0
        self.now: sa.ColumnElement[int] = sa.bindparam(
            "moment", type_=sa.BigInteger(), callable_=lambda: self.ms
        )

    def begin(self) -> None:
        """Show the time that it is: what clients see of an ARQ's age is of the real clock."""
        self.ms = int(time.time() * 1000)

    def seconds(self) -> float:
        """The same clock in seconds."""
        return self.ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.ms += int(seconds * 1000)


class CrashPlan:
    """Count the steps of a process, which crashes at the chosen step."""

    def __init__(self) -> None:
        self.over = False
        self.will_crash = False
        self._left = 0
        self._after = False
        self._endings: list[Callable[[], object]] = []

    def at_end(self, ending: Callable[[], object]) -> None:
        """Have something done when it dies."""
        self._endings.append(ending)

    def crash_after(self, steps: int, *, after: bool) -> None:
        """Let it die at the step after so many, before or ``after`` that takes effect."""
        self.will_crash, self._left, self._after = True, steps, after

    def keep_running(self) -> None:
        """Take that back."""
        self.will_crash = False

    def end(self) -> None:
        """Die now; once is enough."""
        if not self.over:
            self.over = True
            for ending in self._endings:
                ending()

    @contextmanager
    def step(self, _what: str = "") -> Iterator[None]:
        """One edge; raises Died from the last one on."""
        last = self.will_crash and self._left == 0
        self._left -= 1
        if last and not self._after:
            self.end()
        if self.over:
            raise Died
        yield
        if last:
            self.end()
            raise Died


class CrashableDatabase(Database):
    """A database connection of one process; each transaction is a step."""

    def __init__(self, url: str, *, clock: Clock, crash_plan: CrashPlan) -> None:
        super().__init__(url, now=clock.now)
        self._crash_plan = crash_plan

    @contextmanager
    def reader(self) -> Iterator[Transaction]:
        """See Reader."""
        if self._crash_plan.over:
            raise Died
        with super().reader() as connection:
            yield connection

    @contextmanager
    def writer(self) -> Iterator[Transaction]:
        """See Database."""
        with self._crash_plan.step(), super().writer() as connection:
            yield connection


class CrashableAdapter(Adapter):
    """The way to a peer, for one process; ``away`` tells whether nobody is there."""

    def __init__(self, like: Adapter, *, crash_plan: CrashPlan, away: Callable[[], bool]) -> None:
        super().__init__(like.session, service_type=like.service_type)
        self._crash_plan = crash_plan
        self._away = away

    def request(self, url: str, method: str, **arguments: Any) -> Any:
        """See Adapter."""
        with self._crash_plan.step():
            if self._away():
                raise ks_exceptions.ConnectFailure("nobody is there")
            return super().request(url, method, **arguments)


class AtOnce(Executor):
    """Runs what it is given before it answers: nothing is left to chance."""

    def __init__(self, **_sizes: object) -> None:
        super().__init__()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See Executor."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to who asks for the result
            future.set_exception(error)
        return future


class ProcessDriver(Driver):
    """A rack's driver as one agent process has it; ``meanwhile`` is called while the host works.

    What is prepared is the hardware's memory, not the process's.
    """

    name = "process_driver"
    can_program = True

    def __init__(self, rack: Rack, *, crash_plan: CrashPlan, meanwhile: Callable[[], None]) -> None:
        self._rack = rack
        self._crash_plan = crash_plan
        self._meanwhile = meanwhile

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        """See Driver."""
        return self._rack.driver.discover(context)

    def prepare(self, task: HandleTask) -> None:
        """See Driver."""
        with self._crash_plan.step():
            self._meanwhile()
            self._rack.driver.prepare(task)

    def release(self, task: HandleTask) -> None:
        """See Driver."""
        with self._crash_plan.step():
            self._meanwhile()
            self._rack.driver.release(task)

    def program(self, task: ProgramTask, image_path: str) -> None:
        """See Driver."""
        with self._crash_plan.step():
            self._meanwhile()
            self._rack.driver.program(task, image_path)

    def prepared(self) -> Sequence[Unit]:
        """See Driver."""
        return self._rack.driver.prepared()

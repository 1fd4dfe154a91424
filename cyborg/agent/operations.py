# SPDX-License-Identifier: Apache-2.0
"""Operations on hardware: each runs once per operation id, one at a time per device.

An operation that takes long goes on in its thread while the conductor asks again with the same id;
what ended is remembered for a while, so that a lost answer is simply given again.
"""

import logging
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from cyborg import exception
from cyborg.agent.guard import Guard, guarded
from cyborg.agent.installation import set_up
from cyborg.agent.journal import Journal
from cyborg.agent.lanes import Lanes
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver
from cyborg.model.work import HandleTask, InstallTask, Outcome, ProgramTask, Unit, WorkKind

LOG = logging.getLogger(__name__)

Task = HandleTask | InstallTask | ProgramTask
#: How many ended operations are remembered; a conductor asks again within seconds.
_REMEMBERED = 1000


class Operations:
    """Runs tasks.

    ``patience`` is how long, in seconds, one question waits for the end of a task; ``images`` is
    the directory for images on their way into a device. ``threads`` is how many devices may be
    worked on at a time. ``look_again`` is called when what the host shows may have changed.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        journal: Journal,
        glance: Callable[[], Glance],
        images: Path,
        patience: float,
        look_again: Callable[[], None],
        threads: int = 32,
        guard: Guard = guarded,
    ) -> None:
        self._drivers = drivers
        self._journal = journal
        self._glance = glance
        self._images = images
        self._patience = patience
        self._look_again = look_again
        self._guard = guard
        self._lanes = Lanes(threads)
        self._lock = threading.Lock()
        self._running: OrderedDict[str, Future[str | None]] = OrderedDict()
        self._repairs: dict[Unit, Future[None]] = {}
        #: Order and moment of issue of what was last ordered for each unit.
        self._orders: dict[Unit, tuple[int, int]] = {}
        # When something was last done to a unit, counted over all units.
        self._moment = 0
        self._changed_at: dict[Unit, int] = {}

    def prepare(self, task: HandleTask) -> Outcome:
        """Make a handle ready for its guest."""
        driver = self._driver(task.driver)
        return self._run(
            task, "prepare", lambda: self._in_turn(task, "prepare", lambda: driver.prepare(task))
        )

    def release(self, task: HandleTask) -> Outcome:
        """Take a handle back from its guest, and clean up."""
        driver = self._driver(task.driver)
        return self._run(
            task, "release", lambda: self._in_turn(task, "release", lambda: driver.release(task))
        )

    def program(self, task: ProgramTask) -> Outcome:
        """Fetch an image with the service's own credentials and load it.

        Raises Unavailable while Glance cannot be asked, or the image finds no room on the disk:
        ask again later.
        """
        driver = self._driver(task.driver)
        return self._run(task, "program", lambda: self._program(driver, task))

    def install(self, task: InstallTask) -> Outcome:
        """Set a device up; succeeds only when the driver finds it ready after that."""
        driver = self._driver(task.driver)
        return self._run(task, "install", lambda: self._install(driver, task))

    @property
    def moment(self) -> int:
        """Now, in the order of the operations; see ``repair``."""
        return self._moment

    def repair(self, verb: WorkKind, task: HandleTask, *, since: int) -> None:
        """Begin to prepare or release a unit that was found not to be as wanted; returns at once.

        What was found was true at the moment ``since``: if anything has been done to the unit
        after that, the repair is left out. What the conductor orders later comes later.
        """
        driver = self._driver(task.driver)
        call = driver.prepare if verb is WorkKind.PREPARE else driver.release
        with self._lock:
            before = self._repairs.get(task.unit)
            if before is None or before.done():
                self._repairs[task.unit] = self._lanes.submit(
                    (task.driver, task.device_key), lambda: self._repair(verb, task, since, call)
                )

    def stop(self) -> None:
        """Finish what is in hand."""
        self._lanes.stop()

    def _driver(self, name: str) -> Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise exception.Unavailable(peer=f"driver {name}", reason="it is not loaded here")
        return driver

    def _run(self, task: Task, verb: str, call: Callable[[], str | None]) -> Outcome:
        with self._lock:
            future = self._running.get(task.operation)
            if future is None:
                future = self._lanes.submit((task.driver, task.device_key), call)
                self._running[task.operation] = future
                while len(self._running) > _REMEMBERED:
                    self._running.popitem(last=False)
        try:
            note = future.result(self._patience)
        except FutureTimeout:
            return Outcome(task.operation, done=False)
        except exception.Unavailable:
            self._forget(task.operation)
            raise
        except exception.CyborgError as error:
            what = task.device_key if isinstance(task, InstallTask) else task.deployable
            LOG.warning("%s of %s failed: %s", verb, what, error)
            self._forget(task.operation)
            return Outcome(task.operation, fault=str(error))
        return Outcome(task.operation, note=note)

    def _in_turn(self, task: HandleTask | ProgramTask, verb: str, call: Callable[[], None]) -> None:
        """Call the driver, unless something later has been done to the unit already.

        A question may be on its way for long: what it asks for would be undone by nobody. One
        with a lower order that was issued later is none of those: the database was restored.
        """
        order, issued = self._orders.get(task.unit, (0, 0))
        restored = 0 < issued < task.issued_ms
        if task.order < order and not restored:
            raise exception.Conflict(reason=f"a later order than this {verb} has been carried out")
        self._orders[task.unit] = task.order, task.issued_ms
        self._mark(task.unit)
        try:
            self._touch(task, verb, call)
        finally:
            # Who looks in between sees something that is neither before nor after it.
            self._mark(task.unit)
        LOG.info("%s of %s is done", verb, task.deployable)

    def _mark(self, unit: Unit) -> None:
        with self._lock:
            self._moment += 1
            self._changed_at[unit] = self._moment

    def _repair(
        self, verb: WorkKind, task: HandleTask, since: int, call: Callable[[HandleTask], None]
    ) -> None:
        place = f"{task.handle_key} of {task.deployable}"
        if self._changed_at.get(task.unit, 0) > since:
            LOG.info("%s is left as it is: something has been done to it meanwhile", place)
            return
        try:
            self._touch(task, verb.value, lambda: call(task))
        except exception.CyborgError as error:
            LOG.warning("%s is not as wanted, and %s failed: %s", place, verb.value, error)
        else:
            prepared = verb is WorkKind.PREPARE
            what = ("Prepared", "again: a guest has it") if prepared else ("Released", "for nobody")
            LOG.info("%s %s %s", what[0], place, what[1])
        self._mark(task.unit)

    def _touch(self, task: Task, verb: str, call: Callable[[], None]) -> None:
        """Call the driver between two records of the journal; a process that dies writes one."""
        self._journal.begin(verb, task)
        try:
            self._guard(task.driver, verb, call)
        except exception.CyborgError as error:
            self._journal.end(task.operation, str(error))
            raise
        self._journal.end(task.operation)

    def _forget(self, operation: str) -> None:
        """A failed operation may be tried again under its own id."""
        with self._lock:
            self._running.pop(operation, None)

    def _install(self, driver: Driver, task: InstallTask) -> str | None:
        try:
            self._touch(task, "install", lambda: driver.install(task.device_key, task.operation))
            return set_up(driver, task.device_key, self._guard)
        finally:
            self._look_again()

    def _program(self, driver: Driver, task: ProgramTask) -> None:
        try:
            self._images.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._images, suffix=".image") as image:
                self._glance().download(task.image_uuid, Path(image.name))
                self._in_turn(task, "program", lambda: driver.program(task, image.name))
        except OSError as error:
            raise exception.Unavailable(peer=str(self._images), reason=str(error)) from error

# SPDX-License-Identifier: Apache-2.0
"""Operations on hardware that the conductor requests from an agent."""

import logging
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from cyborg import exception
from cyborg.agent.driver_calls import DriverCalls, guarded
from cyborg.agent.serial_executor import KeyedSerialExecutor
from cyborg.agent.state_store import OperationJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver
from cyborg.model.health import DeviceHealth
from cyborg.model.work import (
    HandleTask,
    ImageOrder,
    InstallTask,
    Outcome,
    ProgramTask,
    Unit,
    WorkKind,
)

_VERB = "install"


def set_up(driver: Driver, device_key: str, driver_calls: DriverCalls) -> str | None:
    """Look at a device after its set-up; answers what the operator should know, if anything.

    Raises DriverFailed when it is not there, or still not ready.
    """
    found = driver_calls(driver.name, "hardware", driver.hardware)
    entry = next((one for one in found if one.key == device_key), None)
    if entry is None:
        raise _failed(driver, "the device is not there any more")
    if entry.setup_required:
        reason = entry.reason or "it still has to be set up"
        if entry.reboot_required:
            reason = f"the host has to be rebooted before it is ready ({reason})"
        raise _failed(driver, reason)
    if entry.reboot_required:
        return "Its host has to be rebooted" + (f": {entry.reason}" if entry.reason else ".")
    return None


def _failed(driver: Driver, reason: str) -> exception.DriverFailed:
    return exception.DriverFailed(driver=driver.name, verb=_VERB, reason=reason)


LOG = logging.getLogger(__name__)

Task = HandleTask | InstallTask | ProgramTask


def _unknown(_driver: str, _key: str) -> DeviceHealth | None:
    """For a host whose drivers are not asked about health."""
    return None


class Operations:
    """Runs tasks.

    ``patience`` is how long, in seconds, one question waits for the end of a task; ``images`` is
    the directory for images on their way into a device: it is this agent's alone, and images that
    an earlier agent left there are removed. ``threads`` is how many devices may be worked on at a
    time. ``look_again`` is called when what the host shows may have changed. ``health`` returns the
    health of a device that was just set up, by driver and key, if known.
    ``remembered`` is how many operations are kept by id; a conductor asks again within seconds.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        journal: OperationJournal,
        glance: Callable[[], Glance],
        images: Path,
        patience: float,
        look_again: Callable[[], None],
        threads: int = 32,
        remembered: int = 1000,
        driver_calls: DriverCalls = guarded,
        health: Callable[[str, str], DeviceHealth | None] = _unknown,
    ) -> None:
        self._drivers = drivers
        self._journal = journal
        self._glance = glance
        self._images = images
        shutil.rmtree(images, ignore_errors=True)
        self._patience = patience
        self._look_again = look_again
        self._remembered = remembered
        self._driver_calls = driver_calls
        self._health = health
        self._executor = KeyedSerialExecutor(threads)
        self._lock = threading.Lock()
        self._running: OrderedDict[str, Future[Outcome]] = OrderedDict()
        self._repairs: dict[Unit, Future[None]] = {}
        #: Order and moment of issue of what was last ordered for each unit.
        self._orders: dict[Unit, tuple[int, int]] = {}
        # When something was last done to a unit, counted over all units.
        self._moment = 0
        self._changed_at: dict[Unit, int] = {}

    def prepare(self, task: HandleTask, image: ImageOrder | None = None) -> Outcome:
        """Make a handle ready for its guest, with this image in its deployable.

        Raises what ``program`` raises.
        """
        driver = self._driver(task.driver)

        def call() -> Outcome:
            loaded = None
            if image is not None:
                # Before the download, too: a bind that was called off needs no image.
                self._check_turn(task, "prepare")
                loaded = self._load_for(driver, task, image)
            if image is None or image.prepare:
                self._in_turn(task, "prepare", lambda: driver.prepare(task))
            return Outcome(task.operation, image=loaded)

        return self._run(task, "prepare", call)

    def release(self, task: HandleTask) -> Outcome:
        """Take a handle back from its guest, and clean up."""
        driver = self._driver(task.driver)

        def call() -> Outcome:
            self._in_turn(task, "release", lambda: driver.release(task))
            return Outcome(task.operation)

        return self._run(task, "release", call)

    def program(self, task: ProgramTask) -> Outcome:
        """Fetch an image with the service's own credentials and load it.

        Raises Unavailable while Glance cannot be asked, or the image finds no room on the disk:
        ask again later.
        """
        driver = self._driver(task.driver)

        def call() -> Outcome:
            self._program(driver, task)
            return Outcome(task.operation)

        return self._run(task, "program", call)

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
                self._repairs[task.unit] = self._executor.submit(
                    (task.driver, task.device_key), lambda: self._repair(verb, task, since, call)
                )

    def stop(self) -> None:
        """Finish what is in hand."""
        self._executor.stop()

    def _driver(self, name: str) -> Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise exception.Unavailable(peer=f"driver {name}", reason="it is not loaded here")
        return driver

    def _run(self, task: Task, verb: str, call: Callable[[], Outcome]) -> Outcome:
        with self._lock:
            future = self._running.get(task.operation)
            if future is None:
                future = self._executor.submit((task.driver, task.device_key), call)
                self._running[task.operation] = future
                while len(self._running) > self._remembered:
                    self._running.popitem(last=False)
        try:
            return future.result(self._patience)
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

    def _in_turn(self, task: HandleTask | ProgramTask, verb: str, call: Callable[[], None]) -> None:
        """Call the driver, unless something later has been done to the unit already."""
        self._check_turn(task, verb)
        self._orders[task.unit] = task.order, task.issued_ms
        self._mark(task.unit)
        try:
            self._touch(task, verb, call)
        finally:
            # Who looks in between sees something that is neither before nor after it.
            self._mark(task.unit)
        LOG.info("%s of %s is done", verb, task.deployable)

    def _check_turn(self, task: HandleTask | ProgramTask, verb: str) -> None:
        """Raise Conflict when something later has been done to the unit.

        A request may be on its way for long, and nothing would undo it. A lower order that was
        issued later is no such request: the database was restored.
        """
        order, issued = self._orders.get(task.unit, (0, 0))
        restored = 0 < issued < task.issued_ms
        if task.order < order and not restored:
            raise exception.Conflict(reason=f"a later order than this {verb} has been carried out")

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
            self._driver_calls(task.driver, verb, call)
        except exception.CyborgError as error:
            self._journal.end(task.operation, str(error))
            raise
        self._journal.end(task.operation)

    def _forget(self, operation: str) -> None:
        """A failed operation may be tried again under its own id."""
        with self._lock:
            self._running.pop(operation, None)

    def _install(self, driver: Driver, task: InstallTask) -> Outcome:
        try:
            self._touch(task, "install", lambda: driver.install(task.device_key, task.operation))
            note = set_up(driver, task.device_key, self._driver_calls)
            # Before the conductor enables the device: a faulty one must not be offered meanwhile.
            health = self._health(task.driver, task.device_key)
            return Outcome(task.operation, note=note, health=health)
        finally:
            self._look_again()

    def _load_for(self, driver: Driver, task: HandleTask, image: ImageOrder) -> str:
        """Have the image that a bind asks for in its deployable; return the image's UUID."""
        uuid = image.bitstream_id
        if uuid is None:
            uuid = self._glance().with_function(image.function_id or "")
        if uuid == image.loaded:
            return uuid
        if not image.alone:
            raise exception.Conflict(
                reason=f"{task.deployable} is in use with image {image.loaded or 'unknown'}, and "
                f"image {uuid} is asked for"
            )
        order = ProgramTask(
            operation=task.operation,
            driver=task.driver,
            device_key=task.device_key,
            deployable=task.deployable,
            image_uuid=uuid,
            agent_epoch=task.agent_epoch,
            order=task.order,
            issued_ms=task.issued_ms,
        )
        self._program(driver, order)
        return uuid

    def _program(self, driver: Driver, task: ProgramTask) -> None:
        """Load an image from a file that nobody else can read and that is gone afterwards."""
        try:
            self._images.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._images) as place:
                path = Path(place, "image")
                self._glance().download(task.image_uuid, path)
                self._in_turn(task, "program", lambda: driver.program(task, str(path)))
        except OSError as error:
            raise exception.Unavailable(peer=str(self._images), reason=str(error)) from error

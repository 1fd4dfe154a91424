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
from typing import Final

from cyborg import exception
from cyborg.agent.driver_manager import UNCOUNTED, DriverCalls
from cyborg.agent.serial_executor import KeyedSerialExecutor
from cyborg.agent.state_store import OperationJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
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

LOG = logging.getLogger(__name__)

#: How many devices may be worked on at a time.
_THREADS: Final = 32

Task = HandleTask | InstallTask | ProgramTask


def _no_health(_driver: str, _key: str) -> DeviceHealth | None:
    """Return no health: the drivers are not polled for it."""
    return None


class Operations:
    """Run tasks, those of one device in order and one at a time.

    ``timeout`` is how long, in seconds, a call waits for the end of its task. ``images`` is the
    directory for images on their way into a device: it belongs to this agent alone, and images that
    an earlier agent process left there are removed. ``request_scan`` is called when the hardware of
    the host may have changed. ``health`` returns the health of a device that was just set up, by
    driver and key, if known. ``max_operations`` is how many operations are remembered by id; the
    conductor repeats a request within seconds.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        journal: OperationJournal,
        glance: Callable[[], Glance],
        images: Path,
        timeout: float,
        request_scan: Callable[[], None],
        max_operations: int = 1000,
        driver_calls: DriverCalls = UNCOUNTED,
        health: Callable[[str, str], DeviceHealth | None] = _no_health,
    ) -> None:
        self._drivers = drivers
        self._journal = journal
        self._glance = glance
        self._images = images
        shutil.rmtree(images, ignore_errors=True)
        self._timeout = timeout
        self._request_scan = request_scan
        self._max_operations = max_operations
        self._driver_calls = driver_calls
        self._health = health
        self._executor = KeyedSerialExecutor(_THREADS)
        self._lock = threading.Lock()
        self._operations: OrderedDict[str, Future[Outcome]] = OrderedDict()
        self._repairs: dict[Unit, Future[None]] = {}
        #: Order and time of issue (ms) of the last task of each unit.
        self._orders: dict[Unit, tuple[int, int]] = {}
        #: How many times a unit has changed in this process; see ``repair``.
        self.change_count = 0
        #: The change count after the last change of each unit.
        self._changed_at: dict[Unit, int] = {}

    def prepare(self, task: HandleTask, image_order: ImageOrder | None = None) -> Outcome:
        """Load the image into the deployable, if any, and make a handle ready for its guest.

        Raises what ``program`` raises.
        """
        driver = self._driver(task.driver)

        def run() -> Outcome:
            image_uuid = None
            if image_order is not None:
                # Before the download: a bind that was cancelled needs no image.
                self._check_order(task, "prepare")
                image_uuid = self._load_image(driver, task, image_order)
            if image_order is None or image_order.prepare:
                self._call_in_order(task, "prepare", lambda: driver.prepare(task))
            return Outcome(task.request_key, image=image_uuid)

        return self._run(task, "prepare", run)

    def release(self, task: HandleTask) -> Outcome:
        """Take a handle back from its guest, and clean up."""
        driver = self._driver(task.driver)

        def run() -> Outcome:
            self._call_in_order(task, "release", lambda: driver.release(task))
            return Outcome(task.request_key)

        return self._run(task, "release", run)

    def program(self, task: ProgramTask) -> Outcome:
        """Download an image with the service's own credentials and load it into a deployable.

        Raises Unavailable if Glance is not available, or the disk has no space for the image. The
        caller tries again later.
        """
        driver = self._driver(task.driver)

        def run() -> Outcome:
            self._program(driver, task)
            return Outcome(task.request_key)

        return self._run(task, "program", run)

    def install(self, task: InstallTask) -> Outcome:
        """Set a device up; it succeeds only if the driver lists the device as ready afterwards."""
        driver = self._driver(task.driver)

        def run() -> Outcome:
            try:
                self._call_driver(
                    task, "install", lambda: driver.install(task.device_key, task.request_key)
                )
                note = self._check_set_up(driver, task.device_key)
                # Read it before the conductor enables the device, so that a faulty device is not
                # offered until the next poll.
                health = self._health(task.driver, task.device_key)
                return Outcome(task.request_key, note=note, health=health)
            finally:
                self._request_scan()

        return self._run(task, "install", run)

    def repair(self, verb: WorkKind, task: HandleTask, *, since: int) -> None:
        """Start to prepare or release a unit that is not in its required state; return at once.

        ``since`` is the change count before the unit's state was read. The repair is skipped if the
        unit has changed after that. Later requests of the conductor for the device run after it.
        """
        driver = self._driver(task.driver)
        call = driver.prepare if verb is WorkKind.PREPARE else driver.release
        with self._lock:
            previous = self._repairs.get(task.unit)
            if previous is None or previous.done():
                self._repairs[task.unit] = self._executor.submit(
                    (task.driver, task.device_key), lambda: self._repair(verb, task, since, call)
                )

    def stop(self) -> None:
        """Wait for the tasks that are running; the others are never started."""
        self._executor.stop()

    def _driver(self, name: str) -> Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise exception.Unavailable(peer=f"driver {name}", reason="it is not loaded here")
        return driver

    def _run(self, task: Task, verb: str, call: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a task; ``done`` is False if it has not ended in time."""
        with self._lock:
            future = self._operations.get(task.request_key)
            if future is None:
                future = self._executor.submit((task.driver, task.device_key), call)
                self._operations[task.request_key] = future
                while len(self._operations) > self._max_operations:
                    self._operations.popitem(last=False)
        try:
            return future.result(self._timeout)
        except FutureTimeout:
            return Outcome(task.request_key, done=False)
        except exception.CyborgError as error:
            # The conductor may try the operation again under the same id.
            with self._lock:
                self._operations.pop(task.request_key, None)
            if isinstance(error, exception.Unavailable):
                raise
            target = task.device_key if isinstance(task, InstallTask) else task.deployable
            LOG.warning(
                "%s of %s failed (request key %s): %s", verb, target, task.request_key, error
            )
            return Outcome(task.request_key, fault=str(error))

    def _call_in_order(
        self, task: HandleTask | ProgramTask, verb: str, call: Callable[[], None]
    ) -> None:
        """Call the driver; raise Conflict if a later task of the unit was run already."""
        self._check_order(task, verb)
        self._orders[task.unit] = task.order, task.issued_ms
        try:
            self._call_driver(task, verb, call)
        finally:
            # A comparison that read the unit before or during the call did not see its new state.
            self._count_change(task.unit)
        LOG.info("%s of %s completed (request key %s)", verb, task.deployable, task.request_key)

    def _check_order(self, task: HandleTask | ProgramTask, verb: str) -> None:
        """Raise Conflict if a later task of the unit was run already.

        The bus may deliver a request late, and nothing would revert it. A lower order with a later
        time of issue is not late: the database was restored from a backup.
        """
        order, issued = self._orders.get(task.unit, (0, 0))
        restored = 0 < issued < task.issued_ms
        if task.order < order and not restored:
            raise exception.Conflict(reason=f"a later order than this {verb} has been carried out")

    def _count_change(self, unit: Unit) -> None:
        with self._lock:
            self.change_count += 1
            self._changed_at[unit] = self.change_count

    def _repair(
        self, verb: WorkKind, task: HandleTask, since: int, call: Callable[[HandleTask], None]
    ) -> None:
        if self._changed_at.get(task.unit, 0) > since:
            LOG.info(
                "Repair (%s) of handle %s of deployable %s skipped: the handle has changed since "
                "it was compared",
                verb.value,
                task.handle_key,
                task.deployable,
            )
            return
        required = "a guest has it" if verb is WorkKind.PREPARE else "no guest has it"
        try:
            self._call_driver(task, verb.value, lambda: call(task))
        except exception.CyborgError as error:
            result, reason, level = "failed", str(error), logging.WARNING
        else:
            result, reason, level = "completed", required, logging.INFO
        LOG.log(
            level,
            "Repair (%s) of handle %s of deployable %s %s: %s",
            verb.value,
            task.handle_key,
            task.deployable,
            result,
            reason,
        )
        self._count_change(task.unit)

    def _call_driver(self, task: Task, verb: str, call: Callable[[], None]) -> None:
        """Call the driver between the begin record and the end record of the journal."""
        self._journal.begin(verb, task)
        try:
            self._driver_calls(task.driver, verb, call)
        except exception.CyborgError as error:
            self._journal.end(task.request_key, str(error))
            raise
        self._journal.end(task.request_key)

    def _check_set_up(self, driver: Driver, device_key: str) -> str | None:
        """Return a note for the operator about a device that was set up, if there is any.

        Raises DriverFailed if the driver does not list the device, or lists it as not ready.
        """
        scan = Scan(driver.host, all_managed=True)
        hardware = self._driver_calls(driver.name, "hardware", lambda: driver.hardware(scan))
        entry = next((entry for entry in hardware if entry.key == device_key), None)
        if entry is None:
            reason = "the driver does not list the device any more"
        elif entry.setup_required:
            reason = entry.reason or "it still has to be set up"
            if entry.reboot_required:
                reason = f"the host has to be rebooted before it is ready ({reason})"
        elif entry.reboot_required:
            return "Its host has to be rebooted" + (f": {entry.reason}" if entry.reason else ".")
        else:
            return None
        raise exception.DriverFailed(driver=driver.name, verb="install", reason=reason)

    def _load_image(self, driver: Driver, task: HandleTask, image_order: ImageOrder) -> str:
        """Load the image of a bind into its deployable, if it is not there; return its UUID."""
        image_uuid = image_order.bitstream_id
        if image_uuid is None:
            image_uuid = self._glance().with_function(image_order.function_id or "")
        if image_uuid == image_order.loaded:
            return image_uuid
        if not image_order.exclusive:
            raise exception.Conflict(
                reason=f"{task.deployable} is in use with image {image_order.loaded or 'unknown'}, "
                f"and image {image_uuid} is requested"
            )
        program_task = ProgramTask(
            request_key=task.request_key,
            driver=task.driver,
            device_key=task.device_key,
            deployable=task.deployable,
            image_uuid=image_uuid,
            agent_epoch=task.agent_epoch,
            order=task.order,
            issued_ms=task.issued_ms,
        )
        self._program(driver, program_task)
        return image_uuid

    def _program(self, driver: Driver, task: ProgramTask) -> None:
        """Load an image from a temporary file that no other user can read."""
        try:
            self._images.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._images) as directory:
                path = Path(directory, "image")
                self._glance().download(task.image_uuid, path)
                self._call_in_order(task, "program", lambda: driver.program(task, str(path)))
        except OSError as error:
            raise exception.Unavailable(peer=str(self._images), reason=str(error)) from error

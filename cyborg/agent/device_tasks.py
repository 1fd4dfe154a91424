# SPDX-License-Identifier: Apache-2.0
"""Tasks on hardware that the conductor requests from an agent."""

import contextlib
import functools
import logging
import shutil
import tempfile
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any, Final, TypeVar

from cyborg import exception
from cyborg.agent.lasting_settings import LastingSettings
from cyborg.agent.state_store import TaskJournal
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver, ImageFile, Progress, ResetLevel, clean_calls
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Call, Worker
from cyborg.model.cleaning import CleanedStep, CleanLevel, profile_level
from cyborg.model.health import DeviceHealth, legible
from cyborg.model.work import (
    HandleTask,
    ImageOrder,
    InstallTask,
    Outcome,
    PartitionTask,
    ProgramTask,
    Unit,
    WorkKind,
)

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: How many devices of a driver may be worked on at a time.
_DEVICES: Final = 32
#: How long ``stop`` waits for the tasks that are running, in seconds: less than the time after
#: which systemd kills the agent (TimeoutStopSec).
_STOP_TIMEOUT: Final = 150.0

Task = HandleTask | InstallTask | PartitionTask | ProgramTask


def _no_health(_driver: str, _key: str) -> DeviceHealth | None:
    """Return no health: the drivers are not polled for it."""
    return None


class DeviceTasks:
    """Run tasks, those of one device in order and one at a time.

    ``timeout`` is how long, in seconds, a call waits for the end of its task. ``images`` is the
    directory for images on their way into a device: it belongs to this agent alone, and images that
    an earlier agent process left there are removed. ``request_scan`` is called when the hardware of
    the host may have changed. ``health`` returns the health of a device that was just set up, by
    driver and key, if known. ``on_prepare`` gets driver, key and fault (None: none) of each prepare
    that depends on nothing but the device, ``on_reset`` driver and key of each device that a clean
    step has reset. ``settings`` are compared after each guest, None: nothing is.
    ``max_tasks`` is how many tasks are remembered by request key; the conductor repeats a request
    within seconds. A device that hangs delays no other device, and a driver that hangs no other
    driver.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        journal: TaskJournal,
        glance: Callable[[], Glance],
        images: Path,
        timeout: float,
        request_scan: Callable[[], None],
        worker: Worker,
        max_tasks: int = 1000,
        health: Callable[[str, str], DeviceHealth | None] = _no_health,
        on_prepare: Callable[[str, str, str | None], None] = lambda driver, key, fault: None,
        on_reset: Callable[[str, str], None] = lambda driver, key: None,
        settings: LastingSettings | None = None,
    ) -> None:
        self._drivers = drivers
        self._journal = journal
        self._glance = glance
        self._images = images
        shutil.rmtree(images, ignore_errors=True)
        self._timeout = timeout
        self._request_scan = request_scan
        self._worker = worker
        self._max_tasks = max_tasks
        self._health = health
        self._on_prepare = on_prepare
        self._on_reset = on_reset
        self._settings = settings
        self._lock = threading.Lock()
        #: The places of a driver for the devices that are worked on at a time.
        self._places = defaultdict[str, threading.Semaphore](lambda: threading.Semaphore(_DEVICES))
        #: The calls of this object that have not ended.
        self._calls: set[Call[Any]] = set()
        #: The calls of the tasks that the conductor may ask for again, by request key.
        self._requested: OrderedDict[str, Call[Outcome]] = OrderedDict()
        #: How far each running task is; empty if its driver has not told.
        self._progress: dict[str, str] = {}
        #: Done when this process stops.
        self._stopping: Future[None] = Future()
        #: The units of repairs that could not release them, or whose clean steps have failed.
        self._unclean: set[Unit] = set()
        self._repairs: dict[Unit, Call[None]] = {}
        #: Order and time of issue (ms) of the last task of each unit.
        self._orders: dict[Unit, tuple[int, int]] = {}
        #: How many times a unit has changed in this process; see ``repair``.
        self.change_count = 0
        #: The change count after the last change of each unit.
        self._changed_at: dict[Unit, int] = {}

    def prepare(self, task: HandleTask, image_order: ImageOrder | None = None) -> Outcome:
        """Load the image into the deployable, if any, and make a handle ready for its guest.

        A unit that a repair could not clean is released and cleaned first. Raises what ``program``
        raises.
        """
        driver = self._driver(task.driver)

        def run() -> Outcome:
            progress = self._progress_of(task)
            # Before the download: a bind that was cancelled needs no image.
            self._check_order(task, "prepare")
            if task.unit in self._unclean:
                self._call_driver(task, "release", lambda: driver.release(task, progress=progress))
                self._clean(driver, task)
            if image_order is None:
                self._call_in_order(
                    "prepare", lambda: driver.prepare(task, progress=progress), task
                )
                return Outcome(task.request_key)
            image_uuid = self._image_to_load(task, image_order)
            loading = task.program_task(image_uuid)
            if image_uuid != image_order.loaded:
                with self._downloaded(image_uuid) as image:
                    if image_order.prepare:
                        self._call_in_order(
                            "prepare",
                            lambda: driver.prepare(task, image, progress=progress),
                            *(task, loading),
                        )
                    else:
                        self._program(driver, loading, image)
            elif image_order.prepare:
                self._call_in_order(
                    "prepare", lambda: driver.prepare(task, progress=progress), task
                )
            return Outcome(task.request_key, image=image_uuid)

        return self._run(task, "prepare", run)

    def release(self, task: HandleTask) -> Outcome:
        """Take a handle back from its guest, and run the driver's clean steps.

        A unit whose guest has changed it for good, such as its firmware, is not released.
        """
        driver = self._driver(task.driver)

        def run() -> Outcome:
            progress = self._progress_of(task)
            self._call_in_order("release", lambda: driver.release(task, progress=progress), task)
            # An erasure may take hours: what can be told before it is told before it.
            self._check_settings(driver, task, complete=False)
            cleaned = self._clean(driver, task)
            # A reset can bring what the guest has written into use.
            self._check_settings(driver, task, complete=True)
            return Outcome(task.request_key, cleaned=cleaned)

        return self._run(task, "release", run)

    def program(self, task: ProgramTask) -> Outcome:
        """Download an image with the service's own credentials and load it into a deployable.

        Raises Unavailable if Glance is not available, or the disk has no space for the image. The
        caller tries again later.
        """
        driver = self._driver(task.driver)

        def run() -> Outcome:
            with self._downloaded(task.image_uuid) as image:
                self._program(driver, task, image)
            return Outcome(task.request_key)

        return self._run(task, "program", run)

    def install(self, task: InstallTask) -> Outcome:
        """Set a device up; it succeeds only if the driver lists the device as ready afterwards."""
        driver = self._driver(task.driver)

        def run() -> Outcome:
            key, progress = task.device_key, self._progress_of(task)
            try:
                self._call_driver(
                    task,
                    "install",
                    lambda: driver.install(key, task.request_key, progress=progress),
                )
                note = self._check_set_up(driver, task.device_key)
                # Read it before the conductor enables the device, so that a faulty device is not
                # offered until the next poll.
                health = self._health(task.driver, task.device_key)
                return Outcome(task.request_key, note=note, health=health)
            finally:
                self._request_scan()

        return self._run(task, "install", run)

    def partition(self, task: PartitionTask) -> Call[None]:
        """Start to divide a card, and return the call, which has the driver's error."""
        driver = self._driver(task.driver)

        def note(done: float, step: str) -> None:
            LOG.debug(
                "Card %s: %.0f %% (%s)", task.device_key, 100 * done, legible(step) or "no step"
            )

        def run() -> None:
            key, layout = task.device_key, task.layout
            try:
                self._call_driver(
                    task, "partition", lambda: driver.partition(key, layout, progress=note)
                )
            finally:
                self._request_scan()

        with self._lock:
            return self._submit("partition", task, run)

    def repair(self, verb: WorkKind, task: HandleTask, *, since: int) -> None:
        """Start to prepare or release a unit that is not in its required state; return at once.

        ``since`` is the change count before the unit's state was read. The repair is skipped if the
        unit has changed after that. Later requests of the conductor for the device run after it.
        """
        driver = self._driver(task.driver)
        with self._lock:
            previous = self._repairs.get(task.unit)
            if previous is None or previous.done():
                self._repairs[task.unit] = self._submit(
                    "repair", task, lambda: self._repair(verb, task, since, driver)
                )

    def stop(self) -> None:
        """Wait for the tasks that are running, for a limited time; the others are never started.

        A clean step that is interruptible is abandoned, and no further one begins. A task that has
        not ended is open in the journal: the next process repeats or reverts it.
        """
        with self._lock:
            if not self._stopping.done():
                self._stopping.set_result(None)
            calls = list(self._calls)
        self._worker.wait(calls, _STOP_TIMEOUT)
        for call in calls:
            if not call.done():
                LOG.warning("The agent stops during %s, which has not ended", call.name)

    def _driver(self, name: str) -> Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise exception.Unavailable(peer=f"driver {name}", reason="it is not loaded here")
        return driver

    def _run(self, task: Task, verb: str, call: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a task; ``done`` is False if it has not ended in time."""

        def run() -> Outcome:
            with self._lock:
                self._progress[task.request_key] = ""
            try:
                return call()
            finally:
                with self._lock:
                    self._progress.pop(task.request_key, None)

        with self._lock:
            requested = self._requested.get(task.request_key)
            if requested is None:
                requested = self._requested[task.request_key] = self._submit(verb, task, run)
                while len(self._requested) > self._max_tasks:
                    self._requested.popitem(last=False)
        self._worker.wait([requested], self._timeout)
        if not requested.done():
            progress = self._progress.get(task.request_key) or None
            return Outcome(task.request_key, done=False, progress=progress)
        try:
            return requested.result()
        except exception.CyborgError as error:
            # The conductor may try the task again under the same request key.
            with self._lock:
                self._requested.pop(task.request_key, None)
            if isinstance(error, exception.Unavailable):
                raise
            target = (
                task.deployable if isinstance(task, HandleTask | ProgramTask) else task.device_key
            )
            LOG.warning(
                "%s of %s failed (request key %s): %s", verb, target, task.request_key, error
            )
            return Outcome(task.request_key, fault=str(error))

    def _submit(self, verb: str, task: Task, function: Callable[[], T]) -> Call[T]:
        """Return a call that runs after the earlier ones of its device; the caller has the lock.

        The call of a task that has not begun when the agent stops raises Unavailable.
        """

        places = self._places[task.driver]

        def run() -> T:
            with places:
                if self._stopping.done():
                    raise exception.Unavailable(peer="The agent", reason="it stops")
                return function()

        name = f"{verb} of {task.device_key}"
        call = self._worker.submit((task.driver, task.device_key), name, run)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def _progress_of(self, task: Task, prefix: str = "") -> Progress:
        """Return a function that notes how far a task is, while it runs."""

        def note(done: float, step: str) -> None:
            # In this order, what is not a number becomes 0.
            share = min(max(0.0, done), 1.0)
            progress = legible(f"{prefix}{share:.0%}: {step}") or ""
            with self._lock:
                if task.request_key in self._progress:
                    self._progress[task.request_key] = progress

        return note

    def _call_in_order(
        self,
        verb: str,
        call: Callable[[], None],
        task: HandleTask | ProgramTask,
        *others: ProgramTask,
    ) -> None:
        """Call the driver once for the task and the others, which it carries out, too.

        Raises Conflict if a later task of one of their units was run already.
        """
        tasks = (task, *others)
        for unit_task in tasks:
            self._check_order(unit_task, verb)
        for unit_task in tasks:
            self._orders[unit_task.unit] = unit_task.order, unit_task.issued_ms
        # A prepare with an image may also fail because of the image, which a user has chosen.
        counts = verb == "prepare" and not others and isinstance(task, HandleTask)
        try:
            self._call_driver(task, verb, call)
        except exception.DriverFailed as error:
            if counts:
                self._on_prepare(task.driver, task.device_key, str(error))
            raise
        else:
            if counts:
                self._on_prepare(task.driver, task.device_key, None)
        finally:
            # A comparison that read a unit before or during the call did not see its new state.
            for unit_task in tasks:
                self._count_change(unit_task.unit)
            self._request_scan()
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

    def _repair(self, verb: WorkKind, task: HandleTask, since: int, driver: Driver) -> None:
        if self._changed_at.get(task.unit, 0) > since:
            LOG.info(
                "Repair (%s) of handle %s of deployable %s skipped: the handle has changed since "
                "it was compared",
                verb.value,
                task.handle_key,
                task.deployable,
            )
            return
        prepare = verb is WorkKind.PREPARE
        required = "a guest has it" if prepare else "no guest has it"
        if not prepare:
            # The conductor may give the unit out without another release.
            self._unclean.add(task.unit)
        try:
            self._call_driver(
                *(task, verb.value),
                lambda: driver.prepare(task) if prepare else driver.release(task),
            )
            if not prepare:
                self._clean(driver, task)
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
        self._request_scan()

    def _call_driver(self, task: Task, verb: str, call: Callable[[], None]) -> None:
        """Call the driver between the begin record and the end record of the journal.

        While a clean step of the device runs longer than its limit, nothing else is done to it. The
        error is DriverFailed for a release: the conductor counts the failures of a release, so that
        Placement does not offer the unit for ever. Otherwise it is Unavailable, to try again.
        """
        step = self._worker.running(_step_key(task))
        if step is not None:
            reason = f"{step.name} has not ended yet"
            if verb == WorkKind.RELEASE:
                raise exception.DriverFailed(driver=task.driver, verb=verb, reason=reason)
            raise exception.Unavailable(peer=f"Device {task.device_key}", reason=reason)
        self._journal.begin(verb, task)
        try:
            self._worker.call_driver(task.driver, verb, call)
        except exception.CyborgError as error:
            self._journal.end(task.request_key, str(error))
            raise
        self._journal.end(task.request_key)

    def _clean(self, driver: Driver, task: HandleTask) -> tuple[CleanedStep, ...]:
        """Run the clean steps of a unit that was released, those of a higher priority first.

        The conductor decides about the level. Without its word, which it gives only for the release
        of a guest, no step erases data. Raises DriverFailed for the first step that fails, and if
        nothing can be cleaned although it must be; Unavailable if the agent stops. The release,
        with all its steps, is then repeated.
        """
        requested = profile_level(task.spec)
        level = requested or CleanLevel.RESET
        cleaned: list[CleanedStep] = []
        if level is CleanLevel.NONE:
            self._unclean.discard(task.unit)
            return ()
        steps = self._worker.call_driver(
            driver.name, "clean_steps", lambda: clean_calls(driver, task)
        )
        if requested is not None and not steps:
            raise exception.DriverFailed(
                driver=driver.name,
                verb="clean",
                reason="no safe way is known to remove the data of the last guest; clean the "
                "device yourself, then free the unit with cyborg accelerator-update --free-unit",
            )
        for step, clean in steps:
            if not level.includes(step.level):
                continue
            begun = time.monotonic()
            verb = f"clean step {step.name}"
            if self._stopping.done():
                raise exception.Unavailable(peer="The agent", reason=f"it stops before {verb}")
            self._journal.begin(verb, task)
            run = functools.partial(clean, self._progress_of(task, f"{step.name}, "))
            call = self._worker.submit(
                _step_key(task), verb, functools.partial(self._step, task, run)
            )
            awaited = {call, self._stopping} if step.interruptible else {call}
            wait_for(awaited, step.timeout, FIRST_COMPLETED)
            if not call.done() and self._stopping.done():
                # Its row in the journal stays open: the next process begins the release again.
                raise exception.Unavailable(peer="The agent", reason=f"it stops during {verb}")
            try:
                if not call.done():
                    reason = f"it did not end within {step.timeout:g} s"
                    raise exception.DriverFailed(driver=driver.name, verb=verb, reason=reason)
                call.result()
            except exception.CyborgError as error:
                self._journal.end(task.request_key, str(error))
                raise
            self._journal.end(task.request_key)
            reset = task.device_key if isinstance(step.work, ResetLevel) else step.resets
            if reset is not None:
                self._on_reset(task.driver, reset)
            LOG.info(
                "Clean step %s of handle %s of deployable %s completed (request key %s)",
                *(step.name, task.handle_key, task.deployable, task.request_key),
            )
            cleaned.append(CleanedStep(step.name, round(1000 * (time.monotonic() - begun))))
        self._unclean.discard(task.unit)
        return tuple(cleaned)

    def _check_settings(self, driver: Driver, task: HandleTask, *, complete: bool) -> None:
        if self._settings is not None:
            self._settings.check(driver, task, complete=complete)

    def _step(self, task: HandleTask, run: Callable[[], None]) -> None:
        try:
            self._worker.call_driver(task.driver, "clean_steps", run)
        finally:
            self._request_scan()

    def _check_set_up(self, driver: Driver, device_key: str) -> str | None:
        """Return a note for the operator about a device that was set up, if there is any.

        Raises DriverFailed if the driver does not list the device, or lists it as not ready.
        """
        scan = Scan(driver.host, all_managed=True)
        hardware = self._worker.call_driver(driver.name, "hardware", lambda: driver.hardware(scan))
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

    def _image_to_load(self, task: HandleTask, image_order: ImageOrder) -> str:
        """Return the UUID of the image that a bind needs in its deployable.

        Raises Conflict if it is not the loaded one, and others use the deployable.
        """
        image_uuid = image_order.bitstream_id
        if image_uuid is None:
            image_uuid = self._glance().with_function(image_order.function_id or "")
        if image_uuid != image_order.loaded and not image_order.exclusive:
            raise exception.Conflict(
                reason=f"{task.deployable} is in use with image {image_order.loaded or 'unknown'}, "
                f"and image {image_uuid} is requested"
            )
        return image_uuid

    def _program(self, driver: Driver, task: ProgramTask, image: ImageFile) -> None:
        progress = self._progress_of(task)
        self._call_in_order(
            "program", lambda: driver.program(task, image.path, progress=progress), task
        )

    @contextlib.contextmanager
    def _downloaded(self, image_uuid: str) -> Iterator[ImageFile]:
        """Yield an image as a temporary file that no other user can read."""
        try:
            self._images.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._images) as directory:
                path = Path(directory, "image")
                self._glance().download(image_uuid, path)
                yield ImageFile(image_uuid, str(path))
        except OSError as error:
            raise exception.Unavailable(peer=str(self._images), reason=str(error)) from error


def _step_key(task: Task) -> tuple[str, str, str]:
    """Return the key of the clean steps of a device; one may run longer than its limit."""
    return "clean", task.driver, task.device_key

# SPDX-License-Identifier: Apache-2.0
"""Operations on hardware: each runs once per operation id, one at a time per device.

An operation that takes long goes on in its thread while the conductor asks again with the same id;
what ended is remembered for a while, so that a lost answer is simply given again.
"""

import logging
import tempfile
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from cyborg import exception
from cyborg.agent.guard import guarded
from cyborg.clients.glance import Glance
from cyborg.drivers.base import Driver
from cyborg.model.work import HandleTask, Outcome, ProgramTask

LOG = logging.getLogger(__name__)

#: How many ended operations are remembered; a conductor asks again within seconds.
_REMEMBERED = 1000


class Operations:
    """Runs tasks.

    ``patience`` is how long, in seconds, one question waits for the end of a task; ``images`` is
    the directory for images on their way into a device.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        glance: Callable[[], Glance],
        images: Path,
        patience: float,
        threads: int = 8,
    ) -> None:
        self._drivers = drivers
        self._glance = glance
        self._images = images
        self._patience = patience
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="operation")
        self._lock = threading.Lock()
        self._running: OrderedDict[str, Future[None]] = OrderedDict()
        self._devices: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._orders: dict[str, int] = {}

    def prepare(self, task: HandleTask) -> Outcome:
        """Make a handle ready for its guest."""
        driver = self._driver(task.driver)
        return self._run(task, "prepare", lambda: self._in_turn(task, "prepare", driver.prepare))

    def release(self, task: HandleTask) -> Outcome:
        """Take a handle back from its guest, and clean up."""
        driver = self._driver(task.driver)
        return self._run(task, "release", lambda: self._in_turn(task, "release", driver.release))

    def program(self, task: ProgramTask) -> Outcome:
        """Fetch an image with the service's own credentials and load it.

        Raises Unavailable while Glance cannot be asked: ask again later.
        """
        driver = self._driver(task.driver)
        return self._run(task, "program", lambda: self._program(driver, task))

    def stop(self) -> None:
        """Finish what is in hand."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _driver(self, name: str) -> Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise exception.Unavailable(peer=f"driver {name}", reason="it is not loaded here")
        return driver

    def _run(self, task: HandleTask | ProgramTask, verb: str, call: Callable[[], None]) -> Outcome:
        def alone() -> None:
            with device:
                call()

        with self._lock:
            device = self._devices[task.driver, task.device_key]
            future = self._running.get(task.operation)
            if future is None:
                future = self._running[task.operation] = self._pool.submit(alone)
                while len(self._running) > _REMEMBERED:
                    self._running.popitem(last=False)
        try:
            future.result(self._patience)
        except FutureTimeout:
            return Outcome(task.operation, done=False)
        except exception.Unavailable:
            self._forget(task.operation)
            raise
        except exception.CyborgError as error:
            LOG.warning("%s of %s failed: %s", verb, task.deployable, error)
            self._forget(task.operation)
            return Outcome(task.operation, fault=str(error))
        return Outcome(task.operation)

    def _in_turn(self, task: HandleTask, verb: str, call: Callable[[HandleTask], None]) -> None:
        """Call the driver, unless something later has been done to the handle already.

        A question may be on its way for long: what it asks for would be undone by nobody.
        """
        if task.order < self._orders.get(task.handle_uuid, 0):
            raise exception.Conflict(reason=f"a later order than this {verb} has been carried out")
        self._orders[task.handle_uuid] = task.order
        guarded(task.driver, verb, lambda: call(task))

    def _forget(self, operation: str) -> None:
        """A failed operation may be tried again under its own id."""
        with self._lock:
            self._running.pop(operation, None)

    def _program(self, driver: Driver, task: ProgramTask) -> None:
        with tempfile.NamedTemporaryFile(dir=self._images, suffix=".image") as image:
            self._glance().download(task.image_uuid, Path(image.name))
            guarded(task.driver, "program", lambda: driver.program(task, image.name))

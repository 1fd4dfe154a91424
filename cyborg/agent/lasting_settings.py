# SPDX-License-Identifier: Apache-2.0
"""What guests can change for good: recorded at first sight, compared after each guest.

The record is in the state file of the agent, and also in memory for a file that cannot be written.
"""

import json
import logging
import sqlite3
import threading
from collections.abc import Collection
from typing import Final, NamedTuple

from cyborg import exception
from cyborg.agent.state_store import StateStore
from cyborg.drivers.base import Driver
from cyborg.drivers.lasting_settings import changes
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Confidence, Device
from cyborg.model.work import HandleTask

LOG = logging.getLogger(__name__)

_PREFIX: Final = "Settings "


class _Place(NamedTuple):
    """A unit: driver, key of the device and key of the handle."""

    driver: str
    device: str
    handle: str


class _Record(NamedTuple):
    """The settings of a unit, and the number of the device that they belong to; empty: unknown."""

    number: str
    settings: dict[str, str]


_NOTHING: Final = _Record("", {})


class LastingSettings:
    """The settings of all units of a host; any thread may use it."""

    def __init__(self, store: StateStore, worker: Worker) -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        self._memory: dict[_Place, _Record] = {}

    def note(self, driver: Driver, devices: Collection[Device], scan: Scan) -> None:
        """Record the settings of the units of a driver's devices that were not seen before.

        A device with another number than the recorded one was exchanged, and is recorded again. A
        driver that fails is asked again in the next scan.
        """
        if not devices:
            return
        records, added = self._records(driver.name), dict[_Place, _Record]()
        for device in devices:
            number = _number(device)
            for handle in (handle for part in device.deployables for handle in part.handles):
                place = _Place(driver.name, device.key, handle.key)
                record = records.get(place, _NOTHING)
                if record.settings and (not number or record.number in ("", number)):
                    continue
                try:
                    settings = self._read(driver, place, scan)
                except (exception.DriverFailed, exception.DriverCannot) as error:
                    LOG.debug("The settings of %s cannot be read: %s", place.handle, error)
                    continue
                if settings:
                    added[place] = _Record(number, settings)
        if added:
            self._write(added)

    def check(self, driver: Driver, task: HandleTask, *, complete: bool) -> None:
        """Compare the settings of a unit with the record; only read.

        With ``complete`` a recorded setting that cannot be read any more counts as changed. Raises
        DriverFailed, whose reason has both values and the remedy.
        """
        place = _Place(driver.name, task.device_key, task.handle_key)
        before = self._records(*place).get(place, _NOTHING).settings
        if not before:
            return
        now = self._read(driver, place, Scan(driver.host, all_managed=True))
        reasons = list(changes(before, now))
        if complete:
            reasons += [
                f"its {name} was {value} before the guest and cannot be read now"
                for name, value in sorted(before.items())
                if name not in now
            ]
        if reasons:
            accept = f"cyborg-agent --recovered {driver.name}/{task.device_key}"
            reasons.append(f"restore the device, or accept it as it is with {accept}")
            raise exception.DriverFailed(
                driver=driver.name, verb="release", reason="; ".join(reasons)
            )

    def forget(self, driver: str, device_key: str) -> bool:
        """Forget the settings of a device; return whether the file has no record of it now."""

        def delete(file: sqlite3.Connection) -> bool:
            file.execute("DELETE FROM cache WHERE name BETWEEN ? AND ?", _names(driver, device_key))
            return True

        return bool(self._store.run(delete))

    def _read(self, driver: Driver, place: _Place, scan: Scan) -> dict[str, str]:
        return self._worker.call_driver(
            driver.name,
            "settings",
            lambda: dict(driver.settings(scan, place.device, place.handle)),
        )

    def _records(self, *start: str) -> dict[_Place, _Record]:
        """Return the records of the units whose places begin so.

        They are those of the file, from which an operator may have removed some.
        """
        query, names = "SELECT name, value FROM cache WHERE name BETWEEN ? AND ?", _names(*start)
        rows = self._store.run(lambda file: file.execute(query, names).fetchall())
        with self._lock:
            if rows is None:
                return {
                    place: record
                    for place, record in self._memory.items()
                    if place[: len(start)] == start
                }
        records = {}
        for name, value in rows:
            try:
                place = _Place(*map(str, json.loads(name[len(_PREFIX) :])))
                number, settings = json.loads(value)
                texts = {str(key): str(settings[key]) for key in settings}
                records[place] = _Record(str(number), texts)
            except (ValueError, TypeError, KeyError) as error:
                LOG.warning("The record %s in %s is damaged: %s", name, self._store.path, error)
        return records

    def _write(self, records: dict[_Place, _Record]) -> None:
        with self._lock:
            self._memory |= records
        rows = [(_PREFIX + json.dumps(place), json.dumps(records[place])) for place in records]
        self._store.run(
            lambda file: file.executemany("INSERT OR REPLACE INTO cache VALUES (?, ?)", rows)
        )


def _names(*start: str) -> tuple[str, str]:
    """Return the first and the last name that a record of a place that begins so can have."""
    first = f"{_PREFIX}{json.dumps(start)[:-1]}"
    return first, f"{first}\U0010ffff"


def _number(device: Device) -> str:
    """Return the strongest number that moves with a device; empty without one."""
    numbers = (item for item in device.identity if item.confidence is not Confidence.PLACE)
    return next((f"{item.kind} {item.value}" for item in numbers), "")

# SPDX-License-Identifier: Apache-2.0
"""Compare the units that are prepared on the host with what the conductor requires; repair them."""

import functools
import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.state_store import TaskJournal
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.work import HandleTask, Unit, UnitUse, Use, WorkKind
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchUnitUses

LOG = logging.getLogger(__name__)


class PreparedUnitsSync:
    """Start repairs of units; units that the conductor has no record of are left alone.

    ``timeout`` is how long, in seconds, the drivers may take to list their units. A driver that has
    not answered is not called again before it does.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        tasks: DeviceTasks,
        journal: TaskJournal,
        conductor: ConductorClient,
        worker: Worker,
        timeout: float = 60.0,
    ) -> None:
        self._drivers = drivers
        self._tasks = tasks
        self._journal = journal
        self._conductor = conductor
        self._worker = worker
        self._timeout = timeout
        #: Prepared units without a record in the conductor that were logged already.
        self._logged: frozenset[Unit] = frozenset()

    def sync(self, host: str, epoch: int) -> None:
        """Compare all units of the host and start their repairs; do not wait for the repairs.

        Units on which the conductor has work in progress are left to that work. The conductor is
        not called if no driver can list its prepared units and no task was interrupted.
        """
        since = self._tasks.change_count
        prepared = self._prepared()
        if not prepared and not self._journal.has_interrupted:
            return
        interrupted = self._journal.interrupted_units
        unit_uses = self._conductor.request(FetchUnitUses(host, epoch))
        for name, driver in self._drivers.items():
            tasks = (unit_use.task for unit_use in unit_uses.units)
            driver.attach_handles = MappingProxyType(
                {task.handle_uuid: task.unit for task in tasks if task.driver == name}
            )
        for unit_use in unit_uses.units:
            task = unit_use.task
            verb = _repair(
                unit_use, prepared.get(task.driver), interrupted=task.unit in interrupted
            )
            if verb is not None and task.driver in self._drivers:
                self._tasks.repair(verb, task, since=since)
        self._journal.resolve_interrupted()
        recorded = {unit for unit_use in unit_uses.units for unit in _names(unit_use.task)}
        unrecorded = frozenset().union(*prepared.values()) - recorded
        for unit in sorted(unrecorded - self._logged):
            LOG.warning(
                "Handle %s of deployable %s is prepared, but the conductor has no record of it: it "
                "is left alone",
                unit.handle_key,
                unit.deployable,
            )
        self._logged = unrecorded

    def _prepared(self) -> dict[str, frozenset[Unit]]:
        """Return the prepared units by driver, of the drivers that list theirs in time."""
        calls = {}
        for name, driver in self._drivers.items():
            key = "prepared", name, id(driver)
            listing = functools.partial(self._list, name, driver)
            call, busy = self._worker.begin(key, f"prepared-{name}", listing)
            # The units may have changed since a call that still runs has read them.
            calls[name] = None if busy else call
        self._worker.wait(filter(None, calls.values()), self._timeout)
        prepared = {}
        for name, listed in calls.items():
            try:
                if listed is None or not listed.done():
                    reason = f"it has not answered within {self._timeout:g} seconds"
                    raise exception.DriverFailed(driver=name, verb="prepared", reason=reason)
                prepared[name] = listed.result()
            except exception.DriverCannot:
                continue
            except exception.DriverFailed as error:
                LOG.warning("Driver %s did not list its prepared units: %s", name, error)
        return prepared

    def _list(self, name: str, driver: Driver) -> frozenset[Unit]:
        # What a guest holds is ours, and is read again: units may just have been prepared.
        scan = Scan(driver.host, all_managed=True)
        return self._worker.call_driver(name, "prepared", lambda: _valid(driver.prepared(scan)))


def _valid(listed: Iterable[Unit]) -> frozenset[Unit]:
    """Return the units that a driver lists; raises TypeError if it lists anything else."""
    units = frozenset(listed)
    for unit in units:
        if not isinstance(unit, Unit):
            raise TypeError(f"{unit!r} is not a cyborg.model.work.Unit")
    return units


def _names(task: HandleTask) -> tuple[Unit, Unit]:
    """Return the names by which a driver can list the unit of a task, see ``Driver.prepared``."""
    return task.unit, Unit(task.deployable, task.handle_uuid)


def _repair(
    unit_use: UnitUse, prepared: frozenset[Unit] | None, *, interrupted: bool
) -> WorkKind | None:
    """Return the verb that brings a unit into its required state; None if it is in that state.

    ``prepared`` is None where the driver cannot list its units. How far an ``interrupted``
    task got is unknown. The verbs are idempotent, so the agent repeats the required one.
    """
    listed = None if prepared is None else not prepared.isdisjoint(_names(unit_use.task))
    if unit_use.use is Use.PREPARED:
        if interrupted or listed is False:
            return WorkKind.PREPARE
    elif unit_use.use is Use.FREE and (interrupted or listed):
        return WorkKind.RELEASE
    return None

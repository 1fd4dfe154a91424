# SPDX-License-Identifier: Apache-2.0
"""Compare the units that are prepared on the host with what the conductor requires; repair them."""

import functools
import logging
from collections.abc import Mapping

from cyborg import exception
from cyborg.agent.driver_manager import UNCOUNTED, DriverCalls
from cyborg.agent.operations import Operations
from cyborg.agent.state_store import OperationJournal
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.model.work import Unit, UnitUse, Use, WorkKind
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchUnitUses

LOG = logging.getLogger(__name__)


class PreparedUnitsSync:
    """Start repairs of units; units that the conductor has no record of are left alone."""

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        operations: Operations,
        journal: OperationJournal,
        conductor: ConductorClient,
        driver_calls: DriverCalls = UNCOUNTED,
    ) -> None:
        self._drivers = drivers
        self._operations = operations
        self._journal = journal
        self._conductor = conductor
        self._driver_calls = driver_calls
        #: Prepared units without a record in the conductor that were logged already.
        self._logged: frozenset[Unit] = frozenset()

    def sync(self, host: str, epoch: int) -> None:
        """Compare all units of the host and start their repairs; do not wait for the repairs.

        Units on which the conductor has work in progress are left to that work. The conductor is
        not called if no driver can list its prepared units and no operation was interrupted.
        """
        since = self._operations.change_count
        prepared = {}
        for name, driver in self._drivers.items():
            try:
                # What a guest holds is ours, and is read again: units may just have been prepared.
                call = functools.partial(driver.prepared, Scan(driver.host, all_managed=True))
                prepared[name] = frozenset(self._driver_calls(name, "prepared", call))
            except exception.DriverCannot:
                continue
            except exception.DriverFailed as error:
                LOG.warning("Driver %s did not list its prepared units: %s", name, error)
        if not prepared and not self._journal.has_interrupted:
            return
        interrupted = self._journal.interrupted_units
        unit_uses = self._conductor.request(FetchUnitUses(host, epoch))
        for unit_use in unit_uses.units:
            task = unit_use.task
            verb = _repair(
                unit_use, prepared.get(task.driver), interrupted=task.unit in interrupted
            )
            if verb is not None and task.driver in self._drivers:
                self._operations.repair(verb, task, since=since)
        self._journal.resolve_interrupted()
        recorded = {unit_use.task.unit for unit_use in unit_uses.units}
        unrecorded = frozenset().union(*prepared.values()) - recorded
        for unit in sorted(unrecorded - self._logged):
            LOG.warning(
                "Handle %s of deployable %s is prepared, but the conductor has no record of it: it "
                "is left alone",
                unit.handle_key,
                unit.deployable,
            )
        self._logged = unrecorded


def _repair(
    unit_use: UnitUse, prepared: frozenset[Unit] | None, *, interrupted: bool
) -> WorkKind | None:
    """Return the verb that brings a unit into its required state; None if it is in that state.

    ``prepared`` is None where the driver cannot list its units. How far an ``interrupted``
    operation got is unknown. The verbs are idempotent, so the agent repeats the required one.
    """
    unit = unit_use.task.unit
    if unit_use.use is Use.PREPARED:
        if interrupted or (prepared is not None and unit not in prepared):
            return WorkKind.PREPARE
    elif unit_use.use is Use.FREE and (interrupted or (prepared is not None and unit in prepared)):
        return WorkKind.RELEASE
    return None

# SPDX-License-Identifier: Apache-2.0
"""What the host has prepared against what guests have: made again, or taken back."""

import logging
from collections.abc import Mapping

from cyborg import exception
from cyborg.agent.driver_calls import DriverCalls, guarded
from cyborg.agent.operations import Operations
from cyborg.agent.state_store import OperationJournal
from cyborg.drivers.base import Driver
from cyborg.model.work import Holding, Unit, Use, WorkKind
from cyborg.rpc.conductor import ReportClient

LOG = logging.getLogger(__name__)


class PreparedUnitsSync:
    """Begins repairs; units that the conductor does not know are somebody else's."""

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        operations: Operations,
        journal: OperationJournal,
        conductor: ReportClient,
        driver_calls: DriverCalls = guarded,
    ) -> None:
        self._drivers = drivers
        self._operations = operations
        self._journal = journal
        self._conductor = conductor
        self._driver_calls = driver_calls
        self._strangers: frozenset[Unit] = frozenset()

    def tend(self, host: str, epoch: int) -> None:
        """Compare all units of the host, and begin what makes them right; waits for none of it.

        Units that the conductor's own work is about are left to that. Nothing is asked where no
        driver can tell what is prepared, unless an earlier agent ended in the middle of something.
        """
        since = self._operations.moment
        shown = self._shown()
        if not shown and not self._journal.unsettled:
            return
        suspects = self._journal.suspects
        holdings = self._conductor.holdings(host, epoch)
        for one in holdings.units:
            verb = _remedy(one, shown.get(one.task.driver), suspect=one.task.unit in suspects)
            if verb is not None and one.task.driver in self._drivers:
                self._operations.repair(verb, one.task, since=since)
        self._journal.settle()
        self._tell_strangers(shown, {one.task.unit for one in holdings.units})

    def _shown(self) -> dict[str, frozenset[Unit]]:
        """What is prepared, by driver; those that cannot tell are left out."""
        shown = {}
        for name, driver in self._drivers.items():
            try:
                shown[name] = frozenset(self._driver_calls(name, "prepared", driver.prepared))
            except exception.DriverCannot:
                continue
            except exception.DriverFailed as error:
                LOG.warning("What %s has prepared is not known: %s", name, error)
        return shown

    def _tell_strangers(self, shown: Mapping[str, frozenset[Unit]], known: set[Unit]) -> None:
        strangers = frozenset().union(*shown.values()) - known
        for one in sorted(strangers - self._strangers):
            LOG.warning(
                "%s of %s is prepared, but the conductor does not know it: it is left alone",
                one.handle_key,
                one.deployable,
            )
        self._strangers = strangers


def _remedy(holding: Holding, shown: frozenset[Unit] | None, *, suspect: bool) -> WorkKind | None:
    """What makes a unit as it should be.

    ``shown`` is None where the driver cannot tell. Of a ``suspect`` nobody knows how far it got:
    verbs are idempotent, so it is done once more.
    """
    unit = holding.task.unit
    if holding.use is Use.PREPARED and (suspect or (shown is not None and unit not in shown)):
        return WorkKind.PREPARE
    if holding.use is Use.FREE and (suspect or (shown is not None and unit in shown)):
        return WorkKind.RELEASE
    return None

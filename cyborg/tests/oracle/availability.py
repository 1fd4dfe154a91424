# SPDX-License-Identifier: Apache-2.0
"""Which units may be given out, and why the others are out of service, in plain Python.

``cyborg.db.units`` has the same rule in SQL.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cyborg.model import health
from cyborg.model.availability import UnitWord
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.process import HostStatus
from cyborg.model.report import DriverState


@dataclass(frozen=True)
class Standing:
    """The facts that decide whether units of a deployable may be given out.

    ``status`` is its device's, ``lost`` whether it or its device is not seen any more; ``driver``
    is the state of its driver, None while that has never been reported; ``host`` tells
    whether an operator has taken its whole host out of service. ``health`` is the device's, see
    ``cyborg.model.health``. ``unchecked``: an audit has still to compare it with
    Placement after a restore of the database. ``refused``: Placement refuses the provider.
    """

    status: str
    lost: bool
    driver: str | None
    host: str = HostStatus.ENABLED
    health: str | None = None
    refused: bool = False
    unchecked: bool = False

    @property
    def reason(self) -> str | None:
        """Return the first reason why no unit may be given out; None when there is none."""
        reasons = (
            (self.lost, UnitWord.LOST),
            (self.host == HostStatus.DRAINING, UnitWord.HOST_DRAINING),
            (self.host == HostStatus.DISABLED, UnitWord.HOST_DISABLED),
            (self.status != DeviceStatus.ENABLED, self.status),
            (not health.offered(self.health), UnitWord.UNHEALTHY),
            (self.driver not in (None, DriverState.READY), UnitWord.DRIVER_NOT_READY),
            (self.unchecked, UnitWord.UNCHECKED),
            (self.refused, UnitWord.PROVIDER_REFUSED),
        )
        return next((str(word) for applies, word in reasons if applies), None)


@dataclass(frozen=True)
class Unit:
    """The facts of an attach handle."""

    state: str
    lost: bool
    #: The pools of its device have no room for it; only free units are ever blocked.
    blocked: bool = False
    #: Its host removes the data of its last guest; only units that are released are ever cleaned.
    cleaning: bool = False
    #: An ARQ has it.
    used: bool = False


def word(standing: Standing, unit: Unit) -> str:
    """Return what a unit counts as: a value of ``UnitWord``, or the status of its device."""
    words = (
        (unit.used, UnitWord.USED),
        (unit.lost or standing.lost, UnitWord.LOST),
        (unit.state == HandleState.QUARANTINED, UnitWord.QUARANTINED),
        (unit.cleaning, UnitWord.CLEANING),
        (unit.state == HandleState.RELEASING, UnitWord.RELEASING),
        (standing.reason is not None, standing.reason),
        (unit.blocked, UnitWord.NO_ROOM),
    )
    return next((str(word) for applies, word in words if applies), UnitWord.FREE.value)


def claimable(standing: Standing, units: Iterable[Unit]) -> int:
    """Return how many units the next binds can use: free ones, and ones that are being released."""
    if standing.reason is not None:
        return 0
    words = (UnitWord.FREE, UnitWord.CLEANING, UnitWord.RELEASING)
    return sum(word(standing, unit) in words for unit in units)


def reserved(standing: Standing, units: Iterable[Unit]) -> int:
    """Return how many units of a deployable Placement must not allocate.

    These are all units if none may be given out, else those that are lost, quarantined, blocked or
    being cleaned.
    A refused provider is published as if it were not refused: that is how Placement accepts it in
    the end.
    """
    if standing.reason in (None, UnitWord.PROVIDER_REFUSED):
        return sum(
            unit.lost or unit.blocked or unit.cleaning or unit.state == HandleState.QUARANTINED
            for unit in units
        )
    return sum(1 for _ in units)

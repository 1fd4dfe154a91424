# SPDX-License-Identifier: Apache-2.0
"""The rule for how many units of a deployable Placement offers.

The conductor applies it to rows to compute the desired state, the audit to a snapshot to check it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cyborg.model import health
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState


@dataclass(frozen=True)
class Standing:
    """The facts that decide whether a deployable is offered.

    ``status`` is its device's, ``lost`` whether it or its device is not seen any more; ``driver``
    is the state of its driver, None while that has never been reported; ``disabled`` tells that an
    operator has taken its whole host out of service. ``health`` is the device's, see
    ``cyborg.model.health``.
    """

    status: str
    lost: bool
    driver: str | None
    disabled: bool = False
    health: str | None = None

    @property
    def offered(self) -> bool:
        """Return whether any unit may be offered."""
        driver = DriverState.READY if self.driver is None else self.driver
        works = not self.lost and driver == DriverState.READY and health.offered(self.health)
        return self.status == DeviceStatus.ENABLED and works and not self.disabled


@dataclass(frozen=True)
class Unit:
    """The facts of an attach handle that matter to Placement."""

    state: str
    lost: bool

    @property
    def is_reserved(self) -> bool:
        """Return whether this unit is reserved even if its deployable is offered."""
        return self.lost or self.state == HandleState.QUARANTINED


def reserved(standing: Standing, units: Iterable[Unit]) -> int:
    """Return how many units are reserved now.

    All of them if the deployable is not offered, else those lost or in quarantine.
    """
    all_units = list(units)
    return sum(unit.is_reserved for unit in all_units) if standing.offered else len(all_units)

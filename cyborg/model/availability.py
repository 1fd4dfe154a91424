# SPDX-License-Identifier: Apache-2.0
"""How much of a deployable Placement may give out: the one rule, for those who compute it.

The conductor applies it to rows to say what Placement shall show, the audit to a snapshot to say
what it should have shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cyborg.model import health
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState


@dataclass(frozen=True)
class Standing:
    """What decides whether a deployable is offered at all.

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
        """Whether any unit may be given out."""
        driver = DriverState.READY if self.driver is None else self.driver
        works = not self.lost and driver == DriverState.READY and health.offered(self.health)
        return self.status == DeviceStatus.ENABLED and works and not self.disabled


@dataclass(frozen=True)
class Unit:
    """An attach handle as far as Placement is concerned."""

    state: str
    lost: bool

    @property
    def withheld(self) -> bool:
        """Whether it is not to be given out, though others of its deployable may be."""
        return self.lost or self.state == HandleState.QUARANTINED


def reserved(standing: Standing, units: Iterable[Unit]) -> int:
    """How many units are not to be given out now.

    All of them when the deployable is not offered, else those lost or in quarantine.
    """
    all_units = list(units)
    return sum(unit.withheld for unit in all_units) if standing.offered else len(all_units)

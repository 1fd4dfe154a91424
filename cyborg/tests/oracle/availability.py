# SPDX-License-Identifier: Apache-2.0
"""What units count as, and which of them binds can use; ``cyborg.db.units`` says it in SQL."""

from collections.abc import Iterable
from dataclasses import dataclass

from cyborg.model.availability import Standing, Unit, UnitWord
from cyborg.model.device import HandleState


@dataclass(frozen=True)
class UsableUnit(Unit):
    """The facts of an attach handle; ``used``: an ARQ has it."""

    used: bool = False


def word(standing: Standing, unit: UsableUnit) -> str:
    """Return what a unit counts as: a value of ``UnitWord``, or the status of its device."""
    words = (
        (unit.used, UnitWord.USED),
        (unit.lost or standing.lost, UnitWord.LOST),
        (unit.state == HandleState.QUARANTINED, UnitWord.QUARANTINED),
        (unit.cleaning, UnitWord.CLEANING),
        (unit.state == HandleState.RELEASING, UnitWord.RELEASING),
        (standing.reason is not None, standing.reason),
        (unit.state == HandleState.HELD, UnitWord.LEAKED),
        (unit.blocked, UnitWord.NO_ROOM),
    )
    return next((str(word) for applies, word in words if applies), UnitWord.FREE.value)


def claimable(standing: Standing, units: Iterable[UsableUnit]) -> int:
    """Return how many units the next binds can use: free ones, and ones that are being released."""
    if standing.reason is not None:
        return 0
    words = (UnitWord.FREE, UnitWord.CLEANING, UnitWord.RELEASING)
    return sum(word(standing, unit) in words for unit in units)

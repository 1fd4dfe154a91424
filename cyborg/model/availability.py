# SPDX-License-Identifier: Apache-2.0
"""The rule for which units may be given out, and why the others are out of service.

``cyborg.db.units`` has the same rule in SQL, for binds, attaches, counts and the audit. The desired
state of a host applies this one to rows that it has read.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cyborg.model import health
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState


class UnitWord(StrEnum):
    """What a unit counts as: the first of these that applies.

    Between HOST_DISABLED and UNHEALTHY comes the status of a device that is not enabled. The words
    from HOST_DISABLED to PROVIDER_REFUSED, and LOST, apply to all units of a deployable.
    """

    USED = "used"
    LOST = "lost"
    QUARANTINED = HandleState.QUARANTINED.value
    CLEANING = "cleaning"
    RELEASING = HandleState.RELEASING.value
    HOST_DISABLED = "host_disabled"
    UNHEALTHY = "unhealthy"
    DRIVER_NOT_READY = "driver_not_ready"
    #: The database was restored, and no audit has compared the provider with Placement since.
    UNCHECKED = "unchecked"
    PROVIDER_REFUSED = "provider_refused"
    LEAKED = "leaked"
    #: The agent of the host cannot publish, and Placement does not offer the provider.
    UNPUBLISHED = "unpublished"
    #: The pools of the device have no room for this free unit, see ``Pooled``.
    NO_ROOM = "no_room"
    FREE = "free"


@dataclass(frozen=True)
class Standing:
    """The facts that decide whether units of a deployable may be given out.

    ``status`` is its device's, ``lost`` whether it or its device is not seen any more; ``driver``
    is the state of its driver, None while that has never been reported; ``disabled`` tells that an
    operator has taken its whole host out of service. ``health`` is the device's, see
    ``cyborg.model.health``. ``unchecked``: an audit has still to compare it with Placement after a
    restore of the database. ``refused``: Placement refuses the provider.
    """

    status: str
    lost: bool
    driver: str | None
    disabled: bool = False
    health: str | None = None
    refused: bool = False
    unchecked: bool = False

    @property
    def reason(self) -> str | None:
        """Return the first reason why no unit may be given out; None when there is none."""
        reasons = (
            (self.lost, UnitWord.LOST),
            (self.disabled, UnitWord.HOST_DISABLED),
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


@dataclass(frozen=True)
class Pooled:
    """A unit of a device with pools; each of its ``deployable`` costs the same."""

    id: int
    deployable: int
    state: str
    lost: bool
    cost: Mapping[str, int]


def taken(units: Iterable[Pooled]) -> dict[str, int]:
    """Return what the units of a device take of its pools: those that are not free."""
    amounts: dict[str, int] = defaultdict(int)
    for unit in units:
        if unit.state != HandleState.FREE:
            for pool, amount in unit.cost.items():
                amounts[pool] += amount
    return dict(amounts)


def fitting(cost: Mapping[str, int], remaining: Mapping[str, int]) -> int | None:
    """Return how many more units with this cost the pools have room for; None: any number."""
    return min(
        (max(0, remaining.get(pool, 0) // amount) for pool, amount in cost.items()), default=None
    )


def blocked(pools: Mapping[str, int], units: Sequence[Pooled]) -> set[int]:
    """Return the ids of the free units of a device for which its pools have no room.

    Of each deployable, as many units stay as could all be given out if no other deployable gives
    out any; those with the lowest ids stay. So a deployable with a unit that is not blocked can
    always give out one more.
    """
    amounts = taken(units)
    remaining = {pool: size - amounts.get(pool, 0) for pool, size in pools.items()}
    candidates: dict[int, list[Pooled]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: unit.id):
        if unit.state == HandleState.FREE and not unit.lost:
            candidates[unit.deployable].append(unit)
    return {
        unit.id
        for free in candidates.values()
        for room in (fitting(free[0].cost, remaining),)
        for unit in (() if room is None else free[room:])
    }


def reserved(standing: Standing, units: Iterable[Unit]) -> int:
    """Return how many units of a deployable Placement must not allocate.

    These are all units if none may be given out, else those that are lost, quarantined, cleaned now
    or blocked.
    A refused provider is published as if it were not refused: that is how Placement accepts it in
    the end.
    """
    if standing.reason in (None, UnitWord.PROVIDER_REFUSED):
        return sum(
            unit.lost or unit.blocked or unit.cleaning or unit.state == HandleState.QUARANTINED
            for unit in units
        )
    return sum(1 for _ in units)

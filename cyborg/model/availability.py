# SPDX-License-Identifier: Apache-2.0
"""The words for what units count as, and the units for which the pools of a device have room."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cyborg.model.device import HandleState


class UnitWord(StrEnum):
    """What a unit counts as: the first of these that applies.

    Between HOST_DRAINING and UNHEALTHY comes the status of a device that is not enabled. The words
    from HOST_DISABLED to PROVIDER_REFUSED, and LOST, apply to all units of a deployable.
    """

    USED = "used"
    LOST = "lost"
    QUARANTINED = HandleState.QUARANTINED.value
    CLEANING = "cleaning"
    RELEASING = HandleState.RELEASING.value
    HOST_DISABLED = "host_disabled"
    HOST_DRAINING = "host_draining"
    UNHEALTHY = "unhealthy"
    DRIVER_NOT_READY = "driver_not_ready"
    #: The database was restored, and no audit has compared the provider with Placement since.
    UNCHECKED = "unchecked"
    PROVIDER_REFUSED = "provider_refused"
    #: The agent of the host cannot publish, and Placement does not offer the provider.
    UNPUBLISHED = "unpublished"
    #: The pools of the device have no room for this free unit, see ``Pooled``.
    NO_ROOM = "no_room"
    FREE = "free"


@dataclass(frozen=True)
class Pooled:
    """A unit of a device with pools; each of its ``deployable`` costs the same."""

    id: int
    deployable: int
    #: No ARQ has it, and its last guest has released it.
    free: bool
    lost: bool
    cost: Mapping[str, int]


def taken(units: Iterable[Pooled]) -> dict[str, int]:
    """Return what the units of a device take of its pools: those that are not free."""
    amounts: dict[str, int] = defaultdict(int)
    for unit in units:
        if not unit.free:
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
        if unit.free and not unit.lost:
            candidates[unit.deployable].append(unit)
    return {
        unit.id
        for free in candidates.values()
        for room in (fitting(free[0].cost, remaining),)
        for unit in (() if room is None else free[room:])
    }

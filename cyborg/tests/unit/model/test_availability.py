# SPDX-License-Identifier: Apache-2.0
"""Units that share the capacity of a device: which of them can still be given out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg.model.availability import Pooled, blocked
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Deployable,
    Device,
    DeviceType,
)

POOLS = ("memory", "compute")
amounts = st.integers(1, 5)
costs = st.dictionaries(st.sampled_from(POOLS), amounts)
sizes = st.fixed_dictionaries({name: st.integers(0, 12) for name in POOLS})


@st.composite
def cards(draw: st.DrawFn) -> list[Pooled]:
    """The units of up to three deployables, free or not, lost or not."""
    units: list[Pooled] = []
    for deployable, cost in enumerate(draw(st.lists(costs, max_size=3))):
        for free, lost in draw(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6)):
            units.append(Pooled(len(units), deployable, free, lost=lost, cost=cost))
    return draw(st.permutations(units))


def fits(pools: dict[str, int], units: list[Pooled]) -> bool:
    """Whether the pools hold all units that are not free."""
    return all(
        sum(unit.cost.get(name, 0) for unit in units if not unit.free) <= size
        for name, size in pools.items()
    )


@given(sizes, cards())
def test_a_unit_is_blocked_exactly_when_one_more_does_not_fit(
    pools: dict[str, int], units: list[Pooled]
) -> None:
    """Binds take the units of a deployable that are not blocked, one after the other."""
    before = blocked(pools, units)
    assert all(unit.free and not unit.lost for unit in units if unit.id in before)
    for deployable in {unit.deployable for unit in units}:
        held, full = list(units), before
        while True:
            free = sorted(
                (index for index, unit in enumerate(held) if _is_offered(unit, deployable)),
                key=lambda index: held[index].id,
            )
            if not free:
                break
            index = free[0]
            after = [
                replace(unit, free=False) if i == index else unit for i, unit in enumerate(held)
            ]
            roomy = not held[index].cost or fits(_only(pools, held[index]), after)
            # The units that stay are those with the lowest ids.
            assert (held[index].id not in full) is roomy
            if not roomy:
                break
            held, full = after, blocked(pools, after)


def _is_offered(unit: Pooled, deployable: int) -> bool:
    return unit.deployable == deployable and unit.free and not unit.lost


def _only(pools: dict[str, int], unit: Pooled) -> dict[str, int]:
    """The pools that a unit takes of: an older card may hold more of another one than it has."""
    return {name: size for name, size in pools.items() if name in unit.cost}


HANDLE = AttachHandle("0", AttachType.PCI, {})
SLICE = Deployable("slice", "FPGA", "card", (HANDLE,), prepare=True, cost={"memory": 2})
SHARED = Device("0000:81:00.0", DeviceType.GPU, "v", "m", {}, (SLICE,), pools={"memory": 8})


@pytest.mark.parametrize(
    ("device", "flaw"),
    [
        (SHARED, None),
        (replace(SHARED, pools={"memory": 0}), None),
        (replace(SHARED, pools={"memory": -1}), "the size of its pool memory is -1"),
        (replace(SHARED, pools={"memory": 2**31}), "the size of its pool memory is 2147483648"),
        (replace(SHARED, pools={"": 1, "memory": 8}), "the name of a pool has 0 characters"),
        (replace(SHARED, pools={"m" * 65: 1, "memory": 8}), "the name of a pool has 65"),
        (replace(SHARED, pools={}), "slice takes of memory, which is not a pool"),
        (
            replace(SHARED, deployables=(replace(SLICE, prepare=False),)),
            "slice has a cost, but its units need no preparation",
        ),
        (
            replace(SHARED, deployables=(replace(SLICE, cost={"memory": 0}),)),
            "slice takes 0 of memory",
        ),
    ],
)
def test_pools_and_costs_are_validated(device: Device, flaw: str | None) -> None:
    reason = device.validate()
    assert reason == flaw if flaw is None else flaw in str(reason)

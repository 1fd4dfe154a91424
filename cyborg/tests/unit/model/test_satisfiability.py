# SPDX-License-Identifier: Apache-2.0
"""Whether the hardware can satisfy a profile; Placement judges the same in functional tests."""

from collections.abc import Sequence

import pytest

from cyborg.model.device_profile import equal_group_warnings
from cyborg.model.satisfiability import Satisfiable, Supply, groups_of, satisfiable, warnings

A, B = "CUSTOM_GPU_A100", "CUSTOM_GPU_H100"
FAST, SLOW = "CUSTOM_FAST", "CUSTOM_SLOW"
NOW, WHEN_FREE, NEVER = Satisfiable


def wants(amount: int, name: str = A, **traits: str) -> dict[str, str]:
    return {f"resources:{name}": str(amount)} | {
        f"trait:{trait}": word for trait, word in traits.items()
    }


def card(total: int, free: int | None = None, *traits: str, name: str = A, size: int = 1) -> Supply:
    return Supply(name, traits, total, total if free is None else free, size)


@pytest.mark.parametrize(
    ("groups", "hosts", "expected"),
    [
        ([wants(1)], [], NEVER),
        ([wants(1)], [[card(1)]], NOW),
        ([wants(1)], [[card(1, 0)]], WHEN_FREE),
        ([wants(1)], [[card(1, 0)], [card(2, 1)]], NOW),
        ([wants(1, B)], [[card(1)]], NEVER),
        ([wants(2)], [[card(1), card(1)]], NEVER),
        ([wants(1), wants(1)], [[card(1), card(1)]], NOW),
        ([wants(1), wants(1)], [[card(1)], [card(1)]], NEVER),
        ([wants(1), wants(1)], [[card(2)]], NOW),
        # The larger group has to have the larger provider.
        ([wants(1), wants(2)], [[card(2), card(1)]], NOW),
        ([wants(2), wants(2), wants(3)], [[card(4), card(3)]], NOW),
        ([wants(1, **{FAST: "required"})], [[card(1, None, FAST, SLOW)]], NOW),
        ([wants(1, **{FAST: "required", SLOW: "forbidden"})], [[card(1, 1, FAST, SLOW)]], NEVER),
        # Each trait is there, on another card.
        (
            [wants(1, **{FAST: "required", SLOW: "required"})],
            [[card(1, 1, FAST), card(1, 1, SLOW)]],
            NEVER,
        ),
        ([{**wants(1), **wants(1, B)}], [[card(1), card(1, name=B)]], NEVER),
        ([wants(1), wants(1, B)], [[card(1), card(1, name=B)]], NOW),
        ([wants(3)], [[card(8, size=2)]], NEVER),
        ([wants(4)], [[card(8, 2, size=2)]], WHEN_FREE),
        # A group without resources is not asked of Placement.
        ([wants(1), {f"trait:{FAST}": "required"}], [[card(1)]], NOW),
    ],
)
def test_profile_is_satisfied_by_one_host(
    groups: list[dict[str, str]], hosts: Sequence[list[Supply]], expected: Satisfiable
) -> None:
    assert satisfiable(groups, hosts) is expected


def test_effort_for_one_host_is_bounded() -> None:
    """Fifty groups that miss one unit, over providers that all differ."""
    host = [card(101 + number, None, f"CUSTOM_{number}") for number in range(0, 20, 2)]
    groups = [wants(2 + number % 3 * 7) for number in range(100)]
    assert satisfiable(groups, [host]) in list(Satisfiable)


CLOUD = [card(2, 1, FAST, SLOW), card(4, 4, SLOW, size=2, name=B)]


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        (
            wants(1, "CUSTOM_GPU_A10"),
            (
                "no resource provider has resource class CUSTOM_GPU_A10; the nearest existing one "
                f"is {A}."
            ),
        ),
        (wants(1, "PGPU"), "no resource provider has resource class PGPU."),
        (
            wants(1, CUSTOM_FASTER="required"),
            f"no resource provider has trait CUSTOM_FASTER; the nearest existing one is {FAST}.",
        ),
        (
            wants(2, B, **{FAST: "required", SLOW: "required"}),
            (
                f"no resource provider of {B} has these traits together: {FAST}=required, "
                f"{SLOW}=required."
            ),
        ),
        (
            wants(3),
            (
                f"it requests 3 units of {A} from one resource provider, and the largest one with "
                "these traits has 2."
            ),
        ),
        (wants(3, B), f"units of {B} are given out in multiples of 2, not 3."),
        (
            {**wants(1), **wants(2, B)},
            (
                "a resource provider has one resource class, and one provider would have to have "
                f"{A}, {B}. Use a group for each class."
            ),
        ),
    ],
)
def test_warning_names_what_no_provider_has(group: dict[str, str], sentence: str) -> None:
    assert warnings([wants(1), group], CLOUD) == [f"groups[1]: {sentence}"]


def test_profile_of_existing_hardware_has_no_warnings() -> None:
    groups = [wants(2, **{FAST: "required"}), wants(1, CUSTOM_OTHER="forbidden"), wants(4, B)]
    assert warnings([*groups, {"accel:x": "y"}], CLOUD) == []


def test_more_than_four_equal_groups_are_too_many_for_placement() -> None:
    equal, others = [wants(1)] * 4, [wants(1, **{FAST: "required"})] * 2
    assert equal_group_warnings([*equal, *others, {"accel:x": "y"}]) == []
    (sentence,) = equal_group_warnings([*equal, wants(2), *others])
    assert sentence.startswith(f"groups 0, 1, 2, 3, 4 ask for the same: {A}.")


def test_groups_of_names_each_group_that_one_provider_can_satisfy() -> None:
    supplies = [
        Supply("FPGA", ("CUSTOM_A",), total=4, free=0, group_size=2),
        Supply("PGPU", (), total=1, free=1),
    ]
    groups = [
        {"resources:FPGA": "4", "trait:CUSTOM_A": "required"},
        {"resources:FPGA": "3"},
        {"resources:FPGA": "6"},
        {"resources:FPGA": "2", "trait:CUSTOM_A": "forbidden"},
        {"resources:PGPU": "1", "trait:CUSTOM_A": "forbidden"},
        {"resources:PGPU": "1", "resources:FPGA": "2"},
        {"resources:VGPU": "1"},
        {"accel:clean": "none"},
    ]
    assert groups_of(groups, supplies) == [0, 4]
    assert groups_of(groups, []) == []

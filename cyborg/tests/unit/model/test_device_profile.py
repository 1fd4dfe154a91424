# SPDX-License-Identifier: Apache-2.0
"""What a device profile may wish for."""

from typing import Any

import pytest

from cyborg import exception
from cyborg.model.device_profile import (
    Limits,
    accel_requirements,
    parse_groups,
    parse_name,
    resource_classes,
    units,
)
from cyborg.tests.fixtures.properties import given, st

CLASSES = frozenset({"FPGA", "VGPU"})
LIMITS = Limits(groups=3, units=8)


def parsed(groups: object) -> tuple[dict[str, str], ...]:
    return parse_groups(groups, CLASSES, LIMITS)


@pytest.mark.parametrize(
    ("given_", "stored"),
    [
        ([{"resources:FPGA": "1"}], ({"resources:FPGA": "1"},)),
        ([{"resources:FPGA": 1}], ({"resources:FPGA": "1"},)),
        ([{"resources: FPGA ": " 02 "}], ({"resources:FPGA": "2"},)),
        ([{"resources:CUSTOM_A1": 8}], ({"resources:CUSTOM_A1": "8"},)),
        (
            [
                {
                    "trait: CUSTOM_T": "required",
                    "resources:VGPU": 1,
                    "trait:HW_CPU_X86_AVX": "forbidden",
                }
            ],
            (
                {
                    "trait:CUSTOM_T": "required",
                    "resources:VGPU": "1",
                    "trait:HW_CPU_X86_AVX": "forbidden",
                },
            ),
        ),
        ([{"resources:FPGA": 1}, {"accel:id": 5}], ({"resources:FPGA": "1"}, {"accel:id": "5"})),
        ([{}, {"resources:FPGA": 1}], ({}, {"resources:FPGA": "1"})),
        (({"resources:FPGA": 1},), ({"resources:FPGA": "1"},)),
    ],
)
def test_valid_groups_are_normalised(given_: object, stored: object) -> None:
    assert parsed(given_) == stored
    assert list(map(list, parsed(given_))) == list(map(list, stored))


FPGA = {"resources:FPGA": 1}
NO_AMOUNTS: list[Any] = [0, -1, 1.0, 1.5, "0", "", "-1", "1.0", "1e2", "٣", "x", None, True, [], {}]


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        (None, "groups"),
        ({}, "groups"),
        ([], "groups"),
        ("resources:FPGA", "groups"),
        (7, "groups"),
        ([FPGA] * 4, "groups"),
        ([None], "groups[0]"),
        ([FPGA, "x"], "groups[1]"),
        ([{}], "groups"),
        ([{"trait:CUSTOM_T": "required"}], "groups"),
        ([{"accel:x": "y"}], "groups"),
        ([{"resources:FPGA": 5, "resources:VGPU": 4}], "groups[0]"),
        ([{"": 1}], "groups[0]."),
        ([{"FPGA": 1}], "groups[0].FPGA"),
        ([{"resources:": 1}], "groups[0].resources:"),
        ([{"resource:FPGA": 1}], "groups[0].resource:FPGA"),
        ([{"resources:FPGA": 1, "resources: FPGA": 1}], "groups[0].resources: FPGA"),
        ([{"resources:NOPE": 1}], "groups[0].resources:NOPE"),
        ([{"resources:CUSTOM_": 1}], "groups[0].resources:CUSTOM_"),
        ([{"resources:custom_a": 1}], "groups[0].resources:custom_a"),
        *(([{"resources:FPGA": one}], "groups[0].resources:FPGA") for one in NO_AMOUNTS),
        ([{"resources:FPGA": 10**5000}], "groups[0].resources:FPGA"),
        ([{"resources:FPGA": "1" * 20}], "groups[0].resources:FPGA"),
        ([{**FPGA, "trait:CUSTOM_T": "maybe"}], "groups[0].trait:CUSTOM_T"),
        ([{**FPGA, "trait:CUSTOM_T": None}], "groups[0].trait:CUSTOM_T"),
        ([{**FPGA, "trait:CUSTOM_T": []}], "groups[0].trait:CUSTOM_T"),
        ([{**FPGA, "trait:bad-name": "required"}], "groups[0].trait:bad-name"),
        ([{**FPGA, "trait:" + "X" * 256: "required"}], f"groups[0].trait:{'X' * 256}"),
        ([{**FPGA, "accel:a": None}], "groups[0].accel:a"),
        ([{**FPGA, "accel:a": False}], "groups[0].accel:a"),
        ([{**FPGA, "accel:a": {}}], "groups[0].accel:a"),
        ([{**FPGA, "accel:a": "y" * 16_001}], "groups[0].accel:a"),
        ([{**FPGA, "accel:a": 10**5000}], "groups[0].accel:a"),
    ],
)
def test_invalid_groups_are_refused(groups: object, field: str) -> None:
    with pytest.raises(exception.Invalid) as caught:
        parsed(groups)
    assert caught.value.fields["field"] == field


keys = st.one_of(
    st.text(max_size=12),
    st.builds(
        "{}{}".format,
        st.sampled_from(["resources:", "trait:", "accel:", "resources: "]),
        st.sampled_from(["FPGA", "CUSTOM_A", "VGPU ", "x"]) | st.text(max_size=6),
    ),
)
values = st.one_of(
    st.text(max_size=8),
    st.integers(),
    st.sampled_from(["required", "forbidden", "1", "2", 1, 2]),
    st.none() | st.booleans() | st.floats() | st.lists(st.integers(), max_size=2),
)


@given(groups=st.lists(st.dictionaries(keys, values, max_size=4) | values, max_size=4) | values)
def test_any_groups_are_stored_or_invalid(groups: Any) -> None:
    try:
        stored = parsed(groups)
    except exception.Invalid:
        return
    assert parsed(stored) == stored
    assert all(isinstance(value, str) for group in stored for value in group.values())
    assert all(units(group) <= LIMITS.units for group in stored)
    assert sum(map(units, stored)) >= 1


def test_group_gives_units_resources_and_images() -> None:
    (group,) = parsed([{"resources:FPGA": 2, "resources:CUSTOM_A": 3, "accel:bits": "x"}])
    assert units(group) == 5
    assert resource_classes(group) == {"FPGA", "CUSTOM_A"}
    assert accel_requirements(group) == {"bits": "x"}


def test_names_are_checked() -> None:
    for name in ("a", "A-b_9", "x" * 255):
        assert parse_name(name) == name
    wrong_names: list[Any] = [None, 1, [], "", "x" * 256, "a b", "ä", "a\n", "a/b", "☃", "a.b"]
    for wrong in wrong_names:
        with pytest.raises(exception.Invalid) as caught:
            parse_name(wrong)
        assert caught.value.fields["field"] == "name"

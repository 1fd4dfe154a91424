# SPDX-License-Identifier: Apache-2.0
"""Tests of the provider tree and of the difference between desired and actual."""

from dataclasses import replace

import pytest

from cyborg.model.provider import (
    Actual,
    Provider,
    ProviderOutcome,
    PublishResult,
    SetInventories,
    SetTraits,
    Verdict,
    changes,
    is_resource_class_name,
    is_trait_name,
    provider_uuid,
)
from cyborg.tests.fixtures.properties import given, st

NAME = "compute1_FakeDevice"
FPGA = Provider(
    uuid=provider_uuid(NAME),
    name=NAME,
    resource_class="FPGA",
    total=16,
    reserved=0,
    traits=frozenset({"CUSTOM_FAKE_DEVICE", "OWNER_CYBORG"}),
)
NONE = frozenset[str]()


def shown(provider: Provider, foreign: frozenset[str] = NONE) -> Actual:
    return Actual(3, provider.inventories(), provider.traits | foreign)


def test_provider_uuid_is_that_of_existing_allocations():
    assert provider_uuid(NAME) == "f9d7848a-7688-361f-8e4b-3e58185de5fe"


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("HW_GPU_API_VULKAN", True),
        ("CUSTOM_FPGA_1", True),
        ("A" * 255, True),
        ("A" * 256, False),
        ("", False),
        ("CUSTOM_", False),
        ("custom_x", False),
        ("CUSTOM-X", False),
        ("CUSTOM_X\n", False),
        ("CUSTOM_Ä", False),
        ("../resource_providers/x", False),
    ],
)
def test_names_follow_patterns_of_placement(name: str, valid: bool):
    assert is_trait_name(name) is valid
    assert is_resource_class_name(name) is valid


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"resource_class": "fpga"}, "resource class"),
        ({"traits": frozenset({"../x"})}, "trait"),
        ({"reserved": 17}, "reserved"),
        ({"reserved": -1}, "reserved"),
        ({"total": 2**31}, "reserved"),
        ({"group_size": 0}, "at a time"),
    ],
)
def test_invalid_provider_names_its_flaw(change: dict[str, object], word: str):
    assert replace(FPGA, name="x" * 200, reserved=16).validate() is None
    flaw = replace(FPGA, **change).validate()  # type: ignore[arg-type]
    assert flaw is not None
    assert word in flaw


def test_changed_ratio_is_a_difference():
    held = shown(FPGA)
    held = replace(held, inventories={"FPGA": {**held.inventories["FPGA"], "allocation_ratio": 2}})
    assert changes(FPGA, held, NONE) == (SetInventories(FPGA.inventories()),)


def test_group_size_is_allocated_at_a_time() -> None:
    group = replace(FPGA, group_size=8)
    (inventory,) = group.inventories().values()
    sizes = {name: inventory[name] for name in ("min_unit", "step_size", "max_unit")}
    assert sizes == {"min_unit": 8, "step_size": 8, "max_unit": 16}
    assert changes(group, shown(FPGA), NONE) == (SetInventories(group.inventories()),)
    assert changes(FPGA, shown(group), NONE) == (SetInventories(FPGA.inventories()),)


def test_unpublished_providers_are_problems():
    outcomes = tuple(
        ProviderOutcome(provider_uuid(one), one.value, one, "" if one == "published" else "because")
        for one in Verdict
    )
    assert PublishResult("root", outcomes).problems == {"refused": "because", "failed": "because"}


traits = st.frozensets(st.sampled_from(["CUSTOM_A", "CUSTOM_B", "OWNER_CYBORG", "HW_CPU_X86_AVX"]))
providers = st.builds(
    lambda total, part, resource_class, traits: Provider(
        FPGA.uuid, NAME, resource_class, total, total * part // 4, traits
    ),
    total=st.integers(0, 64),
    part=st.integers(0, 4),
    resource_class=st.sampled_from(["FPGA", "CUSTOM_PCI"]),
    traits=traits,
)


@given(desired=providers, before=providers, foreign=traits, retired=traits)
def test_changes_lead_to_the_desired_provider(
    desired: Provider, before: Provider, foreign: frozenset[str], retired: frozenset[str]
):
    ours = before.traits | retired
    held = Actual(0, before.inventories(), before.traits | foreign)
    for change in changes(desired, held, ours):
        if isinstance(change, SetInventories):
            held = replace(held, inventories=change.inventories)
        else:
            held = replace(held, traits=change.traits)
    assert held.inventories == desired.inventories()
    assert held.traits == desired.traits | (foreign - ours)
    assert changes(desired, held, ours) == ()


LOST = replace(FPGA, reserved=16, traits=frozenset({"OWNER_CYBORG"}))
OTHER = replace(FPGA, resource_class="CUSTOM_FPGA", traits=frozenset({"CUSTOM_X"}))


@pytest.mark.parametrize(
    ("desired", "actual", "order"),
    [
        (FPGA, Actual(0, {}, NONE), [SetTraits, SetInventories]),
        (OTHER, shown(FPGA), [SetTraits, SetInventories]),
        # Nobody gets a unit that has lost its traits.
        (LOST, shown(FPGA), [SetInventories, SetTraits]),
    ],
    ids=["new", "another class", "reserved"],
)
def test_units_are_offered_only_with_their_traits(
    desired: Provider, actual: Actual, order: list[type]
):
    assert [type(change) for change in changes(desired, actual, FPGA.traits)] == order

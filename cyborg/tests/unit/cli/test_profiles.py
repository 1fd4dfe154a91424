# SPDX-License-Identifier: Apache-2.0
"""Device profiles for what an accelerator offers."""

from typing import Any

import pytest

from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import DEVICE, PROFILE, RESOURCES, Answer, Service

TRAITS = {
    "trait:CUSTOM_FPGA_INTEL": "required",
    "trait:CUSTOM_FPGA_PRODUCT_ID_0B2B": "required",
}
CREATE = f"profile-create --from-device {DEVICE}"


def provider(total: int, *traits: str, **more: Any) -> dict[str, Any]:
    return {"resource_class": "PGPU", "total": total, "product_traits": list(traits)} | more


def offer(service: Service, *providers: dict[str, Any], **more: Any) -> None:
    """Let the next answer for the device have these providers."""
    device = RESOURCES["devices"][0] | {"providers": list(providers)} | more
    service.answers[f"/devices/{DEVICE}"] = [Answer(200, device)]


def created(service: Service) -> tuple[str, list[dict[str, str]]]:
    assert service.last.method == "POST"
    (profile,) = service.last.body
    return profile["name"], profile["groups"]


def test_profile_requests_class_and_product_of_a_device(cyborg: Run, service: Service) -> None:
    outcome = cyborg(f"{CREATE} --description d --project p")
    assert outcome.status == 0, outcome.err
    assert created(service) == ("miyabi", [{"resources:FPGA": "1", **TRAITS}])
    assert service.last.body[0].keys() == {"name", "groups", "description", "projects"}
    assert cyborg(f"{CREATE} --count 3").status == 0
    assert created(service) == ("miyabi-x3", [{"resources:FPGA": "3", **TRAITS}])
    assert cyborg(f"profile-create mine --from-device {DEVICE}").status == 0
    assert created(service)[0] == "mine"


@pytest.mark.parametrize(
    ("providers", "count", "amounts"),
    [
        ([provider(1)], None, [1]),
        ([provider(1)], 3, [1, 1, 1]),
        ([provider(4)], 4, [4]),
        ([provider(4), provider(2)], 4, [4]),
        ([provider(4)], 6, [3, 3]),
        ([provider(4)], 9, [3, 3, 3]),
        ([provider(3)], 7, [3, 2, 2]),
        ([provider(8, group_size=8)], None, [8]),
        ([provider(8, group_size=8)], 16, [8, 8]),
        ([provider(6, group_size=2)], 8, [4, 4]),
        ([provider(0)], 2, [1, 1]),
    ],
)
def test_units_are_in_as_few_groups_as_providers_allow(
    providers: list[dict[str, Any]],
    count: int | None,
    amounts: list[int],
    cyborg: Run,
    service: Service,
) -> None:
    offer(service, *providers)
    assert cyborg(f"{CREATE}{f' --count {count}' if count else ''}").status == 0
    assert created(service)[1] == [{"resources:PGPU": str(amount)} for amount in amounts]


def test_product_without_a_trait_is_requested_by_class_with_a_warning(
    cyborg: Run, service: Service
) -> None:
    offer(service, provider(1))
    outcome = cyborg(CREATE)
    assert created(service)[1] == [{"resources:PGPU": "1"}]
    assert "names no trait of its product" in outcome.err
    assert "any unit of PGPU" in outcome.err


def test_device_with_different_units_lists_the_groups_to_choose(
    cyborg: Run, service: Service
) -> None:
    offer(service, provider(2, "CUSTOM_B"), provider(4, "CUSTOM_A"), provider(4, "CUSTOM_A"))
    outcome = cyborg(CREATE)
    assert (outcome.status, service.last.method) == (1, "GET")
    for trait in ("A", "B"):
        assert outcome.err.count(f"--group resources:PGPU=1,trait:CUSTOM_{trait}=required") == 1


@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ({"providers": []}, "", "has no resource provider"),
        ({"providers": None}, "", "does not show the resource providers"),
        ({"providers": [provider(8, group_size=4)]}, "--count 6", "multiples of 4"),
        ({"model": " ()"}, "", "Give a name"),
    ],
)
def test_unusable_device_is_refused_before_the_profile_is_created(
    device: dict[str, Any], options: str, message: str, cyborg: Run, service: Service
) -> None:
    service.answers[f"/devices/{DEVICE}"] = [Answer(200, RESOURCES["devices"][0] | device)]
    outcome = cyborg(f"{CREATE} {options}")
    assert (outcome.status, service.last.method) == (1, "GET")
    assert message in outcome.err


def test_accelerator_show_names_the_groups_of_profiles_that_fit(cyborg: Run) -> None:
    assert f"fpga ({PROFILE}): groups[0], groups[2]" in cyborg(f"accelerator-show {DEVICE}").out

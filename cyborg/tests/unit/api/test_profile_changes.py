# SPDX-License-Identifier: Apache-2.0
"""Changing a device profile over HTTP: what is sent, what is refused, who may."""

from typing import Any

import pytest

from cyborg.model.device_profile import ProfileChange
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import FACTS, Client

PATH = "/v2/device_profiles"
GROUPS = [{"resources:FPGA": 2, "trait: CUSTOM_A": "required"}]
NEWEST = "accelerator 2.4"


@pytest.mark.parametrize(
    ("body", "wish"),
    [
        ({"name": "new"}, ProfileChange(name="new")),
        ({"description": "d"}, ProfileChange(description="d", sets_description=True)),
        ({"description": ""}, ProfileChange(description="", sets_description=True)),
        ({"description": None}, ProfileChange(sets_description=True)),
        (
            {"groups": GROUPS},
            ProfileChange(groups=({"resources:FPGA": "2", "trait:CUSTOM_A": "required"},)),
        ),
    ],
)
@pytest.mark.parametrize("key", ["<profile>", "gpu", FACTS["profile"].upper()])
def test_update_changes_only_given_fields(
    client: Client, conductor: RecordedConductor, key: str, body: Any, wish: ProfileChange
) -> None:
    before = client.send("GET", f"{PATH}/gpu").body["device_profile"]
    answer = client.send("PATCH", f"{PATH}/{key}", body, version=NEWEST)
    assert answer.status == 200
    assert [arguments["change"] for _, _, arguments in conductor.calls] == [wish]
    changed = {name for name in before if answer.body[name] != before[name]}
    assert changed <= {*body, "updated_at"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ([], "body"),
        ([{"name": "new"}], "body"),
        ("new", "body"),
        (b"null", "body"),
        ({"uuid": "<random>"}, "uuid"),
        ({"name": "new", "colour": 1}, "colour"),
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "white space"}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"description": 5}, "description"),
        ({"description": "x" * 16_001}, "description"),
        ({"groups": None}, "groups"),
        ({"groups": []}, "groups"),
        ({"groups": [{"resources:FPGA": "0"}]}, "groups[0].resources:FPGA"),
        ({"groups": [{"resources:FPGA": "65"}]}, "groups[0]"),
        ({"groups": [{**GROUPS[0], "accel:x": "y" * 16_000}] * 5}, "groups"),
    ],
)
def test_refused_body_names_its_field_and_changes_nothing(
    client: Client, conductor: RecordedConductor, body: Any, field: str
) -> None:
    answer = client.send("PATCH", f"{PATH}/gpu", body, version=NEWEST)
    assert answer.status == 400
    assert f"Invalid value for {field}:" in answer.fault
    assert conductor.calls == []


@pytest.mark.parametrize("version", [None, "accelerator 2.0", "accelerator 2.3"])
def test_update_is_not_served_in_older_microversions(
    client: Client, conductor: RecordedConductor, version: str | None
) -> None:
    assert client.send("PATCH", f"{PATH}/gpu", {"name": "new"}, version=version).status == 404
    assert conductor.calls == []


@pytest.mark.parametrize("key", ["<random>", "nothing", "%F0%9F%98%80"])
def test_update_of_missing_profile_returns_404(client: Client, key: str) -> None:
    answer = client.send("PATCH", f"{PATH}/{key}", {"name": "new"}, version=NEWEST)
    assert answer.status == 404

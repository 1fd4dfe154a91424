# SPDX-License-Identifier: Apache-2.0
"""The links of ``links.py``: each is valid, and they lead to the requests about an object."""

import functools
from typing import Any

import openapi_spec_validator
import pytest

from cyborg.api import microversion
from cyborg.tests.unit.api import described
from cyborg.tests.unit.api.links import IDENTIFIERS, linked

VERSIONS = microversion.MINORS


@functools.cache
def _linked(minor: int) -> dict[str, Any]:
    return linked(described.document(minor))


@pytest.mark.parametrize("minor", VERSIONS)
def test_document_with_links_is_valid(minor: int) -> None:
    openapi_spec_validator.validate(_linked(minor))


def _links(minor: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """The operation id, the schema of the answer and the link of each link of a document."""
    return [
        (operation["operationId"], answer["content"]["application/json"]["schema"], link)
        for methods in _linked(minor)["paths"].values()
        for operation in methods.values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]


def _pairs(source: str) -> set[tuple[str, str, str]]:
    """The target, the parameter and the expression of each link from an operation."""
    return {
        (link["operationId"], name, expression)
        for operation, _, link in _links(microversion.LATEST)
        if operation == source
        for name, expression in (link.get("parameters") or link["requestBody"]).items()
    }


@pytest.mark.parametrize("minor", VERSIONS)
def test_links_name_operations_and_parameters_of_the_document(minor: int) -> None:
    whole = _linked(minor)
    targets = {
        operation["operationId"]: operation
        for methods in whole["paths"].values()
        for operation in methods.values()
    }
    assert _links(minor)
    for source, _, link in _links(minor):
        target = targets[link["operationId"]]
        parameters = {one["name"]: one for one in target["parameters"]}
        given = link.get("parameters", {})
        assert given.keys() <= parameters.keys(), (source, link)
        needed = {name for name, one in parameters.items() if one.get("required")}
        assert needed <= given.keys(), (source, link)
        if body := link.get("requestBody"):
            schema = target["requestBody"]["content"]["application/json"]["schema"]
            assert body.keys() <= _members(whole, schema).keys(), (source, link)


@pytest.mark.parametrize("minor", VERSIONS)
def test_links_take_values_that_answers_have(minor: int) -> None:
    whole = _linked(minor)
    for source, schema, link in _links(minor):
        for expression in (link.get("parameters") or link["requestBody"]).values():
            head, _, pointer = expression.partition("#/")
            assert head == "$response.body"
            place = schema
            for step in pointer.split("/"):
                place = _resolved(whole, place)
                place = place["items"] if step == "0" else _members(whole, place)[step]
            place = _resolved(whole, place)
            assert "string" in place["type"], (source, link)


def _resolved(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return whole["components"]["schemas"][name] if name else schema


def _members(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The members that an object has in any of its forms."""
    schema = _resolved(whole, schema)
    members: dict[str, Any] = dict(schema.get("properties", {}))
    for kind in schema.get("anyOf", ()):
        members |= _members(whole, kind)
    return members


def test_links_lead_through_the_life_of_an_accelerator_request() -> None:
    profile, arq = "$response.body", "$response.body#/arqs/0"
    assert {
        ("get_device_profiles_id", "id", f"{profile}#/uuid"),
        ("get_device_profiles_id", "id", f"{profile}#/name"),
        ("delete_device_profiles_id", "id", f"{profile}#/name"),
        ("delete_device_profiles", "value", f"{profile}#/uuid"),
        ("post_accelerator_requests", "device_profile_name", f"{profile}#/name"),
    } <= _pairs("post_device_profiles")
    assert {
        ("get_accelerator_requests_id", "id", f"{arq}/uuid"),
        ("patch_accelerator_requests_id", "id", f"{arq}/uuid"),
        ("delete_accelerator_requests_id", "id", f"{arq}/uuid"),
        ("delete_accelerator_requests", "arqs", f"{arq}/uuid"),
        ("delete_accelerator_requests", "instance", f"{arq}/instance_uuid"),
        ("delete_instances_id_accelerators_other_id", "id", f"{arq}/instance_uuid"),
        ("delete_instances_id_accelerators_other_id", "other_id", f"{arq}/uuid"),
    } <= _pairs("get_accelerator_requests")


def test_links_lead_to_each_request_about_a_device_a_driver_and_an_operation() -> None:
    device = "$response.body#/devices/0/uuid"
    verbs = {"get", "patch", "delete"}
    assert _pairs("get_devices") == {
        *((f"{verb}_devices_id", "id", device) for verb in verbs),
        *((f"post_devices_id_{verb}", "id", device) for verb in ("enable", "disable")),
        ("get_devices_id_drain", "id", device),
        ("get_events", "device", device),
    }
    assert {(f"{verb}_drivers_id", "id", "$response.body#/uuid") for verb in verbs} <= _pairs(
        "get_drivers_id"
    )
    (operation,) = _pairs("post_services_discover")
    assert operation == ("get_operations_id", "id", "$response.body#/uuid")


def test_each_identifier_has_a_link() -> None:
    used = {
        (link["operationId"], name)
        for _, _, link in _links(microversion.LATEST)
        for name in (link.get("parameters") or link["requestBody"])
    }
    assert used >= {(operation, name) for operation, names in IDENTIFIERS.items() for name in names}

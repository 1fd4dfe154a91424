# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: valid, whole, and that of the microversion of the request.

``described.py`` compares every answer of the other tests with it.
"""

import inspect
import json
import pkgutil
from importlib import import_module
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest

from cyborg.api import app, microversion, openapi, types
from cyborg.api.controllers import v2
from cyborg.api.expose import Controller
from cyborg.tests.unit.api import described
from cyborg.tests.unit.api.world import Client

VERSIONS = range(microversion.LATEST + 1)


@pytest.mark.parametrize("minor", VERSIONS)
def test_document_is_valid(minor: int) -> None:
    openapi_spec_validator.validate(described.document(minor))
    assert described.document(minor)["info"]["version"] == f"2.{minor}"


def test_document_has_every_route() -> None:
    controllers = {
        member
        for module in pkgutil.iter_modules(v2.__path__, f"{v2.__name__}.")
        for member in vars(import_module(module.name)).values()
        if inspect.isclass(member) and issubclass(member, Controller) and member is not Controller
    }
    assert controllers == set(app.NOUNS)
    routes = {
        (f"/v2/{noun.collection}/{pattern}".rstrip("/"), method.lower())
        for noun in controllers
        for pattern, methods in noun.routes.items()
        for method in methods
    }
    paths = described.document(microversion.LATEST)["paths"]
    assert routes == {
        (path.replace("{id}", "*").replace("{other_id}", "*"), method)
        for path, methods in paths.items()
        for method in methods
    }


def test_described_requests_exist(client: Client) -> None:
    # A request may get any error of its own, and never "there is no such resource".
    paths = described.document(microversion.LATEST)["paths"]
    for path, methods in paths.items():
        for method in methods:
            place = path.replace("{id}", "<random>").replace("{other_id}", "<random>")
            answer = client.send(method.upper(), place, version="accelerator latest")
            assert answer.status != 405
            assert answer.status != 404 or "no such resource" not in answer.fault


@pytest.mark.parametrize("minor", VERSIONS)
def test_document_is_served_without_a_token(client: Client, minor: int) -> None:
    answer = client.send("GET", "/v2/openapi.json", as_=None, version=f"accelerator 2.{minor}")
    assert answer.status == 200
    assert answer.body == json.loads(json.dumps(described.document(minor)))
    assert answer.headers["Content-Type"] == "application/json"


def test_document_without_a_microversion_is_that_of_the_latest(client: Client) -> None:
    answer = client.send("GET", "/v2/openapi.json", as_=None)
    assert answer.body["info"]["version"] == microversion.MAXIMUM
    assert client.send("POST", "/v2/openapi.json", as_=None).status == 405
    assert client.send("GET", "/v2/openapi.json/more").status == 404
    assert client.send("GET", "/v2/openapi.json", as_=None, version="2.99").status == 406


def _schema(method: str, path: str, minor: int = microversion.LATEST) -> Any:
    whole = described.document(minor)
    body = whole["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**body, "components": whole["components"]})


BODIES = [
    ("/v2/device_profiles", [{"name": "p", "groups": [{"resources:FPGA": "1"}]}], 201),
    ("/v2/device_profiles", [{"name": "p q", "groups": [{"resources:FPGA": "1"}]}], 400),
    ("/v2/device_profiles", [{"name": "p" * 256, "groups": [{"resources:FPGA": "1"}]}], 400),
    ("/v2/device_profiles", [{"name": "p"}], 400),
    ("/v2/device_profiles", [{"groups": [{"resources:FPGA": "1"}]}], 400),
    ("/v2/device_profiles", [], 400),
    ("/v2/device_profiles", [{"name": "p", "groups": []}], 400),
    ("/v2/device_profiles", [{"name": "p", "groups": [{"resources:FPGA": 1}]}], 201),
    ("/v2/device_profiles", [{"name": "p", "groups": [{"resources:FPGA": 1.5}]}], 400),
    ("/v2/device_profiles", [{"name": "p", "groups": [{"trait:CUSTOM_A": "maybe"}]}], 400),
    ("/v2/device_profiles", [{"name": "p", "group": [{}]}], 400),
    ("/v2/attributes", {"deployable_id": "<deployable>", "key": "k", "value": "v"}, 201),
    ("/v2/attributes", {"deployable_id": "<deployable>", "key": "", "value": "v"}, 400),
    ("/v2/attributes", {"deployable_id": "<deployable>", "key": "k" * 256, "value": "v"}, 400),
    ("/v2/attributes", {"attribute": {"deployable_id": -1, "key": "k", "value": "v"}}, 400),
    ("/v2/accelerator_requests", {"device_profile_name": "gpu"}, 201),
    ("/v2/accelerator_requests", {"device_profile_name": None}, 400),
    ("/v2/accelerator_requests", {}, 400),
]


@pytest.mark.parametrize(("path", "body", "status"), BODIES)
def test_schema_of_a_body_agrees_with_the_validation(
    client: Client, path: str, body: Any, status: int
) -> None:
    sent = json.loads(client.fill(json.dumps(body)))
    assert _schema("post", path).is_valid(sent) is (status < 400)
    assert client.send("POST", path, body, version="latest").status == status


def _links(minor: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """The operation id, the schema of the answer and the link of each link of a document."""
    return [
        (operation["operationId"], answer["content"]["application/json"]["schema"], link)
        for methods in described.document(minor)["paths"].values()
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
    whole = described.document(minor)
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
    whole = described.document(minor)
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
        ("get_events", "device", device),
    }
    assert {(f"{verb}_drivers_id", "id", "$response.body#/uuid") for verb in verbs} <= _pairs(
        "get_drivers_id"
    )
    (operation,) = _pairs("post_services_discover")
    assert operation == ("get_operations_id", "id", "$response.body#/uuid")


def test_each_reference_to_another_object_has_a_link() -> None:
    used = {
        (link["operationId"], name)
        for _, _, link in _links(microversion.LATEST)
        for name in (link.get("parameters") or link["requestBody"])
    }
    for noun in app.NOUNS:
        for path, method, contract in openapi.operations(noun):
            body = contract.body_at(microversion.LATEST)
            kinds = types.attributes(contract.query, microversion.LATEST)
            if isinstance(body, types.Object):
                kinds |= types.attributes(body.declared, microversion.LATEST)
            operation = described.document(microversion.LATEST)["paths"][path][method.lower()]
            for name, kind in kinds.items():
                if isinstance(kind.datatype, types.Reference) and "{" not in path:
                    assert (operation["operationId"], name) in used

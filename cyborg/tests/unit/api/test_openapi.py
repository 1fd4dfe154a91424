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

from cyborg.api import app, microversion
from cyborg.api.controllers import v2
from cyborg.api.expose import Controller
from cyborg.tests.unit.api import described
from cyborg.tests.unit.api.world import Client

VERSIONS = microversion.MINORS


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

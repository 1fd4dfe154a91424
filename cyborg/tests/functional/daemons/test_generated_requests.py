# SPDX-License-Identifier: Apache-2.0
"""Requests that schemathesis generates from the OpenAPI document, valid and not, to three daemons.

Each answer has a status and a form that the document describes, and is never a 500.
"""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cyborg.api import app, microversion, openapi
from cyborg.tests.fixtures.choice import FULL, generator
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.daemons.service import Service

OPERATIONS = [
    (path, method)
    for path, methods in openapi.document(app.NOUNS, microversion.LATEST)["paths"].items()
    for method in methods
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 15 if FULL else 5


@pytest.fixture(scope="module")
def described(service: Service) -> Any:
    """The document as the API serves it."""
    return schemathesis.openapi.from_url(f"{service.url}/v2/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_generated_requests_are_answered_as_described(
    service: Service, described: Any, path: str, method: str, mode: GenerationMode
) -> None:
    operation = described[path][method.upper()]
    version = {microversion.HEADER: f"accelerator {microversion.MAXIMUM}"}

    @seed(generator(f"{mode} {method} {path}").getrandbits(64))
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        answer = case.call(base_url=service.url, headers=version, timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)

    check()

# SPDX-License-Identifier: Apache-2.0
"""Compare answers with the OpenAPI document of their microversion."""

import functools
import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import jsonschema

from cyborg.api import app, microversion, openapi


class Received(Protocol):
    """An answer, as far as the document describes it."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> Any: ...


@functools.cache
def document(minor: int) -> dict[str, Any]:
    """The document of a microversion, as the API serves it."""
    return openapi.document(app.NOUNS, minor)


def check(method: str, path: str, answer: Received) -> None:
    """Fail if the document does not have the answer's status, or its body has another form."""
    stamp = re.fullmatch(r"accelerator 2\.(\d+)", answer.headers.get(microversion.HEADER, ""))
    place = urlsplit(path).path.removeprefix("/v2").strip("/")
    if stamp is None or method not in ("GET", "POST", "PATCH", "DELETE"):
        return
    for template in sorted(document(int(stamp[1]))["paths"], key=lambda path: path.count("{")):
        pattern = re.sub(r"\{\w+\}", "[^/]+", template.removeprefix("/v2/"))
        if re.fullmatch(pattern, place):
            _compare(int(stamp[1]), template, method.lower(), answer)
            return


def _compare(minor: int, template: str, method: str, answer: Received) -> None:
    operation = document(minor)["paths"][template].get(method)
    if operation is None:
        assert answer.status in (404, 405), (method, template, answer.status)
        return
    if answer.status == 401:
        return
    described = operation["responses"].get(str(answer.status))
    assert described, f"{method} {template} at 2.{minor} has no answer {answer.status}"
    if "content" not in described:
        assert answer.body is None
        return
    errors = list(_validator(minor, template, method, answer.status).iter_errors(answer.body))
    assert not errors, f"{method} {template} at 2.{minor}: {errors[0]}"


@functools.cache
def _validator(minor: int, template: str, method: str, status: int) -> Any:
    whole = document(minor)
    answers = whole["paths"][template][method]["responses"]
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": whole["components"]})

# SPDX-License-Identifier: Apache-2.0
"""Describe the API in OpenAPI 3.1, from the contracts of the handlers.

A document describes one microversion: the resources, parameters and members that it has, and the
limits that validate requests. https://spec.openapis.org/oas/v3.1.1
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cyborg.api import answers, expose, microversion, types
from cyborg.api.expose import IDEMPOTENCY_KEY, Contract, Controller
from cyborg.api.framework import JSON, REQUEST_ID_HEADER
from cyborg.api.viewer import VERSION_SEGMENT

#: Where the API serves the document, below /v2.
FILE = "openapi.json"
_SCHEMAS = "#/components/schemas/"
_FAULT = "Fault"
#: The errors of every request: status and cause.
_ERRORS: Mapping[str, str] = {
    "400": "The request is not valid; the sentence names the field.",
    "403": "Policy does not allow the request.",
    "404": "There is no such object, or no such resource at this microversion.",
    "406": "The microversion does not exist, or the client does not accept JSON.",
    "500": "An unexpected error; the log has the details of the request id.",
    "503": "A service that Cyborg needs does not answer; repeat the request later.",
    "504": "It is not known whether the request was carried out; repeat it unchanged.",
}
_WRITE_ERRORS: Mapping[str, str] = {"409": "The state of the object does not allow the change."}
_BODY_ERRORS: Mapping[str, str] = {
    "413": "The body is larger than a megabyte.",
    "415": "The body is not JSON.",
}


def document(nouns: Iterable[type[Controller]], minor: int) -> dict[str, Any]:
    """Return the description of the resources at microversion 2.``minor``."""
    schemas: dict[str, Any] = {_FAULT: _fault()}
    paths: dict[str, dict[str, Any]] = {}
    for noun in nouns:
        for path, method, contract in operations(noun):
            if contract.since > minor:
                continue
            operation = _operation(path, contract, minor, writes=method != "GET")
            words = path.replace("{", "").replace("}", "").split("/")[2:]
            operation["operationId"] = "_".join([method.lower(), *words])
            operation["tags"] = [noun.collection]
            methods = paths.setdefault(path, {})
            methods[method.lower()] = _shared(operation, schemas)
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "OpenStack Cyborg API",
            "version": f"2.{minor}",
            "description": "Manages the life cycle of hardware accelerators.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The endpoint of the service catalog."}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}
            },
        },
        "security": [{"token": []}],
    }


def operations(noun: type[Controller]) -> Iterator[tuple[str, str, Contract]]:
    """Yield each path of a resource, its methods, and the contracts of their handlers."""
    for pattern, methods in noun.routes.items():
        names = iter(("id", "other_id"))
        parts = [f"{{{next(names)}}}" if part == "*" else part for part in pattern.split("/")]
        path = "/".join(["", VERSION_SEGMENT, noun.collection, *(part for part in parts if part)])
        for method, name in methods.items():
            yield path, method, expose.contract(getattr(noun, name))


def _operation(path: str, contract: Contract, minor: int, *, writes: bool) -> dict[str, Any]:
    summary, _, more = contract.text.partition("\n")
    answers: dict[str, Any] = {str(contract.status): _success(contract, minor)}
    errors = {**_ERRORS, **(_WRITE_ERRORS if writes else {})}
    operation: dict[str, Any] = {
        "summary": summary,
        "description": more.strip(),
        "parameters": [*_path_parameters(path, contract), *_query(contract, minor), _VERSION],
        "x-openstack": {"min-ver": f"2.{contract.since}", "policy": contract.rule},
    }
    if contract.long:
        operation["parameters"].append(_KEY)
    if (body := contract.body_at(minor)) is not None:
        errors |= _BODY_ERRORS
        content = {JSON: {"schema": body.schema}}
        operation["requestBody"] = {"required": True, "content": content}
    for status, cause in (*contract.errors.items(), *errors.items()):
        content = {JSON: {"schema": {"$ref": _SCHEMAS + _FAULT}}}
        answers[status] = {"description": cause, "content": content}
    answers["401"] = {"description": "The token is missing or not valid."}
    operation["responses"] = dict(sorted(answers.items()))
    return operation


def _success(contract: Contract, minor: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": "The operation has started." if contract.long else "The request succeeded.",
        "headers": {REQUEST_ID_HEADER: {"schema": answers.STRING.schema}},
    }
    if contract.long:
        answer["headers"]["Location"] = {"schema": answers.STRING.schema}
    if (kind := contract.answer_at(minor)) is not None:
        answer["content"] = {JSON: {"schema": kind.schema}}
    return answer


def _path_parameters(path: str, contract: Contract) -> Iterator[dict[str, Any]]:
    kinds = iter(contract.path)
    for part in path.split("/"):
        if part.startswith("{"):
            # What has no type is not read; it only has to be there.
            schema = next(kinds, answers.STRING).schema or answers.STRING.schema
            yield {"name": part[1:-1], "in": "path", "required": True, "schema": schema}


def _query(contract: Contract, minor: int) -> Iterator[dict[str, Any]]:
    for name, attribute in types.attributes(contract.query, minor).items():
        schema = types.versioned(attribute.datatype.at(minor), types.first_version(attribute))
        more = {name: schema.pop(name) for name in ("x-openstack",) if name in schema}
        parameter: dict[str, Any] = {"name": name, "in": "query", "schema": schema, **more}
        if attribute.mandatory:
            parameter["required"] = True
        if schema.get("type") == "array":
            parameter |= {"style": "form", "explode": False}
        yield parameter


def _fault() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "``error_message`` is the JSON text of an object with the members "
        "faultcode, faultstring and debuginfo.",
        "properties": {"error_message": {"type": "string", "contentMediaType": JSON}},
        "required": ["error_message"],
    }


def _shared(value: Any, schemas: dict[str, Any]) -> Any:
    """Return a description whose titled objects are references to ``schemas``."""
    if isinstance(value, list):
        return [_shared(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    shared = {name: _shared(item, schemas) for name, item in value.items()}
    title = shared.get("title")
    if not isinstance(title, str):
        return shared
    extra = {name: shared.pop(name) for name in ("x-openstack",) if name in shared}
    if schemas.setdefault(title, shared) != shared:
        raise ValueError(f"there are two different objects {title}")
    return {"$ref": _SCHEMAS + title} | extra


_VERSION: Mapping[str, Any] = {
    "name": microversion.HEADER,
    "in": "header",
    "description": "The microversion; without it, the request has 2.0.",
    "schema": {"type": "string", "examples": [f"accelerator {microversion.MAXIMUM}"]},
}
_KEY: Mapping[str, Any] = {
    "name": IDEMPOTENCY_KEY,
    "in": "header",
    "description": "The id of the operation; a request that is repeated with it starts nothing.",
    "schema": types.UUID_TYPE.schema,
}

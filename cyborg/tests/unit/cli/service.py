# SPDX-License-Identifier: Apache-2.0
"""A fake accelerator service that answers like the REST API and records the requests."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

from cyborg.tests.unit.cli.compute import PATHS, SERVER, Nova

AGENT = "11111111-1111-4111-8111-111111111111"
BACKEND = "22222222-2222-4222-8222-222222222222"
DRIVER = "33333333-3333-4333-8333-333333333333"
DEVICE = "44444444-4444-4444-8444-444444444444"
PROFILE = "55555555-5555-4555-8555-555555555555"
ARQ = "66666666-6666-4666-8666-666666666666"
OPERATION = "77777777-7777-4777-8777-777777777777"
INSTANCE = SERVER

#: What the service has: the list of objects of each collection.
RESOURCES: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("resources.json").read_text()
)
EXPLANATION = {
    "fits": False,
    "satisfiable": "when free",
    "summary": "4 of 4 matching units on host compute-1 wait for the operator.",
    "notes": ["Nova's filters are not asked."],
    "failures": [
        {
            "at": "2026-11-01T10:00:00+00:00",
            "action": "BindFailed",
            "subject_uuid": ARQ,
            "reason": "the image is missing",
            "request_id": "req-7",
        }
    ],
    "steps": [
        {
            "step": "state",
            "group": 0,
            "subject": "units that can be given out now",
            "hosts": 0,
            "units": 0,
            "words": {"inactive": 4},
            "reason": "Units that are not free: 4 inactive.",
        }
    ],
    "hosts": [
        {
            "host": "compute-1",
            "step": "free",
            "reason": "Units that are not free: 4 inactive.",
            "desired": {"total": 4, "reserved": 4},
            "published": {"total": 4, "reserved": 4},
        }
    ],
    "suggestion": None,
}
DRAIN: dict[str, Any] = {
    "host": "compute-1",
    "device": None,
    "status": "draining",
    "reason": None,
    "servers": [
        {
            "uuid": INSTANCE,
            "name": "web-1",
            "status": "ACTIVE",
            "project_id": "p",
            "device_profiles": ["fpga"],
            "devices": [DEVICE],
            "arqs": [ARQ],
            "movable": True,
            "target": "compute-2",
            "reason": "",
        }
    ],
    "notes": ["Nova's filters are not asked."],
}
#: The answer to a request for the usage of a range of time.
USAGE: dict[str, Any] = {
    "usage": [
        {
            "resource_class": "FPGA",
            "type": "FPGA",
            "host": None,
            "project_id": "red",
            "profile": None,
            "instance": None,
            "unit_seconds": 86400.001,
        },
        {
            "resource_class": "VGPU",
            "type": "GPU",
            "host": None,
            "project_id": None,
            "profile": None,
            "instance": None,
            "unit_seconds": 0.25,
        },
    ],
    "start": "2026-11-01T00:00:00.000+00:00",
    "end": "2026-11-02T00:00:00.000+00:00",
    "complete_from": None,
}
PROCESS = RESOURCES["services"][0]
#: The profiles of RESOURCES as a file for profile-apply.
PROFILES = Path(__file__).with_name("profiles.yaml")
#: Path of a collection → its key in RESOURCES, if the two differ.
COLLECTIONS = {"accelerator_requests": "arqs"}


def operation(state: str, *results: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return an operation as the service shows it."""
    return {
        "uuid": OPERATION,
        "verb": "discover",
        "state": state,
        "steps": [],
        "results": list(results),
        "error": None,
        "project_id": "p",
        "user_id": "u",
        "request_id": "req-1",
        "created_at": "2026-11-01T10:00:00Z",
        "finished_at": None,
        "links": [],
    } | more


def result(host: str, state: str, **more: Any) -> dict[str, Any]:
    """Return the result of an operation on one host."""
    return {"host": host, "state": state, "result": None, "error": None} | more


def following(*events: Mapping[str, Any], marker: int = 7, seen: str = "") -> dict[str, Any]:
    """Return an answer to a client that follows the events."""
    href = f"http://api/v2/events?wait=50&marker={marker}{f'&seen={seen}' if seen else ''}"
    return {"events": list(events), "events_links": [{"rel": "next", "href": href}]}


def error_body(message: str) -> dict[str, Any]:
    error = {"faultcode": "Client", "faultstring": message, "debuginfo": None}
    return {"error_message": json.dumps(error)}


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that the service received; ``request_key`` is its idempotency key."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    version: str | None
    request_key: str | None


@dataclass
class Answer:
    """An answer to send instead of the usual one; a ``body`` of bytes is sent unchanged."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Service:
    """A WSGI application.

    ``answers`` maps a path below ``/v2`` to the answers of the next requests for it. The states of
    an operation, poll by poll, are ``operation_states``; the last one is repeated. Without Keystone
    the requests to Nova come here as well.
    """

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.answers: dict[str, list[Answer]] = {}
        self.nova = Nova(profile=None)
        self.operation_states: list[dict[str, Any]] = [
            operation("succeeded", result("compute-1", "succeeded", result={"found": 2}))
        ]

    @property
    def last(self) -> ReceivedRequest:
        return self.requests[-1]

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith(PATHS):
            return self.nova(environ, start_response)
        request = _parse_request(environ)
        self.requests.append(request)
        answer = self._answer(request)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.body is None:
            body = b""
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        reason = HTTPStatus(answer.status).phrase
        start_response(f"{answer.status} {reason}", list((headers | dict(answer.headers)).items()))
        return [body]

    def _answer(self, request: ReceivedRequest) -> Answer:
        if queue := self.answers.get(request.path):
            return queue.pop(0)
        collection, _, rest = request.path.removeprefix("/").partition("/")
        if collection == "operations" and rest:
            return Answer(200, self._next_state())
        if collection == "operations":
            return Answer(200, {"operations": [self.operation_states[-1]]})
        if _starts_operation(request, collection):
            return Answer(202, self._next_state())
        return Answer(*_resource_answer(request, collection, rest))

    def _next_state(self) -> dict[str, Any]:
        states = self.operation_states
        return states.pop(0) if len(states) > 1 else states[0]


def _starts_operation(request: ReceivedRequest, collection: str) -> bool:
    return request.method != "GET" and (
        collection in {"drivers", "instances"}
        or request.path == "/services/discover"
        or (request.method, request.path) == ("POST", "/devices")
        or (request.method, collection) == ("DELETE", "services")
    )


def _resource_answer(request: ReceivedRequest, collection: str, rest: str) -> tuple[int, Any]:
    """Return status and body: an object, a list of objects, or no body for a deletion."""
    key = COLLECTIONS.get(collection, collection)
    resources = RESOURCES.get(key)
    if resources is None:
        return 404, error_body(f"There is no {request.path}.")
    if request.method == "DELETE":
        return 204, None
    if request.method == "POST":
        body = request.body[0] if isinstance(request.body, list) else request.body
        return 201, resources[0] | {"uuid": str(uuid4())} | body
    if collection == "limits":
        return 200, {"limits": resources[0]}
    if rest.endswith("/explain"):
        return 200, {"explanation": EXPLANATION}
    if not rest and "wait" in request.query:
        return 200, following(*resources)
    if rest.endswith("/drain"):
        return 200, {"drain": DRAIN}
    if collection == "usage" and "start" in request.query:
        return 200, USAGE
    if not rest:
        return 200, {key: list(_filtered(resources, request.query))}
    matches = [
        resource for resource in resources if rest in {resource["uuid"], resource.get("name")}
    ]
    if not matches:
        return 404, error_body(f"{collection} {rest} could not be found.")
    resource = matches[0] | (request.body or {})
    wrapped = collection == "device_profiles" and request.method == "GET"
    return 200, {"device_profile": resource} if wrapped else resource


def _filtered(
    resources: Iterable[dict[str, Any]], query: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    filters = {name: query[name] for name in ("kind", "host") if name in query}
    for resource in resources:
        if all(resource.get(name) == value for name, value in filters.items()):
            yield resource


def _parse_request(environ: Any) -> ReceivedRequest:
    raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return ReceivedRequest(
        method=environ["REQUEST_METHOD"],
        path=environ["PATH_INFO"].removeprefix("/v2"),
        query=dict(parse_qsl(environ["QUERY_STRING"])),
        body=json.loads(raw) if raw else None,
        version=environ.get("HTTP_OPENSTACK_API_VERSION"),
        request_key=environ.get("HTTP_IDEMPOTENCY_KEY"),
    )

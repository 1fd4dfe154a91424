# SPDX-License-Identifier: Apache-2.0
"""An accelerator service that answers as the REST API does, and remembers what it was asked."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

AGENT = "11111111-1111-4111-8111-111111111111"
ENGINE = "22222222-2222-4222-8222-222222222222"
DRIVER = "33333333-3333-4333-8333-333333333333"
DEVICE = "44444444-4444-4444-8444-444444444444"
PROFILE = "55555555-5555-4555-8555-555555555555"
ARQ = "66666666-6666-4666-8666-666666666666"
OPERATION = "77777777-7777-4777-8777-777777777777"
INSTANCE = "88888888-8888-4888-8888-888888888888"

PROCESS: dict[str, Any] = {
    "uuid": AGENT,
    "kind": "process",
    "host": "compute-1",
    "binary": "cyborg-agent",
    "state": "up",
    "status": "enabled",
    "disabled_reason": None,
    "version": "18.0.0",
    "endpoint": "cyborg-agent@compute-1",
    "last_seen_at": "2026-11-01T10:00:00Z",
}
THINGS: dict[str, list[dict[str, Any]]] = {
    "services": [
        PROCESS,
        {
            "uuid": ENGINE,
            "kind": "backend",
            "host": "compute-1",
            "driver": "generic_driver",
            "backend": "a",
            "name": "compress",
            "state": "up",
            "last_discovered_at": "2026-11-01T10:00:00Z",
        },
    ],
    "drivers": [
        {
            "uuid": DRIVER,
            "host": "compute-1",
            "name": "fake_driver",
            "state": "READY",
            "version": "18.0.0",
            "type": "FPGA",
            "endpoint": "cyborg.drivers.fake:FakeDriver",
            "enabled": True,
            "options": {"count": "2"},
            "devices": {"found": 2, "offered": 1, "in_use": 1},
            "error": None,
            "discovered_at": "2026-11-01T10:00:00Z",
        }
    ],
    "backends": [
        {
            "uuid": ENGINE,
            "host": "compute-1",
            "driver": "generic_driver",
            "name": "a",
            "state": "up",
            "services": [
                {"name": "compress", "state": "up"},
                {"name": "cipher", "state": "down"},
            ],
            "capabilities": {"ipsec": {"num": 2}},
            "creates": "TEST_PCI",
            "discovered_at": "2026-11-01T10:00:00Z",
        }
    ],
    "hardware": [
        {
            "uuid": DEVICE,
            "hostname": "compute-1",
            "driver": "fake_driver",
            "key": "0000:3b:00.0",
            "acc_specs": {
                "device_type": "CRYPTO",
                "num": 2,
                "remote": 0,
                "acc_capability": {"num": 2, "ipsec": {"num": 1}},
            },
            "acc_status": {
                "setup_required": True,
                "reboot_required": False,
                "reason": "no firmware",
            },
            "offered": False,
        }
    ],
    "devices": [
        {
            "uuid": DEVICE,
            "type": "FPGA",
            "vendor": "0xABCD",
            "model": "miyabi",
            "hostname": "compute-1",
            "std_board_info": '{"product_id": "0x1"}',
            "vendor_board_info": None,
            "status": "enabled",
            "status_reason": None,
            "labels": {"rack": "7"},
            "driver": "fake_driver",
            "backend": "a",
            "address": "0000:3b:00.0",
            "numa_node": 0,
            "resource_classes": ["FPGA"],
            "traits": ["CUSTOM_FPGA_INTEL", "OWNER_CYBORG"],
            "providers": [
                {
                    "uuid": DRIVER,
                    "name": "compute-1_0000:3b:00.0",
                    "resource_class": "FPGA",
                    "total": 4,
                    "reserved": 1,
                    "error": None,
                }
            ],
            "units": {
                "total": 4,
                "used": 2,
                "free": 1,
                "out_of_service": 1,
                "reasons": {"quarantined": 1},
            },
            "holders": [
                {
                    "arq_uuid": ARQ,
                    "instance_uuid": INSTANCE,
                    "instance_name": "web-1",
                    "project_id": "p",
                },
                {
                    "arq_uuid": OPERATION,
                    "instance_uuid": AGENT,
                    "instance_name": "unknown",
                    "project_id": "p",
                },
            ],
            "events": [
                {
                    "id": 7,
                    "at": "2026-11-01T10:00:00.000+00:00",
                    "noun": "arq",
                    "subject_uuid": ARQ,
                    "action": "BindFailed",
                    "state": "BindFailed",
                    "reason": "the card is hot",
                    "request_id": "req-1",
                }
            ],
            "in_use": True,
            "instances": [
                {
                    "uuid": INSTANCE,
                    "name": "web-1",
                    "status": "ACTIVE",
                    "seen_at": "2026-11-01T10:00:00.000+00:00",
                },
                {"uuid": AGENT, "name": "unknown", "status": "unknown", "seen_at": None},
            ],
            "created_at": "2026-11-01T10:00:00Z",
            "updated_at": None,
            "links": [{"href": "http://x/devices/1", "rel": "self"}],
        }
    ],
    "device_profiles": [
        {
            "uuid": PROFILE,
            "name": "fpga",
            "description": None,
            "groups": [{"resources:FPGA": "1"}],
            "created_at": "2026-11-01T10:00:00Z",
            "updated_at": None,
            "links": [],
        }
    ],
    "arqs": [
        {
            "uuid": ARQ,
            "state": "Bound",
            "device_profile_name": "fpga",
            "instance_uuid": INSTANCE,
            "attach_handle_type": "PCI",
            "attach_handle_info": {"bus": "3b"},
            "hostname": "compute-1",
            "device_rp_uuid": DEVICE,
        }
    ],
    "usage": [
        {
            "resource_class": "FPGA",
            "type": None,
            "host": "compute-1",
            "project_id": None,
            "total": 7,
            "used": 2,
            "free": 4,
            "out_of_service": 1,
            "reasons": {"driver_not_ready": 1},
        }
    ],
    "events": [
        {
            "id": 7,
            "at": "2026-11-01T10:00:00.000+00:00",
            "noun": "arq",
            "subject_uuid": ARQ,
            "action": "Bound",
            "state": "Bound",
            "reason": None,
            "device_uuid": DEVICE,
            "host": "compute-1",
            "instance_uuid": INSTANCE,
            "request_id": "req-99999999-9999-4999-8999-999999999999",
            "global_request_id": None,
            "operation_uuid": OPERATION,
            "project_id": "p",
            "user_id": "u",
        }
    ],
}
#: Path of a collection → its key in THINGS, where the two differ.
COLLECTIONS = {"accelerator_requests": "arqs"}


def operation(state: str, *results: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An operation as the service shows it."""
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
    """What an operation did on a host."""
    return {"host": host, "state": state, "result": None, "error": None} | more


def fault(sentence: str) -> dict[str, Any]:
    """The body of an error."""
    said = {"faultcode": "Client", "faultstring": sentence, "debuginfo": None}
    return {"error_message": json.dumps(said)}


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    version: str | None
    operation: str | None


@dataclass
class Answer:
    """What goes out instead of the thing itself; ``body`` bytes go as they are."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Service:
    """A WSGI application; ``answers`` are taken first, for a path below ``/v2``, in order.

    ``course`` is how the operation of any long verb goes on, look by look.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, list[Answer]] = {}
        self.course: list[dict[str, Any]] = [
            operation("succeeded", result("compute-1", "succeeded", result={"found": 2}))
        ]

    @property
    def last(self) -> Asked:
        """The request that came last."""
        return self.asked[-1]

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        asked = _asked(environ)
        self.asked.append(asked)
        answer = self._answer(asked)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.body is None:
            body = b""
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        reason = HTTPStatus(answer.status).phrase
        start_response(f"{answer.status} {reason}", list((headers | dict(answer.headers)).items()))
        return [body]

    def _answer(self, asked: Asked) -> Answer:
        if queue := self.answers.get(asked.path):
            return queue.pop(0)
        collection, _, rest = asked.path.removeprefix("/").partition("/")
        if collection == "operations" and rest:
            return Answer(200, self.course.pop(0) if len(self.course) > 1 else self.course[0])
        if collection == "operations":
            return Answer(200, {"operations": [self.course[-1]]})
        if self._long(asked, collection):
            return Answer(202, self.course.pop(0) if len(self.course) > 1 else self.course[0])
        return Answer(*_plain(asked, collection, rest))

    @staticmethod
    def _long(asked: Asked, collection: str) -> bool:
        return asked.method != "GET" and (
            collection in {"drivers", "instances"}
            or asked.path == "/services/discover"
            or (asked.method, asked.path) == ("POST", "/devices")
            or (asked.method, collection) == ("DELETE", "services")
        )


def _plain(asked: Asked, collection: str, rest: str) -> tuple[int, Any]:
    """A thing, a list of things, or nothing for what was deleted."""
    things = THINGS.get(COLLECTIONS.get(collection, collection))
    if things is None:
        return 404, fault(f"There is no {asked.path}.")
    if asked.method == "DELETE":
        return 204, None
    if asked.method == "POST":
        sent = asked.body[0] if isinstance(asked.body, list) else asked.body
        return 201, things[0] | {"uuid": str(uuid4())} | sent
    if not rest:
        return 200, {COLLECTIONS.get(collection, collection): list(_fitting(things, asked.query))}
    found = [one for one in things if rest in {one["uuid"], one.get("name")}]
    if not found:
        return 404, fault(f"{collection} {rest} could not be found.")
    shown = found[0] | (asked.body or {})
    return 200, {"device_profile": shown} if _wrapped(asked, collection) else shown


def _wrapped(asked: Asked, collection: str) -> bool:
    return collection == "device_profiles" and asked.method == "GET"


def _fitting(
    things: Iterable[dict[str, Any]], query: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    wanted = {name: query[name] for name in ("kind", "host") if name in query}
    yield from (one for one in things if all(one.get(n) == value for n, value in wanted.items()))


def _asked(environ: Any) -> Asked:
    raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return Asked(
        method=environ["REQUEST_METHOD"],
        path=environ["PATH_INFO"].removeprefix("/v2"),
        query=dict(parse_qsl(environ["QUERY_STRING"])),
        body=json.loads(raw) if raw else None,
        version=environ.get("HTTP_OPENSTACK_API_VERSION"),
        operation=environ.get("HTTP_IDEMPOTENCY_KEY"),
    )

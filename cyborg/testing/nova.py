# SPDX-License-Identifier: Apache-2.0
"""A simulated Nova API: takes external events as scripted and records what it was told.

It checks what the real one checks (microversion, schema), and answers as its documented codes
say: 200 when all events are accepted, 207 with a code for each when not. Its servers are those of
``cyborg.testing.guests``.
"""

import json
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs
from uuid import UUID

from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth

from cyborg.clients.keystone import Session
from cyborg.testing.guests import Guest, Guests
from cyborg.testing.loopback import Loopback

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_EVENT_KEYS = {"name", "server_uuid", "tag", "status"}
_PHRASES = {
    200: "OK",
    202: "Accepted",
    207: "Multi-Status",
    400: "Bad Request",
    404: "Not Found",
    409: "Conflict",
}


@dataclass(frozen=True)
class Received:
    """One accelerator event that arrived, refused ones included, and how it was answered."""

    server_uuid: str
    tag: str
    status: str
    code: int


@dataclass(frozen=True)
class EventCall:
    """One POST of external events: microversion header, token, and its events."""

    microversion: str
    token: str
    events: tuple[Received, ...]


class Shows:
    """The GETs of single servers: which there were, and what a test makes of those to come."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._status: int | None = None
        self._asked: list[str] = []

    @property
    def asked(self) -> tuple[str, ...]:
        """The servers that were asked for, in the order in which the requests came."""
        return tuple(self._asked)

    def fail(self, status: int | None) -> None:
        """Answer with this status from now on; None: as it is."""
        self._status = status

    def hold(self) -> None:
        """Leave requests without an answer until ``release``."""
        self._open.clear()

    def release(self) -> None:
        """Answer those that are held, and the later ones."""
        self._open.set()

    def answer(self, instance: str) -> tuple[int, dict[str, Any]] | None:
        """The answer that was wished for, when its time has come; None: as it is."""
        self._asked.append(instance)
        self._open.wait()
        status = self._status
        if status is None:
            return None
        return status, {"scripted": {"code": status, "message": "As the script says."}}


class SimulatedNova:
    """A context manager, or start and stop. All that it is told, it may be told while running."""

    def __init__(self, port: int = 0) -> None:
        self._loopback = Loopback(self._application, port=port)
        self._changed = threading.Condition()
        self._codes: dict[str, int] = {}
        self.guests = Guests()
        self._sees_all = True
        self._whole: deque[int] = deque()
        self._open = threading.Event()
        self._open.set()
        self.shows = Shows()
        self._calls: list[EventCall] = []

    @property
    def url(self) -> str:
        """The endpoint, version included."""
        return f"{self._loopback.url}/v2.1"

    def adapter(self, timeout: float | None = None) -> Adapter:
        """A new adapter that sends no real token; ``timeout`` in seconds."""
        session = Session(auth=NoAuth(endpoint=self.url), timeout=timeout)
        return Adapter(session, service_type="compute")

    def start(self) -> None:
        """Answer from now on."""
        self._loopback.start()

    def stop(self) -> None:
        """Close the port and let go whoever is held."""
        self._open.set()
        self.shows.release()
        self._loopback.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def answer_instance(self, instance: str, code: int) -> None:
        """From now on answer events of this instance with ``code`` (200, 404, 422, 400)."""
        self._codes[instance] = code

    def answer_calls(self, *statuses: int) -> None:
        """Answer the next calls as a whole with these statuses, nothing accepted."""
        self._whole.extend(statuses)

    def hold(self) -> None:
        """Leave calls without an answer until ``release`` or ``stop``."""
        self._open.clear()

    def release(self) -> None:
        """Answer the calls that are held, and the later ones."""
        self._open.set()

    def own(
        self, instance: str, project: str, node: str | None = None, profile: str | None = None
    ) -> Guest:
        """Let this server exist, in this project, on this node, with a flavor of this profile."""
        return self.guests.put(instance, Guest(project, node, profile))

    def disown(self, instance: str) -> None:
        """This server is deleted."""
        self.guests.drop(instance)

    def hide_servers(self) -> None:
        """The account may not list other projects' servers any more."""
        self._sees_all = False

    @property
    def calls(self) -> tuple[EventCall, ...]:
        """All calls so far that were well formed, whole refusals included."""
        with self._changed:
            return tuple(self._calls)

    @property
    def events(self) -> tuple[Received, ...]:
        """All events so far, in the order of their arrival."""
        return tuple(event for call in self.calls for event in call.events)

    def wait_for_events(self, tags: Iterable[str], timeout: float) -> dict[str, str]:
        """The status by tag, once all of ``tags`` were accepted (code 200).

        Raises TimeoutError after ``timeout`` seconds.
        """
        wanted = set(tags)
        with self._changed:
            if not self._changed.wait_for(lambda: wanted <= self._accepted().keys(), timeout):
                raise TimeoutError(f"no event for {sorted(wanted - self._accepted().keys())}")
            return {tag: status for tag, status in self._accepted().items() if tag in wanted}

    def wait_for_calls(self, count: int, timeout: float) -> tuple[EventCall, ...]:
        """All calls, once there are ``count``. Raises TimeoutError after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._calls) >= count, timeout):
                raise TimeoutError(f"{len(self._calls)} calls of {count}")
            return tuple(self._calls)

    def _accepted(self) -> dict[str, str]:
        return {
            event.tag: event.status
            for call in self._calls
            for event in call.events
            if event.code == 200
        }

    def _application(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> list[bytes]:
        status, body = self._answer(environ)
        phrase = _PHRASES.get(status, "Scripted")
        start_response(f"{status} {phrase}", [("Content-Type", "application/json")])
        return [json.dumps(body).encode()]

    def _answer(self, environ: "WSGIEnvironment") -> tuple[int, dict[str, Any]]:
        path = environ["PATH_INFO"].removeprefix("/v2.1")
        if path == "/os-server-external-events" and environ["REQUEST_METHOD"] == "POST":
            return self._take(_body(environ), environ)
        if path == "/servers":
            return self._list(parse_qs(environ.get("QUERY_STRING", "")))
        instance, _, rest = path.removeprefix("/servers/").partition("/")
        if environ["REQUEST_METHOD"] == "POST" and rest == "action":
            return self.guests.act(instance, _body(environ))
        return self.shows.answer(instance) or self.guests.show(instance)

    def _list(self, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if query.get("all_tenants") != ["True"] or not self._sees_all:
            return 403, {"forbidden": {"code": 403, "message": "Policy doesn't allow it."}}
        known = self.guests.uuids()
        after = query.get("marker", [""])[0]
        page = [one for one in known if one > after][: int(query["limit"][0])]
        return 200, {"servers": [{"id": one} for one in page]}

    def _take(self, body: Any, environ: "WSGIEnvironment") -> tuple[int, dict[str, Any]]:
        microversion = environ.get("HTTP_OPENSTACK_API_VERSION", "")
        flaw = _flaw(body, microversion)
        if flaw is not None:
            return 400, {"badRequest": {"code": 400, "message": flaw}}
        whole = self._whole.popleft() if self._whole else None
        received = tuple(self._received(event, whole) for event in body["events"])
        token = environ.get("HTTP_X_AUTH_TOKEN", "")
        with self._changed:
            self._calls.append(EventCall(microversion, token, received))
            self._changed.notify_all()
        self._open.wait()
        if whole is not None:
            return whole, {"scripted": {"code": whole, "message": "As the script says."}}
        answers = [
            _verdict(event, one.code) for event, one in zip(body["events"], received, strict=True)
        ]
        mixed = any(one.code != 200 for one in received)
        return 207 if mixed else 200, {"events": answers}

    def _received(self, event: dict[str, str], whole: int | None) -> Received:
        instance = event["server_uuid"]
        code = whole or self._codes.get(instance, 200)
        return Received(instance, event["tag"], event.get("status", "completed"), code)


def _body(environ: "WSGIEnvironment") -> Any:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    return json.loads(environ["wsgi.input"].read(length))


def _verdict(event: dict[str, str], code: int) -> dict[str, Any]:
    return {**event, "code": code, "status": event.get("status") if code == 200 else "failed"}


def _flaw(body: Any, microversion: str) -> str | None:
    """What the real one's schema would object to."""
    service, _, version = microversion.partition(" ")
    if service != "compute" or tuple(int(part) for part in version.split(".")) < (2, 82):
        return f"accelerator-request-bound needs compute 2.82, not {microversion!r}"
    events = body.get("events") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(events, list) or not events:
        return "events: a list with at least one entry is needed"
    for event in events:
        if not isinstance(event, dict) or event.keys() - _EVENT_KEYS:
            return f"events: {event!r}"
        if event.get("name") != "accelerator-request-bound" or not event.get("tag"):
            return f"name and tag: {event!r}"
        if event.get("status", "completed") not in ("completed", "failed", "in-progress"):
            return f"status: {event!r}"
        try:
            UUID(event["server_uuid"])
        except (KeyError, ValueError):
            return f"server_uuid: {event!r}"
    return None

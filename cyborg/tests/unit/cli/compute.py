# SPDX-License-Identifier: Apache-2.0
"""A fake Nova with one server, which shelves and unshelves as a script says."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final

SERVER: Final = "88888888-8888-4888-8888-888888888888"
#: The prefix of all paths.
PREFIX: Final = "/v2.1"
#: What the paths of Nova begin with.
PATHS: Final = ("/servers", "/os-services")


@dataclass(frozen=True)
class State:
    """What Nova shows of the server."""

    status: str = "ACTIVE"
    host: str | None = "c1"
    task: str | None = None
    fault: str = ""


OFFLOADED: Final = State("SHELVED_OFFLOADED", None)
#: Action → what it makes of the state, given the state and the arguments.
Actions = dict[str, Callable[[State, Any], State]]


def _unshelved(_state: State, arguments: Any) -> State:
    return State(host=arguments["host"])


@dataclass
class Nova:
    """A WSGI application; each action shows a task once, and then its result.

    ``refusals`` are statuses for the next requests of a method and path, with the message.
    """

    state: State = field(default_factory=State)
    profile: str | None = "fpga"
    actions: Actions = field(
        default_factory=lambda: {
            "shelve": lambda _state, _arguments: OFFLOADED,
            "shelveOffload": lambda _state, _arguments: OFFLOADED,
            "unshelve": _unshelved,
            "os-stop": lambda state, _arguments: replace(state, status="SHUTOFF"),
        }
    )
    services: list[dict[str, str]] = field(
        default_factory=lambda: [{"host": "c2", "state": "up", "status": "enabled"}]
    )
    names: list[dict[str, str]] = field(default_factory=lambda: [{"id": SERVER, "name": "vm"}])
    #: What was done with the server, the newest first; and the host on which it was shelved.
    history: list[str] = field(default_factory=lambda: ["reboot", "shelve"])
    shelved_on: str | None = "c1"
    refusals: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    #: The member that only administrators see.
    is_admin: bool = True
    #: The states that the next GETs show before that of ``state``.
    pending: list[State] = field(default_factory=list)
    #: All requests: the method and the path, or an action with its arguments.
    requests: list[Any] = field(default_factory=list)

    @property
    def performed(self) -> list[Any]:
        """The actions, in order."""
        return [request for request in self.requests if isinstance(request, tuple)]

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(PREFIX)
        assert environ["HTTP_OPENSTACK_API_VERSION"] == "compute 2.91"
        status, body = self._answer(method, path, json.loads(raw) if raw else None)
        start_response(
            f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "application/json")]
        )
        return [b"" if body is None else json.dumps(body).encode()]

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}" if body is None else next(iter(body.items())))
        key = f"{method} {path}" if body is None else next(iter(body))
        if self.refusals.get(key):
            status, message = self.refusals[key].pop(0)
            return status, {"fault": {"code": status, "message": message}}
        if path == "/os-services":
            return 200, {"services": self.services}
        if path == "/servers":
            return 200, {"servers": self.names}
        if path == f"/servers/{SERVER}/action":
            ((action, arguments),) = body.items()
            self.pending.append(replace(self.state, task=f"{action}ing".lower()))
            self.state = self.actions[action](self.state, arguments)
            return 202, None
        if path == f"/servers/{SERVER}/os-instance-actions":
            actions = [{"action": action, "request_id": f"req-{action}"} for action in self.history]
            return 200, {"instanceActions": actions}
        if path == f"/servers/{SERVER}/os-instance-actions/req-shelve":
            event = {"event": "compute_shelve_instance", "host": self.shelved_on}
            return 200, {"instanceAction": {"events": [event]}}
        if path == f"/servers/{SERVER}":
            return 200, {"server": self._shown(self.pending.pop(0) if self.pending else self.state)}
        return 404, {"itemNotFound": {"code": 404, "message": f"{path} could not be found."}}

    def _shown(self, state: State) -> dict[str, Any]:
        extra = {} if self.profile is None else {"accel:device_profile": self.profile}
        shown = {
            "id": SERVER,
            "name": "vm",
            "status": state.status,
            "OS-EXT-STS:task_state": state.task,
            "flavor": {"original_name": "g.small", "extra_specs": extra},
        }
        if state.fault:
            shown["fault"] = {"message": state.fault}
        return shown | ({"OS-EXT-SRV-ATTR:host": state.host} if self.is_admin else {})

# SPDX-License-Identifier: Apache-2.0
"""Clients of the API with an identity, as keystonemiddleware would have confirmed it."""

import json
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import webtest

from cyborg.tests.fixtures.stack import Stack

_IMPLIED = {
    "admin": "admin,manager,member,reader",
    "operator": "accelerator_operator,member,reader",
    "manager": "manager,member,reader",
    "member": "member,reader",
    "reader": "reader",
    "service": "service",
}


@dataclass(frozen=True)
class Client:
    """One user of one project; ``service`` adds a valid service token to every request."""

    app: webtest.TestApp
    role: str = "member"
    project: str = field(default_factory=lambda: uuid4().hex)
    service: bool = False
    version: str | None = None
    #: What this user calls the long verbs that it asks for.
    key: str | None = None

    def with_service_token(self) -> "Client":
        """The same user, asking through Nova."""
        return replace(self, service=True)

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        """The JSON answer of a GET."""
        answer = self.app.get(
            f"/v2{path}", query, headers=self._headers(), status=status, expect_errors=True
        )
        return answer.json

    def post(self, path: str, body: Any = None, status: int = 201) -> Any:
        """The JSON answer of a POST (None when it is empty)."""
        return self._send("POST", path, body, status)

    def patch(self, path: str, body: Any, status: int = 202) -> Any:
        """The JSON answer of a PATCH (None when it is empty)."""
        return self._send("PATCH", path, body, status)

    def delete(self, path: str, status: int = 204) -> Any:
        """The JSON answer of a DELETE (None when it is empty)."""
        return self._send("DELETE", path, None, status)

    def send(self, method: str, path: str, body: Any, status: int) -> Any:
        """The JSON answer of any request with a body (None when it is empty)."""
        return self._send(method, path, body, status)

    def make_profile(self, *groups: dict[str, str]) -> str:
        """The name of a new device profile with these groups."""
        name = f"profile-{uuid4().hex[:12]}"
        self.post("/device_profiles", [{"name": name, "groups": list(groups)}])
        return name

    def answer(self, method: str, path: str, body: Any = None) -> int:
        """The status of a request, whatever it is."""
        return int(self._request(method, path, body).status_int)

    def _send(self, method: str, path: str, body: Any, status: int) -> Any:
        answer = self._request(method, path, body)
        assert answer.status_int == status, f"{answer.status}: {answer.text}"
        return answer.json if answer.body else None

    def _request(self, method: str, path: str, body: Any) -> Any:
        return self.app.request(
            f"/v2{path}",
            method=method,
            body=b"" if body is None else json.dumps(body).encode(),
            content_type="application/json",
            headers=self._headers(),
            expect_errors=True,
        )

    def _headers(self) -> dict[str, str]:
        headers = _identity(self.role, self.project, self.service)
        if self.version:
            headers["OpenStack-API-Version"] = f"accelerator {self.version}"
        if self.key:
            headers["Idempotency-Key"] = self.key
        return headers


def _identity(role: str, project: str, service: bool) -> dict[str, str]:
    headers = {
        "X-Identity-Status": "Confirmed",
        "X-Roles": _IMPLIED[role],
        "X-Project-Id": project,
        "X-User-Id": f"user-of-{project}"[:32],
    }
    if service:
        headers |= {"X-Service-Roles": "service", "X-Service-Identity-Status": "Confirmed"}
    return headers


class TokenReader:
    """A WSGI filter in keystonemiddleware's place: a token says ``role:project``.

    Any service token is a valid one.
    """

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        role, _, project = environ["HTTP_X_AUTH_TOKEN"].partition(":")
        with_service = "HTTP_X_SERVICE_TOKEN" in environ
        for name, value in _identity(role, project, with_service).items():
            environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        return self._application(environ, start_response)


def bind_body(arqs: list[dict[str, Any]], host: str, provider: str, instance: str) -> Any:
    """The body of Nova's PATCH: every ARQ to one provider for one instance."""
    fields = {"hostname": host, "device_rp_uuid": provider, "instance_uuid": instance}
    return {
        arq["uuid"]: [
            {"path": f"/{name}", "op": "add", "value": value} for name, value in fields.items()
        ]
        for arq in arqs
    }


def unbind_body(arqs: list[dict[str, Any]]) -> Any:
    """The body that takes ARQs off their instance."""
    names = ("hostname", "device_rp_uuid", "instance_uuid")
    return {arq["uuid"]: [{"path": f"/{name}", "op": "remove"} for name in names] for arq in arqs}


def open_client(stack: Stack, role: str = "member", **more: Any) -> Client:
    """Return a client of a new API of this process."""
    return Client(webtest.TestApp(stack.make_open_api()), role, **more)

# SPDX-License-Identifier: Apache-2.0
"""Nova's client of the accelerator API: the six requests that Nova 34 sends, and no others.

No microversion header ever; the user's token, with Nova's service token beside it; a status below
400 is success, and what else comes back is what Nova makes of it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import requests


class NovaFault(Exception):
    """What makes Nova fail the operation; ``status`` is the answer that did it, if any did."""

    def __init__(self, operation: str, reason: str, status: int | None = None) -> None:
        super().__init__(f"{operation}: {reason}")
        self.operation = operation
        self.status = status


@dataclass(frozen=True)
class Exchange:
    """One request to the accelerator API and its answer; JSON bodies parsed, None if empty."""

    method: str
    path: str
    body: Any
    status: int
    answer: Any


class AcceleratorClient:
    """The six requests (``/v2`` included in ``url``); each hands its exchange to ``listener``."""

    def __init__(
        self,
        url: str,
        user_token: str | None = None,
        service_token: str | None = None,
        listener: Callable[[Exchange], None] = lambda _exchange: None,
    ) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.headers["Accept"] = "application/json"
        for name, token in (("X-Auth-Token", user_token), ("X-Service-Token", service_token)):
            if token is not None:
                self._session.headers[name] = token
        self._listener = listener

    def groups(self, profile: str) -> list[dict[str, str]]:
        """N1: the groups of the one profile of this name."""
        found = self._send("GET", "/device_profiles", {"name": profile})
        if not isinstance(found, dict) or len(found.get("device_profiles", ())) != 1:
            raise NovaFault("device profile", f"{profile} is not exactly one: {found}")
        groups: list[dict[str, str]] = found["device_profiles"][0]["groups"]
        return groups

    def create(self, profile: str) -> list[dict[str, Any]]:
        """N2: new requests for a profile, at least one."""
        found = self._send("POST", "/accelerator_requests", body={"device_profile_name": profile})
        if not isinstance(found, dict) or not found.get("arqs"):
            raise NovaFault("create", f"no accelerator requests for {profile}")
        arqs: list[dict[str, Any]] = found["arqs"]
        return arqs

    def bind(self, instance: str, host: str, providers: Mapping[str, str]) -> None:
        """N3: bind all requests of an instance at once; ``providers`` by request."""
        body = {
            arq: [
                {"path": "/hostname", "op": "add", "value": host},
                {"path": "/device_rp_uuid", "op": "add", "value": provider},
                {"path": "/instance_uuid", "op": "add", "value": instance},
            ]
            for arq, provider in providers.items()
        }
        self._send("PATCH", "/accelerator_requests", body=body)

    def arqs_of(self, instance: str) -> list[dict[str, Any]]:
        """N4: the requests of an instance; none is an error."""
        found = self._send("GET", "/accelerator_requests", {"instance": instance})
        if not isinstance(found, dict) or not found.get("arqs"):
            raise NovaFault("get", f"{instance} returned no accelerator requests")
        arqs: list[dict[str, Any]] = found["arqs"]
        return arqs

    def delete_of(self, instance: str) -> None:
        """N6a: delete the requests of an instance."""
        self._send("DELETE", "/accelerator_requests", {"instance": instance})

    def delete(self, arqs: Iterable[str]) -> None:
        """N6b: delete these requests; Nova only logs an error of this one."""
        try:
            self._send("DELETE", "/accelerator_requests", {"arqs": ",".join(arqs)})
        except NovaFault as fault:
            if fault.status is None:
                raise

    def _send(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        wire = "&".join(f"{key}={value}" for key, value in (query or {}).items())
        full = f"{path}?{wire}" if wire else path
        try:
            answer = self._session.request(
                method, self._url + full, json=body, allow_redirects=False
            )
        except requests.RequestException as fault:
            raise NovaFault(f"{method} {path}", "could not communicate") from fault
        parsed = _parsed(answer)
        self._listener(Exchange(method, full, body, answer.status_code, parsed))
        if answer.status_code >= 400:
            raise NovaFault(f"{method} {path}", answer.text, answer.status_code)
        return parsed


def _parsed(answer: requests.Response) -> Any:
    try:
        return answer.json() if answer.content else None
    except ValueError:
        return answer.text

# SPDX-License-Identifier: Apache-2.0
"""A proxy of an HTTP service that forwards, refuses or holds requests."""

import json
import threading
from collections.abc import Iterable
from http.client import responses
from typing import TYPE_CHECKING

import requests

from cyborg.tests.fixtures.loopback import LoopbackService

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_PASSED_ON = ("HTTP_X_AUTH_TOKEN", "HTTP_OPENSTACK_API_VERSION", "HTTP_ACCEPT", "CONTENT_TYPE")
#: Those of the answer that belong to a connection, or to a body as it was on the wire.
_LEFT_OUT = {"connection", "content-encoding", "content-length", "date", "server"}
_WRITES = {"POST", "PUT", "PATCH", "DELETE"}


class Front(LoopbackService):
    """A proxy of the service at ``origin`` (scheme and authority); a context manager.

    ``met`` is the number of requests that were refused or held.
    """

    def __init__(self, origin: str) -> None:
        super().__init__(self._application)
        self._origin = origin
        self._writes_only = False
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.met = 0
        self.heal()

    def refuse(self, status: int, *, writes_only: bool = False) -> None:
        self._writes_only = writes_only
        self._status = status

    def hold(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._status = 0
        self._open.set()

    def stop(self) -> None:
        self.heal()
        super().stop()

    def _application(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status = self._status
        if status and (not self._writes_only or environ["REQUEST_METHOD"] in _WRITES):
            self._count()
            # In the form of OpenStack's guidelines; the code is Placement's for a conflict.
            code = "placement.concurrent_update" if status == 409 else "placement.undefined_code"
            error = {"status": status, "code": code, "title": responses[status], "detail": ""}
            headers = [("Content-Type", "application/json")]
            start_response(f"{status} {responses[status]}", headers)
            return [json.dumps({"errors": [error]}).encode()]
        if not self._open.is_set():
            self._count()
            self._open.wait()
        query = environ.get("QUERY_STRING", "")
        answer = requests.request(
            environ["REQUEST_METHOD"],
            f"{self._origin}{environ['PATH_INFO']}" + (f"?{query}" if query else ""),
            data=body or None,
            headers={
                name.removeprefix("HTTP_").replace("_", "-"): environ[name]
                for name in _PASSED_ON
                if environ.get(name)
            },
            timeout=60,
        )
        headers = [
            (name, text) for name, text in answer.headers.items() if name.lower() not in _LEFT_OUT
        ]
        start_response(f"{answer.status_code} {answer.reason}", headers)
        return [answer.content]

    def _count(self) -> None:
        with self._lock:
            self.met += 1

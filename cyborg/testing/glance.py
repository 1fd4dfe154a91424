# SPDX-License-Identifier: Apache-2.0
"""A simulated Glance API: a few images with properties and data, and faults on demand."""

import hashlib
import json
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl

from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth

from cyborg.clients.keystone import Session
from cyborg.testing.loopback import Loopback

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


@dataclass(frozen=True)
class Image:
    """An image; ``data`` None is one that nobody uploaded to yet."""

    properties: dict[str, Any]
    data: bytes | None


class SimulatedGlance:
    """A context manager, or start and stop. Images may be added while it runs."""

    def __init__(self, port: int = 0) -> None:
        self._loopback = Loopback(self._application, port=port)
        self._images: dict[str, Image] = {}
        self._statuses: deque[int] = deque()
        self._damaged = 0
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        """The endpoint as catalogues hold it, without a version."""
        return self._loopback.url

    def adapter(self) -> Adapter:
        """A new adapter that sends no real token."""
        return Adapter(Session(auth=NoAuth(endpoint=self.url)), service_type="image")

    def start(self) -> None:
        """Answer from now on."""
        self._loopback.start()

    def stop(self) -> None:
        """Close the port."""
        self._loopback.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def add(self, data: bytes | None, **properties: Any) -> str:
        """A new image; ``properties`` beside those that Glance makes itself. Returns its uuid."""
        image = str(uuid.uuid4())
        made: dict[str, Any] = {"id": image, "status": "queued" if data is None else "active"}
        if data is not None:
            made |= {
                "size": len(data),
                "os_hash_algo": "sha512",
                "os_hash_value": hashlib.sha512(data).hexdigest(),
            }
        self._images[image] = Image(made | properties, data)
        return image

    def answer_calls(self, *statuses: int) -> None:
        """Answer the next calls with these statuses."""
        self._statuses.extend(statuses)

    def damage_downloads(self, count: int) -> None:
        """Change one byte of each of the next ``count`` downloads."""
        self._damaged = count

    def _application(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> list[bytes]:
        path = environ["PATH_INFO"]
        self.requests.append(f"{environ['REQUEST_METHOD']} {path}")
        if path == "/v2/images" and not self._statuses:
            status, body = 200, self._listed(dict(parse_qsl(environ["QUERY_STRING"])))
        else:
            status, body = self._answer(path.removeprefix("/v2/images/"))
        kind = "application/octet-stream" if path.endswith("/file") else "application/json"
        start_response(
            f"{status} Scripted", [("Content-Type", kind), ("Content-Length", str(len(body)))]
        )
        return [body]

    def _listed(self, query: dict[str, str]) -> bytes:
        """The images whose properties have these values."""
        images = [
            one.properties
            for one in self._images.values()
            if all(one.properties.get(name) == value for name, value in query.items())
        ]
        return json.dumps({"images": images}).encode()

    def _answer(self, path: str) -> tuple[int, bytes]:
        if self._statuses:
            return self._statuses.popleft(), b""
        name, _, rest = path.partition("/")
        image = self._images.get(name)
        if image is None:
            return 404, b"{}"
        if rest != "file":
            return 200, json.dumps(image.properties).encode()
        if image.data is None:
            return 204, b""
        if self._damaged:
            self._damaged -= 1
            return 200, bytes([image.data[0] ^ 1]) + image.data[1:]
        return 200, image.data

# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Glance: images without data, as many as Nova makes and deletes.

Nova's fake virt driver neither reads an image nor uploads one. So the snapshots of shelved servers
stay queued, which Nova does not mind.
"""

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from cyborg.tests.fixtures.loopback import LoopbackService

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: The members that are no properties of the image's owner.
_BASE: Final = (
    *("id", "name", "status", "visibility", "owner", "created_at", "updated_at", "size"),
    *("checksum", "disk_format", "container_format", "min_disk", "min_ram", "protected", "tags"),
)
_TIME: Final = "2026-01-01T00:00:00Z"


class Images(LoopbackService):
    """A context manager, or start and stop; ``base`` is an image that servers boot from."""

    def __init__(self) -> None:
        super().__init__(self._application)
        self._images: dict[str, dict[str, Any]] = {}
        self.base: str = self._make({"name": "base", "status": "active", "visibility": "public"})[
            "id"
        ]

    @property
    def snapshots(self) -> list[str]:
        """The names of the images that Nova has made and not deleted yet."""
        return [image["name"] for id_, image in self._images.items() if id_ != self.base]

    def _make(self, members: dict[str, Any]) -> dict[str, Any]:
        defaults = {"status": "queued", "size": None, "created_at": _TIME, "updated_at": _TIME}
        formats = {"disk_format": "raw", "container_format": "bare", "min_disk": 0, "min_ram": 0}
        id_ = str(uuid4())
        self._images[id_] = defaults | formats | members | {"id": id_}
        return self._images[id_]

    def _application(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, answer = self._answer(environ["REQUEST_METHOD"], environ["PATH_INFO"], body)
        start_response(status, [("Content-Type", "application/json")])
        return [b"" if answer is None else json.dumps(answer).encode()]

    def _answer(self, method: str, path: str, body: bytes) -> tuple[str, Any]:
        noun, _, rest = path.removeprefix("/v2/").partition("/")
        id_, _, more = rest.partition("/")
        if noun == "schemas":
            properties: dict[str, Any] = {name: {} for name in _BASE} if rest == "image" else {}
            return "200 OK", {"name": rest, "properties": properties, "additionalProperties": {}}
        if method == "POST" and not rest:
            return "201 Created", self._make(json.loads(body))
        image = self._images.get(id_)
        if image is None:
            return "404 Not Found", {}
        if more == "members":
            return "200 OK", {"image_id": id_, **json.loads(body), "status": "pending"}
        if method == "DELETE":
            del self._images[id_]
            return "204 No Content", None
        return "200 OK", image

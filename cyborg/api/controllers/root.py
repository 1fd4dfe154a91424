# SPDX-License-Identifier: Apache-2.0
"""Route a path to its resource: the root, /v2, and paths without a version, which act as /v2."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import webob
import webob.exc

from cyborg.api import expose, microversion, openapi
from cyborg.api.framework import ROUTE, Noun, Request, Routes, handler
from cyborg.api.viewer import VERSION_SEGMENT, Links

_V2: Final = frozenset({VERSION_SEGMENT, f"{VERSION_SEGMENT}.json"})
_OTHER_VERSION: Final = re.compile(r"v[0-9]+(\.[0-9]+)?(\.json)?")


class Root(Noun):
    """The whole URL space of the service; ``nouns`` maps collection names to controllers.

    The version documents and the OpenAPI document need neither token nor database.
    """

    routes: ClassVar[Routes] = {
        "": {"GET": "show_versions"},
        VERSION_SEGMENT: {"GET": "show_v2"},
        openapi.FILE: {"GET": "show_openapi"},
    }

    def __init__(self, nouns: Mapping[str, expose.Controller], public_endpoint: str | None) -> None:
        self._nouns = nouns
        self._public_endpoint = public_endpoint
        self._documents: dict[int, dict[str, Any]] = {}

    def route(self, parts: Sequence[str], request: Request) -> tuple[Any, list[str]]:
        """Return the handler of a path and its identifiers; negotiates version and content type."""
        if not parts:
            request.check_accept()
            request.environ[ROUTE] = "/"
            return super().route([], request)
        if parts[0] in _V2:
            parts = parts[1:]
        elif _OTHER_VERSION.fullmatch(parts[0]):
            raise webob.exc.HTTPNotFound("There is only version 2 of this API.")
        request.negotiate()
        request.check_accept()
        if not parts:
            return super().route([VERSION_SEGMENT], request)
        if parts == [openapi.FILE]:
            request.environ[ROUTE] = f"/{VERSION_SEGMENT}"
            return super().route([openapi.FILE], request)
        noun = self._nouns.get(parts[0])
        if noun is None:
            raise webob.exc.HTTPNotFound("There is no such resource.")
        request.environ[ROUTE] = f"/{VERSION_SEGMENT}/{parts[0]}"
        return noun.route(parts[1:], request)

    @handler
    def show_versions(self, req: Request, resp: webob.Response) -> webob.Response:
        """Answer the versions, with links to the URL that the client used."""
        version = _version("v2", Links.of(req, self._public_endpoint).v2)
        document = {
            "name": "OpenStack Cyborg API",
            "description": "Cyborg manages the life cycle of hardware accelerators: GPUs, FPGAs, "
            "smart NICs, NVMe disks and the like.",
            "versions": [version],
            "default_version": version,
        }
        return expose.respond(200, document)

    @handler
    def show_v2(self, req: Request, resp: webob.Response) -> webob.Response:
        """Answer the version without an envelope."""
        url = f"{Links.of(req, self._public_endpoint).v2}/"
        return expose.respond(200, _version("v2.0", url))

    @handler
    def show_openapi(self, req: Request, resp: webob.Response) -> webob.Response:
        """Answer the OpenAPI document of the requested microversion, by default of the latest."""
        minor = req.minor if microversion.HEADER in req.headers else None
        if minor is None:
            minor = microversion.LATEST
        if minor not in self._documents:
            nouns = [type(noun) for noun in self._nouns.values()]
            self._documents[minor] = openapi.document(nouns, minor)
        return expose.respond(200, self._documents[minor])


def _version(id_: str, href: str) -> dict[str, Any]:
    return {
        "id": id_,
        "status": "CURRENT",
        "max_version": microversion.MAXIMUM,
        "min_version": microversion.MINIMUM,
        # The range has a gap; clients that know only the range get 406 inside it.
        "microversions": list(microversion.SPELLED),
        "links": [{"href": href, "rel": "self"}],
    }

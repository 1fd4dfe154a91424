# SPDX-License-Identifier: Apache-2.0
"""Route a path to its resource: the root, /v2, and paths without a version, which act as /v2."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import pecan
import webob
import webob.exc

from cyborg.api import expose, microversion
from cyborg.api.rendering import VERSION_SEGMENT, Links
from cyborg.api.request import Request
from cyborg.api.routing import ROUTE, Noun, Routes, segments

_V2: Final = frozenset({VERSION_SEGMENT, f"{VERSION_SEGMENT}.json"})
_PREFIX: Final = f"/{VERSION_SEGMENT}"
_OTHER_VERSION: Final = re.compile(r"v[0-9]+(\.[0-9]+)?(\.json)?")


class Root:
    """The whole URL space of the service; ``nouns`` maps collection names to controllers."""

    def __init__(self, nouns: Mapping[str, Noun], public_endpoint: str | None) -> None:
        self._nouns = nouns
        self._root = _Document(_root_document, public_endpoint)
        self._v2 = _Document(_v2_document, public_endpoint)

    @pecan.expose()
    def _route(self, args: Sequence[str], request: Request) -> Any:
        parts = segments(args)
        if not parts:
            request.check_accept(expose.JSON)
            request.environ[ROUTE] = "/"
            return self._root._route([], request)
        if parts[0] in _V2:
            parts = parts[1:]
        elif _OTHER_VERSION.fullmatch(parts[0]):
            raise webob.exc.HTTPNotFound("There is only version 2 of this API.")
        request.negotiate()
        request.check_accept(expose.JSON)
        if not parts:
            request.environ[ROUTE] = _PREFIX
            return self._v2._route([], request)
        noun = self._nouns.get(parts[0])
        if noun is None:
            raise webob.exc.HTTPNotFound("There is no such resource.")
        request.environ[ROUTE] = f"{_PREFIX}/{parts[0]}"
        return noun._route(parts[1:], request)


class _Document(Noun):
    """A version document, for API discovery; needs neither token nor database."""

    routes: ClassVar[Routes] = {"": {"GET": "show"}}

    def __init__(
        self, document: Callable[[Links], dict[str, Any]], public_endpoint: str | None
    ) -> None:
        self._document = document
        self._public_endpoint = public_endpoint

    @pecan.expose(content_type=expose.JSON)
    def show(self, req: Request, resp: webob.Response) -> webob.Response:
        """Answer the document, with links to the URL that the client used."""
        return expose.answer(200, self._document(Links.of(req, self._public_endpoint)))


def _root_document(links: Links) -> dict[str, Any]:
    """Return the answer of ``GET /``."""
    version = _version("v2", links.v2)
    return {
        "name": "OpenStack Cyborg API",
        "description": "Cyborg manages the life cycle of hardware accelerators: GPUs, FPGAs, "
        "smart NICs, NVMe disks and the like.",
        "versions": [version],
        "default_version": version,
    }


def _v2_document(links: Links) -> dict[str, Any]:
    """Return the answer of ``GET /v2``: the version without an envelope."""
    return _version("v2.0", f"{links.v2}/")


def _version(id_: str, href: str) -> dict[str, Any]:
    return {
        "id": id_,
        "status": "CURRENT",
        "max_version": microversion.MAXIMUM,
        "min_version": microversion.MINIMUM,
        "links": [{"href": href, "rel": "self"}],
    }

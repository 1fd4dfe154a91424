# SPDX-License-Identifier: Apache-2.0
"""Route a path to its resource: the root, /v2, and paths without a version, which act as /v2."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import webob
import webob.exc

from cyborg.api import expose, microversion
from cyborg.api.framework import ROUTE, Noun, Request, Routes, handler
from cyborg.api.rendering import VERSION_SEGMENT, Links

_V2: Final = frozenset({VERSION_SEGMENT, f"{VERSION_SEGMENT}.json"})
_PREFIX: Final = f"/{VERSION_SEGMENT}"
_OTHER_VERSION: Final = re.compile(r"v[0-9]+(\.[0-9]+)?(\.json)?")


class Root:
    """The whole URL space of the service; ``nouns`` maps collection names to controllers."""

    def __init__(self, nouns: Mapping[str, Noun], public_endpoint: str | None) -> None:
        self._nouns = nouns
        self._root = _RootDocument(public_endpoint)
        self._v2 = _V2Document(public_endpoint)

    def route(self, parts: Sequence[str], request: Request) -> tuple[Any, list[str]]:
        """Return the handler of a path and its identifiers; negotiates version and content type."""
        if not parts:
            request.check_accept()
            request.environ[ROUTE] = "/"
            return self._root.route([], request)
        if parts[0] in _V2:
            parts = parts[1:]
        elif _OTHER_VERSION.fullmatch(parts[0]):
            raise webob.exc.HTTPNotFound("There is only version 2 of this API.")
        request.negotiate()
        request.check_accept()
        if not parts:
            request.environ[ROUTE] = _PREFIX
            return self._v2.route([], request)
        noun = self._nouns.get(parts[0])
        if noun is None:
            raise webob.exc.HTTPNotFound("There is no such resource.")
        request.environ[ROUTE] = f"{_PREFIX}/{parts[0]}"
        return noun.route(parts[1:], request)


class _RootDocument(Noun):
    """The answer of ``GET /``, for API discovery; needs neither token nor database."""

    routes: ClassVar[Routes] = {"": {"GET": "show"}}

    def __init__(self, public_endpoint: str | None) -> None:
        self._public_endpoint = public_endpoint

    @handler
    def show(self, req: Request, resp: webob.Response) -> webob.Response:
        """Answer the document, with links to the URL that the client used."""
        return expose.answer(200, self._document(Links.of(req, self._public_endpoint).v2))

    def _document(self, url: str) -> dict[str, Any]:
        version = _version("v2", url)
        return {
            "name": "OpenStack Cyborg API",
            "description": "Cyborg manages the life cycle of hardware accelerators: GPUs, FPGAs, "
            "smart NICs, NVMe disks and the like.",
            "versions": [version],
            "default_version": version,
        }


class _V2Document(_RootDocument):
    """The answer of ``GET /v2``: the version without an envelope."""

    def _document(self, url: str) -> dict[str, Any]:
        return _version("v2.0", f"{url}/")


def _version(id_: str, href: str) -> dict[str, Any]:
    return {
        "id": id_,
        "status": "CURRENT",
        "max_version": microversion.MAXIMUM,
        "min_version": microversion.MINIMUM,
        "links": [{"href": href, "rel": "self"}],
    }

# SPDX-License-Identifier: Apache-2.0
"""Self links that lead back to the service by the way the client came."""

from dataclasses import dataclass
from urllib.parse import urlsplit

import webob

VERSION_SEGMENT = "v2"


@dataclass(frozen=True)
class Links:
    """The links of one answer; ``base`` is the URL of the service's root, without a last slash."""

    base: str

    @classmethod
    def of(cls, request: webob.Request, public_endpoint: str | None) -> "Links":
        """Follow the request's URL (a proxy's headers were applied to it), or the option.

        A ``public_endpoint`` without a path is the server; the mount point of the request
        (``/accelerator``) still follows. One with a path is taken as it is, but for a version.
        """
        if not public_endpoint:
            return cls(request.application_url.rstrip("/"))
        base = _base(public_endpoint)
        if path_of(public_endpoint):
            return cls(base)
        return cls(base + request.script_name.rstrip("/"))

    @property
    def v2(self) -> str:
        """The URL of the v2 API."""
        return f"{self.base}/{VERSION_SEGMENT}"

    def self_of(self, collection: str) -> str:
        """What goes before a thing's uuid in its self link; made once per answer."""
        return f"{self.v2}/{collection}/"

    def bookmark_of(self, collection: str) -> str:
        """What goes before a thing's uuid in its link without a version."""
        return f"{self.base}/{collection}/"


def path_of(public_endpoint: str | None) -> str:
    """The path below which a public endpoint has the service, as in ``/accelerator``; or none."""
    return urlsplit(_base(public_endpoint or "")).path


def _base(public_endpoint: str) -> str:
    return public_endpoint.rstrip("/").removesuffix(f"/{VERSION_SEGMENT}")

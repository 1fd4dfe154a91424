# SPDX-License-Identifier: Apache-2.0
"""The viewer of an answer: its microversion, what its caller may see, and the links in it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

import webob

from cyborg.model.scope import Scope

VERSION_SEGMENT = "v2"


@dataclass(frozen=True)
class Links:
    """The links of one answer; ``base`` is the URL of the service's root, without a last slash."""

    base: str

    @classmethod
    def of(cls, request: webob.Request, public_endpoint: str | None) -> "Links":
        """Return the links for a request.

        Without a ``public_endpoint`` they follow the URL of the request, to which the headers of
        proxies are already applied. A ``public_endpoint`` without a path names the server; the
        mount point of the request (``/accelerator``) is appended. A ``public_endpoint`` with a path
        is used as it is, without a version at its end.
        """
        if not public_endpoint:
            return cls(request.application_url.rstrip("/"))
        base = _base(public_endpoint)
        if path_of(public_endpoint):
            return cls(base)
        return cls(base + request.script_name.rstrip("/"))

    @property
    def v2(self) -> str:
        """Return the URL of the v2 API."""
        return f"{self.base}/{VERSION_SEGMENT}"

    def self_of(self, collection: str) -> str:
        """Return the part of a self link before the uuid."""
        return f"{self.v2}/{collection}/"


def path_of(public_endpoint: str | None) -> str:
    """Return the path of a public endpoint, for example ``/accelerator``, or an empty string."""
    return urlsplit(_base(public_endpoint or "")).path


def _base(public_endpoint: str) -> str:
    return public_endpoint.rstrip("/").removesuffix(f"/{VERSION_SEGMENT}")


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """Who gets an answer: at microversion 2.``minor``, what ``scope`` shows, with ``links``.

    ``hosts`` are the names that texts of the answer may have; see ``Scope.said``.
    """

    minor: int
    scope: Scope
    links: Links
    hosts: frozenset[str | None] = frozenset()

    def naming(self, hosts: Collection[str | None]) -> Self:
        """Return the viewer of a part of the answer whose texts may have more names of hosts."""
        return replace(self, hosts=self.hosts | frozenset(hosts)) if hosts else self

    def said(self, value: Any) -> Any:
        """Return a JSON value whose texts may have names of hosts, as the viewer may see it."""
        return self.scope.said(value, self.hosts)

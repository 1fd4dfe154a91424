# SPDX-License-Identifier: Apache-2.0
"""Client of Placement's REST API for device providers: each method sends one request.

A 404 becomes exception.NotFound, a 409 exception.Conflict (with Placement's error ``code`` as a
field), a 400 exception.Invalid, and every other failure exception.Unavailable. This client neither
retries nor caches.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients import http
from cyborg.model.provider import Inventory

#: 1.14 trees, 1.20 the created provider in the answer, 1.23 error codes, 1.26 reserved == total.
MICROVERSION = "1.26"
#: Error codes of Placement's ``errors.py``.
CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
#: The longest query sent: uWSGI takes 4096 bytes of request line and headers by default.
_MAX_QUERY = 2000
_PEER = "Placement"


@dataclass(frozen=True)
class Node:
    """A resource provider as Placement lists it."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str


class Placement:
    """Call Placement through a keystoneauth adapter for the service type ``placement``."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def find_root(self, names: Sequence[str]) -> tuple[str, str]:
        """Return UUID and name of the first of ``names`` that is a provider.

        Raises exception.NotFound, which names all of them: the compute service has not created its
        provider yet, or uses another name.
        """
        for name in names:
            node = self.find_by_name(name)
            if node is not None:
                return node.uuid, node.name
        raise exception.NotFound(noun="Compute provider", key=" or ".join(names))

    def find_by_name(self, name: str) -> Node | None:
        """Return the provider with exactly this name, in any tree; None without one."""
        return next(iter(self._nodes({"name": name})), None)

    def find_by_uuid(self, uuid: str) -> Node | None:
        """Return the provider with this UUID, in any tree; None without one."""
        return next(iter(self._nodes({"uuid": uuid})), None)

    def tree(self, uuid: str) -> dict[str, Node]:
        """Return all providers of the tree of ``uuid``, by UUID; empty if it does not exist."""
        return {node.uuid: node for node in self._nodes({"in_tree": uuid})}

    def create(self, uuid: str, name: str, parent_uuid: str) -> int:
        """Create a child provider and return its generation.

        Raises exception.Conflict with code DUPLICATE_NAME if name or UUID are in use.
        """
        body = {"uuid": uuid, "name": name, "parent_provider_uuid": parent_uuid}
        return int(self._json("POST", "/resource_providers", body)["generation"])

    def rename(self, uuid: str, name: str) -> None:
        """Rename a provider; raises the same conflicts as ``create``."""
        self._call("PUT", _provider(uuid), {"name": name})

    def inventories(self, uuid: str) -> tuple[int, dict[str, Inventory]]:
        """Return the generation of a provider, and its inventories by resource class."""
        document = self._json("GET", _provider(uuid, "inventories"))
        return document["resource_provider_generation"], document["inventories"]

    def set_inventories(
        self, uuid: str, generation: int, inventories: Mapping[str, Inventory]
    ) -> int:
        """Replace all inventories of a provider and return its new generation.

        Raises exception.Conflict with code CONCURRENT_UPDATE if the generation has changed.
        """
        body = {"resource_provider_generation": generation, "inventories": inventories}
        document = self._json("PUT", _provider(uuid, "inventories"), body)
        return int(document["resource_provider_generation"])

    def traits(self, uuid: str) -> tuple[int, frozenset[str]]:
        """Return the generation of a provider, and its traits."""
        document = self._json("GET", _provider(uuid, "traits"))
        return document["resource_provider_generation"], frozenset(document["traits"])

    def set_traits(self, uuid: str, generation: int, traits: Collection[str]) -> int:
        """Replace all traits and return the new generation; conflicts as ``set_inventories``."""
        body = {"resource_provider_generation": generation, "traits": sorted(traits)}
        document = self._json("PUT", _provider(uuid, "traits"), body)
        return int(document["resource_provider_generation"])

    def delete_inventories(self, uuid: str) -> None:
        """Remove all inventories; exception.Conflict while a consumer has an allocation."""
        self._call("DELETE", _provider(uuid, "inventories"))

    def delete_provider(self, uuid: str) -> None:
        """Remove the provider; exception.Conflict while it has allocations or children."""
        self._call("DELETE", _provider(uuid))

    def allocations_of(self, uuid: str) -> dict[str, dict[str, int]]:
        """Return the allocations of a provider: consumer UUID → resource class → units."""
        document = self._json("GET", _provider(uuid, "allocations"))
        return {
            consumer: allocation["resources"]
            for consumer, allocation in document["allocations"].items()
        }

    def create_resource_class(self, name: str) -> None:
        """Create a custom resource class; idempotent."""
        self._call("PUT", f"/resource_classes/{quote(name, safe='')}")

    def known_traits(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the traits ``names`` that exist, with one request."""
        query = "?" + urlencode({"name": "in:" + ",".join(sorted(names))}, safe=":,")
        if len(query) > _MAX_QUERY:
            query = ""
        return frozenset(self._json("GET", f"/traits{query}")["traits"]) & frozenset(names)

    def create_trait(self, name: str) -> None:
        """Create a custom trait; idempotent."""
        self._call("PUT", f"/traits/{quote(name, safe='')}")

    def _nodes(self, query: dict[str, str]) -> list[Node]:
        document = self._json("GET", f"/resource_providers?{urlencode(query)}")
        return [
            Node(
                uuid=provider["uuid"],
                name=provider["name"],
                generation=provider["generation"],
                parent_uuid=provider["parent_provider_uuid"],
                root_uuid=provider["root_provider_uuid"],
            )
            for provider in document["resource_providers"]
        ]

    def _json(self, method: str, path: str, body: object = None) -> Any:
        return http.document(_PEER, self._call(method, path, body))

    def _call(
        self, method: str, path: str, body: object = None, *, microversion: str = MICROVERSION
    ) -> Any:
        arguments = {} if body is None else {"json": body}
        answer = http.ask(
            _PEER,
            self._adapter,
            method,
            path,
            microversion=microversion,
            headers={"Accept": "application/json"},
            **arguments,
        )
        if answer.status_code < 300:
            return answer
        code, detail = _error(answer)
        if answer.status_code == 404:
            raise exception.NotFound(noun="Placement resource", key=path)
        if answer.status_code == 409:
            raise exception.Conflict(reason=detail, code=code)
        if answer.status_code == 400:
            raise exception.Invalid(field=f"{method} {path}", reason=detail)
        raise exception.Unavailable(
            peer=_PEER, reason=f"{method} {path}: {detail}", http=answer.status_code
        )


def _provider(uuid: str, *rest: str) -> str:
    return "/".join(("/resource_providers", quote(uuid, safe=""), *rest))


def _error(answer: Any) -> tuple[str, str]:
    """Return Placement's error code and its one-line explanation."""
    try:
        first = answer.json()["errors"][0]
        detail = str(first["detail"]).strip().rpartition("\n")[2].strip()
        return str(first.get("code", "")), detail
    except (ValueError, LookupError, TypeError):
        return "", f"answered {answer.status_code}"

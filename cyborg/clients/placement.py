# SPDX-License-Identifier: Apache-2.0
"""Client of Placement's REST API for device providers and allocations.

Each method sends one request. A 404 becomes exception.NotFound, a 409 exception.Conflict (with
Placement's error ``code`` as a field), a 400 exception.Invalid, and every other failure
exception.Unavailable. This client neither retries nor caches.
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
#: 1.28 generations of consumers, 1.31 one tree only, 1.33 words as suffixes, 1.34 mappings.
_ALLOCATIONS_MICROVERSION = "1.34"
#: 1.35: traits that the root must have.
_ROOT_MICROVERSION = "1.35"
#: Error codes of Placement's ``errors.py``.
CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
#: The longest query sent: uWSGI takes 4096 bytes of request line and headers by default.
_MAX_QUERY = 2000
_PEER = "Placement"
_RESOURCES = "resources:"
_TRAIT = "trait:"
#: The largest number of candidates that are read for one request.
_CANDIDATES = 100


@dataclass(frozen=True)
class Node:
    """A resource provider as Placement lists it."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str


@dataclass(frozen=True)
class Consumer:
    """The allocations of a consumer (provider → resource class → units) at one generation."""

    generation: int
    project_id: str
    user_id: str
    allocations: dict[str, dict[str, int]]


class Placement:
    """Call Placement through a keystoneauth adapter for the service type ``placement``."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def account_roles(self) -> tuple[str, ...]:
        """Return the roles of the account; see ``http.account_roles``."""
        return http.account_roles(self._adapter)

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

    def units_of(self, consumer: str) -> dict[str, int]:
        """Return the units that a consumer has allocated of all providers, by resource class."""
        document = self._json("GET", f"/allocations/{quote(consumer, safe='')}")
        units: dict[str, int] = {}
        for allocation in document["allocations"].values():
            for name, amount in allocation["resources"].items():
                units[name] = units.get(name, 0) + amount
        return units

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
        try:
            first = answer.json()["errors"][0]
            code, detail = str(first.get("code", "")), str(first["detail"]).strip()
            detail = detail.rpartition("\n")[2].strip()
        except (ValueError, LookupError, TypeError):
            code, detail = "", f"answered {answer.status_code}"
        if answer.status_code == 404:
            raise exception.NotFound(noun="Placement resource", key=path)
        if answer.status_code == 409:
            raise exception.Conflict(reason=detail, code=code)
        if answer.status_code == 400:
            raise exception.Invalid(field=f"{method} {path}", reason=detail)
        raise exception.Unavailable(
            peer=_PEER, reason=f"{method} {path}: {detail}", http=answer.status_code
        )


class Allocations(Placement):
    """Call Placement about what an instance has and could get, for attach and detach.

    Nova creates and removes allocations. Cyborg changes only those of existing servers.
    """

    def consumer(self, uuid: str) -> Consumer | None:
        """Return the allocations of a consumer; None if it has none."""
        path = f"/allocations/{quote(uuid, safe='')}"
        answer = self._call("GET", path, microversion=_ALLOCATIONS_MICROVERSION)
        document = http.document(_PEER, answer)
        if not document["allocations"]:
            return None
        return Consumer(
            generation=int(document["consumer_generation"]),
            project_id=document["project_id"],
            user_id=document["user_id"],
            allocations={
                rp: dict(allocation["resources"])
                for rp, allocation in document["allocations"].items()
            },
        )

    def set_consumer(self, uuid: str, consumer: Consumer) -> None:
        """Replace the allocations of a consumer.

        Raises exception.Conflict with code CONCURRENT_UPDATE if somebody changed them since they
        were read, exception.Conflict with another code if too few units are free, and
        exception.Invalid for an unknown provider.
        """
        body = {
            "allocations": {
                rp: {"resources": resources} for rp, resources in consumer.allocations.items()
            },
            "consumer_generation": consumer.generation,
            "project_id": consumer.project_id,
            "user_id": consumer.user_id,
        }
        path = f"/allocations/{quote(uuid, safe='')}"
        self._call("PUT", path, body, microversion=_ALLOCATIONS_MICROVERSION)

    def candidates(
        self, root: str, groups: Sequence[Mapping[str, str]], limit: int = _CANDIDATES
    ) -> list[dict[int, str]]:
        """Return at most ``limit`` ways to place the groups of a profile in the tree of ``root``.

        Each way maps the index of a group to the UUID of a provider. Groups without resources are
        left out, as Nova does. The list is empty if too few units are free, or if Placement does
        not have a requested class or trait.
        """
        query = _granular(groups, root)
        query += [("group_policy", "none"), ("limit", str(limit))]
        path = f"/allocation_candidates?{urlencode(query)}"
        try:
            answer = self._call("GET", path, microversion=_ALLOCATIONS_MICROVERSION)
        except exception.Invalid:
            return []
        return [
            {int(name[1:]): providers[0] for name, providers in request["mappings"].items() if name}
            for request in http.document(_PEER, answer)["allocation_requests"]
        ]


class Candidates(Placement):
    """Ask Placement what Nova's scheduler asks it, for any host.

    Placement refuses a query with a class or a trait that it does not have: nothing has them then.
    """

    def hosts_with(self, trait: str) -> frozenset[str]:
        """Return the names of the providers that have a trait."""
        return self._names({"required": trait})

    def hosts_with_room(self, resources: Mapping[str, int]) -> frozenset[str]:
        """Return the names of the providers that can allocate all these amounts by class."""
        amounts = ",".join(f"{name}:{amount}" for name, amount in sorted(resources.items()))
        return self._names({"resources": amounts})

    def providers_for(self, group: Mapping[str, str]) -> frozenset[str]:
        """Return the uuids of the providers that can serve a group of a profile now."""
        query = {name.rpartition("_")[0]: value for name, value in _granular([group])}
        return frozenset(node.uuid for node in self._found(query))

    def exists(
        self,
        groups: Sequence[Mapping[str, str]],
        *,
        root: str | None = None,
        resources: Mapping[str, int],
        root_required: Sequence[str],
    ) -> bool:
        """Return whether there is a candidate for a profile.

        ``resources`` are those that the host itself gives, ``root_required`` the traits that it
        must have, or must not have if they begin with ``!``. ``root`` limits it to one host.
        """
        query = _granular(groups, root)
        if resources:
            amounts = ",".join(f"{name}:{amount}" for name, amount in sorted(resources.items()))
            query.append(("resources", amounts))
        if root_required:
            query.append(("root_required", ",".join(root_required)))
        query += [("group_policy", "none"), ("limit", "1")]
        path = f"/allocation_candidates?{urlencode(query)}"
        try:
            answer = self._call("GET", path, microversion=_ROOT_MICROVERSION)
        except exception.Invalid:
            return False
        return bool(http.document(_PEER, answer)["allocation_requests"])

    def _names(self, query: dict[str, str]) -> frozenset[str]:
        return frozenset(node.name for node in self._found(query))

    def _found(self, query: dict[str, str]) -> list[Node]:
        try:
            return self._nodes(query)
        except exception.Invalid:
            return []


def _granular(
    groups: Sequence[Mapping[str, str]], root: str | None = None
) -> list[tuple[str, str]]:
    """Return the parts of a query for the groups of a profile; ``root`` limits them to its tree.

    Groups without resources are left out, as Nova does.
    """
    query: list[tuple[str, str]] = []
    for index, group in enumerate(groups):
        amounts = [
            f"{key.removeprefix(_RESOURCES)}:{value}"
            for key, value in group.items()
            if key.startswith(_RESOURCES)
        ]
        if not amounts:
            continue
        query.append((f"resources_{index}", ",".join(amounts)))
        if root is not None:
            query.append((f"in_tree_{index}", root))
        traits = [
            ("!" if value == "forbidden" else "") + key.removeprefix(_TRAIT)
            for key, value in group.items()
            if key.startswith(_TRAIT)
        ]
        if traits:
            query.append((f"required_{index}", ",".join(traits)))
    return query


def _provider(uuid: str, *rest: str) -> str:
    return "/".join(("/resource_providers", quote(uuid, safe=""), *rest))

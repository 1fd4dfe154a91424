# SPDX-License-Identifier: Apache-2.0
"""Allocations of consumers in Placement: what an instance has, and what it could get.

Nova creates and removes allocations. Cyborg changes only those of existing servers, for attach and
detach.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from cyborg import exception
from cyborg.clients import http
from cyborg.clients.placement import Placement

#: 1.28 generations of consumers, 1.31 one tree only, 1.33 words as suffixes, 1.34 mappings.
MICROVERSION = "1.34"
_PEER = "Placement"
_RESOURCES = "resources:"
_TRAIT = "trait:"
#: The largest number of candidates that are read for one request.
_CANDIDATES = 100


@dataclass(frozen=True)
class Consumer:
    """The allocations of a consumer (provider → resource class → units) at one generation."""

    generation: int
    project_id: str
    user_id: str
    allocations: dict[str, dict[str, int]]


class Allocations(Placement):
    """Calls to Placement for attach and detach."""

    def consumer(self, uuid: str) -> Consumer | None:
        """Return the allocations of a consumer; None if it has none."""
        answer = self._call("GET", _path(uuid), microversion=MICROVERSION)
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
        self._call("PUT", _path(uuid), body, microversion=MICROVERSION)

    def candidates(self, root: str, groups: Sequence[Mapping[str, str]]) -> list[dict[int, str]]:
        """Return the ways to place the groups of a device profile in the tree of ``root``.

        Each way maps the index of a group to the UUID of a provider. Groups without resources are
        left out, as Nova does. The list is empty if too few units are free, or if Placement does
        not have a requested class or trait.
        """
        query: list[tuple[str, str]] = []
        for index, group in enumerate(groups):
            query += _granular(index, group, root)
        path = "/allocation_candidates?" + urlencode(
            [*query, ("group_policy", "none"), ("limit", str(_CANDIDATES))]
        )
        try:
            answer = self._call("GET", path, microversion=MICROVERSION)
        except exception.Invalid:
            return []
        return [
            {int(name[1:]): providers[0] for name, providers in request["mappings"].items() if name}
            for request in http.document(_PEER, answer)["allocation_requests"]
        ]


def _path(uuid: str) -> str:
    return f"/allocations/{quote(uuid, safe='')}"


def _granular(index: int, group: Mapping[str, str], root: str) -> list[tuple[str, str]]:
    """Return the parts of the query for one group; its index is their suffix."""
    amounts = [
        f"{key.removeprefix(_RESOURCES)}:{value}"
        for key, value in group.items()
        if key.startswith(_RESOURCES)
    ]
    if not amounts:
        return []
    traits = [
        ("!" if value == "forbidden" else "") + key.removeprefix(_TRAIT)
        for key, value in group.items()
        if key.startswith(_TRAIT)
    ]
    parts = [(f"resources_{index}", ",".join(amounts)), (f"in_tree_{index}", root)]
    return parts + ([(f"required_{index}", ",".join(traits))] if traits else [])

# SPDX-License-Identifier: Apache-2.0
"""Allocations of consumers in Placement: what an instance has, and what it could have besides.

Nova makes and removes them; only attach and detach change those of a server that exists.
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
#: More ways to place a few accelerators on one host are not looked at.
_CANDIDATES = 100


@dataclass(frozen=True)
class Consumer:
    """What a consumer has: provider → resource class → units; ``generation`` guards it."""

    generation: int
    project_id: str
    user_id: str
    allocations: dict[str, dict[str, int]]


class Allocations(Placement):
    """Placement as attach and detach use it."""

    def consumer(self, uuid: str) -> Consumer | None:
        """What a consumer has; None for one without allocations, which Placement does not know."""
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
        """Replace what a consumer has.

        Raises exception.Conflict, with code CONCURRENT_UPDATE when somebody else changed it since
        it was read, else because there is no room; exception.Invalid for an unknown provider.
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
        """Ways to place a device profile's groups in the tree of ``root``: index → provider.

        Groups that ask for nothing are left out, as Nova does. None when Placement has no room,
        or does not know a class or trait that is asked for.
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
    """The parts of the query for one group, under a suffix that holds its index."""
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

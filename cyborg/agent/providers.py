# SPDX-License-Identifier: Apache-2.0
"""The providers of this host in Placement: kept as the conductor wants them, while it answers.

Placement may be away, or not know the compute yet; each round tries again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from cyborg import exception
from cyborg.clients.placement import Node, Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.model.pci import PciAddress
from cyborg.model.provider import Verdict, provider_uuid
from cyborg.model.report import Desired
from cyborg.rpc.conductor import ReportClient

LOG = logging.getLogger(__name__)


class Providers:
    """What the agent knows of them from its last rounds; a restart forgets it, and asks.

    ``host`` is the agent's name on the bus, ``names`` are what Placement may call its compute.
    ``full_check`` is how often all of Placement is looked at, in seconds of ``clock``.
    """

    def __init__(
        self,
        *,
        host: str,
        names: Sequence[str],
        full_check: float,
        conductor: ReportClient,
        placement: Placement,
        publisher: Publisher,
        clock: Callable[[], float],
    ) -> None:
        self._host = host
        self._names = tuple(names)
        self._full_check = full_check
        self._conductor = conductor
        self._placement = placement
        self._publisher = publisher
        self._clock = clock
        self._root: tuple[str, str] | None = None
        self._published: int | None = None
        self._checked: float | None = None
        self._refused: dict[str, str] = {}
        #: The compute's tree in Placement, in a round that checks all of it.
        self._tree: dict[str, Node] | None = None
        self._withheld: set[str] = set()
        #: The PCI addresses that Nova offers by itself, with the reason not to.
        self.claims: dict[str, str] = {}

    @property
    def found(self) -> bool:
        """Whether Placement knows the compute."""
        return self._root is not None

    @property
    def names(self) -> tuple[str, ...]:
        """What Placement calls the compute; all that it may, before it was found."""
        return (self._root[1],) if self._root else self._names

    def look_again(self) -> None:
        """Have the next round check all of Placement."""
        self._checked = None

    def look_around(self) -> exception.CyborgError | None:
        """Find the compute's provider, and what Nova claims below it; answers why it cannot."""
        self._tree = None
        try:
            if self._root is None:
                self._root = self._publisher.find_root(self._names)
                LOG.info("Devices of this host go below %s in Placement", self._root[1])
            if self._is_check_due():
                self._tree = self._placement.tree(self._root[0])
                self.claims = _claims(self._tree, self._root[1])
        except exception.CyborgError as error:
            return error
        return None

    def believe(self, desired: Desired) -> None:
        """Take it that the conductor knows of these refusals, and of no others.

        After a restart this is still what the last report led to, and so what Placement shows.
        """
        self._refused = dict(desired.refused)
        self._publisher.recall(desired.tree)

    def withhold(self, desired: Desired, seen: Set[str]) -> None:
        """Reserve, once, what is not ``seen`` any more; offer nothing.

        What comes back meanwhile is offered when the conductor has heard of it.
        """
        there = seen | desired.refused.keys() | self._refused.keys()
        gone = {one.uuid: one.name for one in desired.tree.providers if one.name not in there}
        try:
            for uuid in self._publisher.withhold(sorted(gone.keys() - self._withheld)):
                LOG.warning("%s is not there any more: Placement offers none of it", gone[uuid])
        except exception.CyborgError as error:
            LOG.debug("Nothing is taken back in Placement yet: %s", error)
        else:
            self._withheld |= gone.keys()

    def trust(self) -> None:
        """The conductor answers again: nothing is withheld, and all of Placement is checked."""
        self._withheld = set()
        self._checked = None

    def publish(self, desired: Desired, epoch: int, *, known_before: bool) -> Desired:
        """Make Placement show what is desired, and tell which providers it refuses.

        ``known_before``: the host has reported at some time. Answers what is still desired.
        """
        if self._is_check_due():
            # A host that nobody has seen before has nothing in Placement to compare with.
            fresh = self._checked is None and not known_before
            full = True
        elif self._published != desired.generation:
            fresh, full = True, False
        else:
            return desired
        self._published = None
        if fresh:
            result = self._publisher.publish(desired.tree)
        else:
            result = self._publisher.check(desired.tree, listing=self._tree)
        self._checked = self._clock() if full else self._checked
        outcomes = result.outcomes
        refused = {one.name: one.reason for one in outcomes if one.verdict is Verdict.REFUSED}
        staying = self._retire(desired, epoch, result.root_uuid)
        refused |= staying
        if refused != self._refused:
            self._conductor.published(self._host, epoch, refused)
            self._refused = refused
        if not any(one.verdict is Verdict.FAILED for one in outcomes):
            self._published = desired.generation
        return desired if staying else replace(desired, retired=())

    def _retire(self, desired: Desired, epoch: int, root: str) -> dict[str, str]:
        """Remove providers that are given up, and tell; answers which have to stay, and why."""
        gone: list[str] = []
        staying: dict[str, str] = {}
        for one in desired.retired:
            try:
                self._publisher.retire(one.uuid, root=root)
                gone.append(one.name)
            except (exception.Conflict, exception.Unavailable) as error:
                # A 500 is what this one request did to Placement; anything else meets all of them.
                if error.fields.get("http", 500) != 500:
                    raise
                staying[one.name] = f"it cannot be removed: {error}"
                if self._refused.get(one.name) != staying[one.name]:
                    LOG.warning("Provider %s: %s", one.name, staying[one.name])
        if gone:
            self._conductor.retired(self._host, epoch, gone)
        return staying

    def _is_check_due(self) -> bool:
        return self._checked is None or self._clock() - self._checked >= self._full_check


def _claims(tree: Mapping[str, Node], root_name: str) -> dict[str, str]:
    """The PCI addresses that Nova offers by itself (its providers are ``<compute>_<address>``).

    Ours may be called alike, but their uuids follow from their names.
    """
    claims = {}
    for node in tree.values():
        owner, _, address = node.name.rpartition("_")
        if owner != root_name or node.uuid == provider_uuid(node.name):
            continue
        try:
            claims[str(PciAddress.parse(address))] = f"Nova offers it in Placement as {node.name}"
        except ValueError:
            continue
    return claims

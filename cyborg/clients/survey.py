# SPDX-License-Identifier: Apache-2.0
"""What one pass over a host's tree finds in Placement, asking for each thing at most once."""

import logging
from collections.abc import Mapping

from cyborg import exception
from cyborg.clients.placement import DUPLICATE_NAME, Node, Placement
from cyborg.clients.vocabulary import Vocabulary
from cyborg.model.provider import Actual, Provider, ProviderTree

_LOG = logging.getLogger(__name__)


class Survey:
    """One pass; ``listing`` are the providers of the host's tree, where they are known already.

    What can only change by an operator's hand is raised as exception.Conflict with the field
    ``final``.
    """

    def __init__(
        self,
        placement: Placement,
        vocabulary: Vocabulary,
        root: str,
        listing: Mapping[str, Node] | None = None,
    ) -> None:
        self.root = root
        self._placement = placement
        self._vocabulary = vocabulary
        self._listed = listing is not None
        self._learned = False
        self._present = set(listing or ())
        self._names = {uuid: node.name for uuid, node in (listing or {}).items()}

    def there(self, uuid: str) -> None:
        """Somebody saw this provider in the host's tree."""
        self._present.add(uuid)

    def gone(self, uuid: str) -> None:
        """Somebody saw that this provider is not there any more."""
        self._present.discard(uuid)
        self._names.pop(uuid, None)

    def name(self, desired: Provider) -> None:
        """Give a provider its name back if somebody took it.

        One that another provider has now is left to a human: nothing but reading hangs on names.
        """
        called = self._names.get(desired.uuid, desired.name)
        if called == desired.name:
            return
        try:
            self._placement.rename(desired.uuid, desired.name)
        except exception.Conflict as fault:
            if fault.fields.get("code") != DUPLICATE_NAME:
                raise
            _LOG.warning(
                "Provider %s stays %s in Placement: another one is called %s now",
                desired.uuid,
                called,
                desired.name,
            )
            return
        _LOG.info("Provider %s is called %s again in Placement", desired.uuid, desired.name)

    def learn(self, desired: Provider, tree: ProviderTree) -> None:
        """Before a first write: make the words of the whole tree exist at once.

        Raises exception.Conflict when there are words in ``desired`` that cannot be made.
        """
        if not self._learned:
            self._learned = True
            self._vocabulary.learn(one for one in tree.providers if one.flaw() is None)
        lack = self._vocabulary.lack(desired)
        if lack is not None:
            raise exception.Conflict(reason=lack, final=True)

    def enter(self, desired: Provider, tree: ProviderTree) -> Actual:
        """What Placement holds of a provider, which is created if there is none.

        Raises exception.Conflict when its name or uuid is somebody else's.
        """
        if desired.uuid in self._present:
            return self._read(desired.uuid)
        self.learn(desired, tree)
        try:
            generation = self._placement.create(desired.uuid, desired.name, self.root)
        except exception.Conflict as fault:
            if fault.fields.get("code") != DUPLICATE_NAME:
                raise
            return self._read_if_in_tree(desired)
        _LOG.info("Created provider %s (%s) in Placement", desired.name, desired.uuid)
        self._present.add(desired.uuid)
        return Actual(generation, {}, frozenset())

    def _read_if_in_tree(self, desired: Provider) -> Actual:
        """The one listing of a pass tells ours (published in an earlier life) from others'."""
        if not self._listed:
            self._listed = True
            self._present |= self._placement.tree(self.root).keys()
        if desired.uuid in self._present:
            return self._read(desired.uuid)
        holder = self._placement.find_by_name(desired.name) or self._placement.find_by_uuid(
            desired.uuid
        )
        if holder is None:
            raise exception.Conflict(reason="whoever claimed it in Placement is gone again")
        raise exception.Conflict(reason=f"claimed in Placement by {_describe(holder)}", final=True)

    def _read(self, uuid: str) -> Actual:
        generation, inventories = self._placement.inventories(uuid)
        later, traits = self._placement.traits(uuid)
        # If it moved between the two reads, the lower generation makes the next write fail.
        return Actual(min(generation, later), inventories, traits)


def _describe(holder: Node) -> str:
    if holder.parent_uuid is None:
        return holder.uuid
    return f"{holder.uuid} in the tree of {holder.root_uuid}"

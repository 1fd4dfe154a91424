# SPDX-License-Identifier: Apache-2.0
"""Make a part of Placement equal to the desired state, including custom traits and classes."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cyborg import exception
from cyborg.clients.placement import CONCURRENT_UPDATE, DUPLICATE_NAME, Node, Placement
from cyborg.model.provider import (
    Actual,
    Change,
    Provider,
    ProviderOutcome,
    ProviderTree,
    PublishResult,
    SetInventories,
    Verdict,
    changes,
    is_custom,
)


class Vocabulary:
    """Remembers the words that exist, so that each is asked for once per process."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._classes: frozenset[str] = frozenset()
        self._traits: frozenset[str] = frozenset()

    def learn(self, providers: Iterable[Provider]) -> None:
        """Make the custom words of all these providers exist.

        One request for the traits, and one for each word lacking. A Placement that knows all our
        custom traits has met such devices before, and so their classes: those are not asked for
        (see ``make_class`` for when it is not so).
        """
        desired = tuple(providers)
        traits = {trait for provider in desired for trait in provider.traits}
        met_before = self._learn_traits(traits) and any(is_custom(trait) for trait in traits)
        if not met_before:
            for name in sorted({provider.resource_class for provider in desired}):
                self.make_class(name)

    def make_class(self, name: str) -> bool:
        """Make a class exist; False when there is nothing to make, or it was made before."""
        if not is_custom(name) or name in self._classes:
            return False
        self._placement.create_resource_class(name)
        self._classes |= {name}
        return True

    def lack(self, provider: Provider) -> str | None:
        """The sentence that names what this Placement does not know; None when it knows all."""
        unknown = provider.traits - self._traits
        if unknown:
            return f"this Placement does not know the standard traits {', '.join(sorted(unknown))}"
        return None

    def forget(self) -> None:
        """Believe nothing any more: somebody may have deleted a word."""
        self._classes = self._traits = frozenset()

    def _learn_traits(self, names: set[str]) -> bool:
        """Make the custom ones exist; answers whether all of them did already."""
        unchecked = names - self._traits
        if not unchecked:
            return True
        existing = self._placement.known_traits(unchecked)
        lacking = {name for name in unchecked - existing if is_custom(name)}
        for name in sorted(lacking):
            self._placement.create_trait(name)
        self._traits |= existing | lacking
        return not lacking


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
            self._vocabulary.learn(
                provider for provider in tree.providers if provider.validate() is None
            )
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


#: Each allocation bumps a provider's generation, so a busy one may need several attempts.
_ATTEMPTS = 5


@dataclass(frozen=True)
class _Pass:
    """One call to publish or check."""

    tree: ProviderTree
    retired_traits: frozenset[str]
    survey: Survey


class Publisher:
    """Publishes trees and remembers what Placement held at which generation.

    The memory makes an unchanged tree cost nothing; losing it (a restart) costs reads, never
    writes. For one thread at a time.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._roots: dict[str, str] = {}
        self._seen: dict[str, Actual] = {}
        self._ours: dict[str, frozenset[str]] = {}
        self._refused: dict[str, tuple[Provider, str]] = {}
        self._logged_reasons: dict[str, str] = {}
        self._vocabulary = Vocabulary(placement)

    def find_root(self, names: Sequence[str]) -> tuple[str, str]:
        """The uuid and name of the compute's provider; remembered, so that publishing need not ask.

        Raises exception.NotFound naming all of ``names`` when none is there.
        """
        uuid, name = self._placement.find_root(names)
        self._roots[name] = uuid
        return uuid, name

    def recall(self, tree: ProviderTree) -> None:
        """Take it that an earlier life published this tree: its traits are ours.

        What this process knows of a provider already counts more.
        """
        for provider in tree.providers:
            self._ours.setdefault(provider.uuid, provider.traits)

    def publish(self, tree: ProviderTree, retired_traits: Collection[str] = ()) -> PublishResult:
        """Write what differs from what was last seen; no request when nothing does.

        ``retired_traits`` are traits that we published in an earlier life and no longer use: they
        leave every provider of the tree that does not desire them. What this process published
        or recalls, and no longer desires, goes without being named. All other traits stay.

        A provider that cannot be published stops no other; one that was refused is tried again
        when it changes, or by ``check``. Providers that are not in the tree are left alone (see
        ``retire``).

        Raises exception.NotFound when the compute's provider is not there, and
        exception.Unavailable when Placement is not; what was done until then is remembered.
        """
        survey = Survey(self._placement, self._vocabulary, self._root(tree))
        return self._settle_all(_Pass(tree, frozenset(retired_traits), survey))

    def check(
        self,
        tree: ProviderTree,
        retired_traits: Collection[str] = (),
        *,
        listing: Mapping[str, Node] | None = None,
    ) -> PublishResult:
        """As ``publish``, but believe nothing that Placement's generations do not confirm.

        Repairs what someone changed or deleted by hand. One request for the tree (none when
        ``listing`` is it, just read) and two for each provider whose generation is not the one
        last seen. The first call after a restart with a tree that was published before.
        """
        root = self._root(tree)
        if listing is None:
            listing = self._placement.tree(root)
        if root not in listing:
            del self._roots[tree.root_name]
            root = self._root(tree)
            listing = self._placement.tree(root)
        self._forget_stale(tree, listing)
        survey = Survey(self._placement, self._vocabulary, root, listing)
        return self._settle_all(_Pass(tree, frozenset(retired_traits), survey))

    def withhold(self, uuids: Iterable[str]) -> list[str]:
        """Reserve all units of these providers; answers for which that was news.

        For devices that nobody can vouch for now. Nothing is created and nothing is offered, and
        traits stay; the next ``check`` brings back what is desired. Costs one request for each
        provider that is reserved already. One that is not there or cannot be written stops no
        other. Raises exception.Unavailable when Placement is not there.
        """
        return [uuid for uuid in uuids if self._withhold_quietly(uuid)]

    def retire(self, uuid: str, *, root: str | None = None) -> None:
        """Delete one of our providers, its inventory first; calling twice does no harm.

        Raises exception.Conflict while it has allocations or children, for a provider without
        parent, which is never ours, and for one that is not in the tree of ``root``, if given.
        """
        node = self._placement.find_by_uuid(uuid)
        if node is None:
            self._forget(uuid)
            return
        if node.parent_uuid is None:
            raise exception.Conflict(reason=f"{node.name} is a root provider and not ours")
        if root is not None and node.root_uuid != root:
            raise exception.Conflict(reason=f"{node.name} is another compute's now")
        try:
            self._placement.delete_inventories(uuid)
            self._placement.delete_provider(uuid)
        except exception.NotFound:
            _LOG.debug("Provider %s went away while it was deleted", uuid)
        self._forget(uuid)
        _LOG.info("Deleted provider %s (%s) from Placement", node.name, uuid)

    def _withhold_quietly(self, uuid: str) -> bool:
        try:
            return self._withhold(uuid)
        except exception.NotFound:
            return False
        except (exception.Conflict, exception.Invalid) as fault:
            _LOG.warning("Provider %s cannot be reserved in Placement: %s", uuid, fault)
            return False

    def _withhold(self, uuid: str) -> bool:
        for _ in range(_ATTEMPTS):
            generation, inventories = self._placement.inventories(uuid)
            reserved = {
                name: {**inventory, "reserved": inventory["total"]}
                for name, inventory in inventories.items()
            }
            if reserved == inventories:
                return False
            self._seen.pop(uuid, None)
            try:
                self._placement.set_inventories(uuid, generation, reserved)
            except exception.Conflict as fault:
                if fault.fields.get("code") != CONCURRENT_UPDATE:
                    raise
            else:
                return True
        raise exception.Conflict(reason=f"it changed {_ATTEMPTS} times while being written")

    def _root(self, tree: ProviderTree) -> str:
        if tree.root_name not in self._roots:
            self.find_root([tree.root_name])
        return self._roots[tree.root_name]

    def _forget_stale(self, tree: ProviderTree, listing: Mapping[str, Node]) -> None:
        for provider in tree.providers:
            self._refused.pop(provider.uuid, None)
            seen, node = self._seen.get(provider.uuid), listing.get(provider.uuid)
            if seen is not None and (node is None or node.generation != seen.generation):
                del self._seen[provider.uuid]

    def _forget(self, uuid: str) -> None:
        for memory in (self._seen, self._ours, self._refused, self._logged_reasons):
            memory.pop(uuid, None)

    def _settle_all(self, this: _Pass) -> PublishResult:
        outcomes = tuple(self._outcome(provider, this) for provider in this.tree.providers)
        return PublishResult(this.survey.root, outcomes)

    def _outcome(self, desired: Provider, this: _Pass) -> ProviderOutcome:
        refused = self._refused.get(desired.uuid)
        if refused is not None and refused[0] == desired:
            return ProviderOutcome(desired.uuid, desired.name, Verdict.REFUSED, refused[1])
        verdict, reason = self._attempt(desired, this)
        if verdict is Verdict.REFUSED:
            self._refused[desired.uuid] = desired, reason
        else:
            self._refused.pop(desired.uuid, None)
        if reason and self._logged_reasons.get(desired.uuid) != reason:
            _LOG.warning("Placement does not show %s (%s): %s", desired.name, verdict, reason)
        self._logged_reasons[desired.uuid] = reason
        return ProviderOutcome(desired.uuid, desired.name, verdict, reason)

    def _attempt(self, desired: Provider, this: _Pass) -> tuple[Verdict, str]:
        """Settle one provider, keeping its trouble from the others."""
        flaw = desired.validate()
        if flaw is not None:
            return Verdict.REFUSED, flaw
        try:
            self._settle(desired, this)
        except exception.Unavailable as fault:
            # A 500 is what this one request did to Placement; anything else meets all of them.
            if fault.fields.get("http") != 500:
                raise
            return Verdict.FAILED, str(fault)
        except exception.Invalid as fault:
            # It may complain of a parent, trait or class that somebody deleted.
            self._roots.pop(this.tree.root_name, None)
            self._vocabulary.forget()
            return Verdict.FAILED, str(fault.fields["reason"])
        except exception.Conflict as fault:
            return Verdict.REFUSED if fault.fields.get("final") else Verdict.FAILED, str(fault)
        return Verdict.PUBLISHED, ""

    def _settle(self, desired: Provider, this: _Pass) -> None:
        """Bring one provider to its desired form, beginning anew when it moved meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                self._apply(desired, this)
                return
            except exception.NotFound:
                self._seen.pop(desired.uuid, None)
                this.survey.gone(desired.uuid)
            except exception.Invalid:
                # It may be the class that is lacking, though our traits are known here.
                if not self._vocabulary.make_class(desired.resource_class):
                    raise
            except exception.Conflict as fault:
                if fault.fields.get("code") != CONCURRENT_UPDATE:
                    raise
                self._seen.pop(desired.uuid, None)
                this.survey.there(desired.uuid)
        raise exception.Conflict(reason=f"it changed {_ATTEMPTS} times while being written")

    def _apply(self, desired: Provider, this: _Pass) -> None:
        if desired.uuid not in self._seen:
            self._seen[desired.uuid] = this.survey.enter(desired, this.tree)
        ours = this.retired_traits | self._ours.get(desired.uuid, frozenset())
        todo = changes(desired, self._seen[desired.uuid], ours)
        if todo:
            this.survey.learn(desired, this.tree)
        for change in todo:
            self._ours[desired.uuid] = ours | desired.traits
            self._seen[desired.uuid] = self._write(desired.uuid, change)
        self._ours[desired.uuid] = desired.traits
        this.survey.name(desired)
        if todo:
            _LOG.info("Placement shows %s as desired now", desired.name)

    def _write(self, uuid: str, change: Change) -> Actual:
        seen = self._seen[uuid]
        if isinstance(change, SetInventories):
            return replace(
                seen,
                generation=self._placement.set_inventories(
                    uuid, seen.generation, change.inventories
                ),
                inventories=change.inventories,
            )
        generation = self._placement.set_traits(uuid, seen.generation, change.traits)
        return replace(seen, generation=generation, traits=change.traits)

# SPDX-License-Identifier: Apache-2.0
"""Make the providers of a host in Placement equal to the desired state.

``Publisher`` creates providers and writes names, inventories and traits. It creates the custom
traits and resource classes that they need.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cyborg import exception
from cyborg.clients.placement import CONCURRENT_UPDATE, DUPLICATE_NAME, Node, Placement
from cyborg.model.provider import (
    Actual,
    Provider,
    ProviderOutcome,
    ProviderTree,
    PublishResult,
    SetInventories,
    Verdict,
    changes,
    is_custom,
)

_LOG = logging.getLogger(__name__)

#: Attempts to write one provider. Each allocation increments the generation of its provider, so a
#: write to a provider that is in use may conflict several times.
_ATTEMPTS = 5


class Publisher:
    """Publish provider trees, and remember what Placement held at which generation.

    With the memory, an unchanged tree costs no request. The loss of the memory (a restart) costs
    reads but no writes. Not safe for concurrent threads.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._roots: dict[str, str] = {}
        self._seen: dict[str, Actual] = {}
        self._ours: dict[str, frozenset[str]] = {}
        self._refused: dict[str, tuple[Provider, str]] = {}
        self._logged_reasons: dict[str, str] = {}
        self._names = CustomNames(placement)

    def find_root(self, names: Sequence[str]) -> tuple[str, str]:
        """Return UUID and name of the compute's provider, and remember them for ``publish``.

        Raises exception.NotFound, which names all of ``names``, if Placement has none of them.
        """
        uuid, name = self._placement.find_root(names)
        self._roots[name] = uuid
        return uuid, name

    def recall(self, tree: ProviderTree) -> None:
        """Record that an earlier process published this tree, so that its traits are ours.

        What this process has recorded about a provider itself takes precedence.
        """
        for provider in tree.providers:
            self._ours.setdefault(provider.uuid, provider.traits)

    def publish(self, tree: ProviderTree) -> PublishResult:
        """Write the differences from what was last seen; send no request if there are none.

        Traits that this process published or recalled, and that are no longer desired, are removed.
        All other traits stay.

        A provider that cannot be published does not stop the others. A refused provider is tried
        again when it changes, or by ``check``. Providers that are not in the tree are left alone
        (see ``retire``).

        Raises exception.NotFound if the compute's provider does not exist, and
        exception.Unavailable if Placement is not available; completed writes are remembered.
        """
        return self._settle_all(ActualTree(self._placement, self._names, self._root(tree), tree))

    def check(
        self, tree: ProviderTree, *, listing: Mapping[str, Node] | None = None
    ) -> PublishResult:
        """Publish like ``publish``, after a comparison of all generations with Placement.

        This repairs what somebody changed or deleted by hand. It costs one request for the tree
        (none with ``listing``, the tree as just read) and two requests for each provider whose
        generation is not the one last seen. Call it first after a restart, with the tree that was
        published before.
        """
        root = self._root(tree)
        if listing is None:
            listing = self._placement.tree(root)
        if root not in listing:
            del self._roots[tree.root_name]
            root = self._root(tree)
            listing = self._placement.tree(root)
        for provider in tree.providers:
            self._refused.pop(provider.uuid, None)
            seen, node = self._seen.get(provider.uuid), listing.get(provider.uuid)
            if seen is not None and (node is None or node.generation != seen.generation):
                del self._seen[provider.uuid]
        actual = ActualTree(self._placement, self._names, root, tree, listing=listing)
        return self._settle_all(actual)

    def reserve(self, uuids: Iterable[str]) -> list[str]:
        """Reserve all units of these providers; return the UUIDs of those that changed.

        This is for devices whose state is unknown now. It creates no provider, offers no unit and
        keeps all traits; the next ``check`` restores the desired state. A provider that is reserved
        already costs one request. A provider that does not exist or cannot be written does not stop
        the others. Raises exception.Unavailable if Placement is not available.
        """
        changed = []
        for uuid in uuids:
            try:
                if self._reserve_all(uuid):
                    changed.append(uuid)
            except exception.NotFound:
                continue
            except (exception.Conflict, exception.Invalid) as fault:
                _LOG.warning("Provider %s cannot be reserved in Placement: %s", uuid, fault)
        return changed

    def retire(self, uuid: str, *, root: str | None = None) -> None:
        """Delete one of our providers, its inventory first; a repeated call changes nothing.

        Raises exception.Conflict while the provider has allocations or children, for a provider
        without parent, which is never ours, and for a provider outside the tree of ``root``, if
        given.
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
            _LOG.debug("Provider %s was deleted by somebody else at the same time", uuid)
        self._forget(uuid)
        _LOG.info("Deleted provider %s (%s) from Placement", node.name, uuid)

    def _reserve_all(self, uuid: str) -> bool:
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

    def _forget(self, uuid: str) -> None:
        for memory in (self._seen, self._ours, self._refused, self._logged_reasons):
            memory.pop(uuid, None)

    def _settle_all(self, actual: "ActualTree") -> PublishResult:
        outcomes = []
        for desired in actual.desired.providers:
            uuid, name = desired.uuid, desired.name
            refused = self._refused.get(uuid)
            if refused is not None and refused[0] == desired:
                outcomes.append(ProviderOutcome(uuid, name, Verdict.REFUSED, refused[1]))
                continue
            verdict, reason = self._attempt(desired, actual)
            if verdict is Verdict.REFUSED:
                self._refused[uuid] = desired, reason
            else:
                self._refused.pop(uuid, None)
            if reason and self._logged_reasons.get(uuid) != reason:
                _LOG.warning(
                    "Provider %s is not as desired in Placement (%s): %s", name, verdict, reason
                )
            self._logged_reasons[uuid] = reason
            outcomes.append(ProviderOutcome(uuid, name, verdict, reason))
        return PublishResult(actual.root, tuple(outcomes))

    def _attempt(self, desired: Provider, actual: "ActualTree") -> tuple[Verdict, str]:
        """Settle one provider; turn an error that concerns only this provider into its verdict."""
        flaw = desired.validate()
        if flaw is not None:
            return Verdict.REFUSED, flaw
        try:
            self._settle(desired, actual)
        except exception.Unavailable as fault:
            # A 500 may be caused by this one request; any other reason affects all providers.
            if fault.fields.get("http") != 500:
                raise
            return Verdict.FAILED, str(fault)
        except exception.Invalid as fault:
            # The cause may be a parent, trait or class that somebody deleted.
            self._roots.pop(actual.desired.root_name, None)
            self._names.forget()
            return Verdict.FAILED, str(fault.fields["reason"])
        except exception.Conflict as fault:
            return Verdict.REFUSED if fault.fields.get("final") else Verdict.FAILED, str(fault)
        return Verdict.PUBLISHED, ""

    def _settle(self, desired: Provider, actual: "ActualTree") -> None:
        """Write one provider; start again if somebody changed it in the meantime."""
        for _ in range(_ATTEMPTS):
            try:
                self._apply(desired, actual)
                return
            except exception.NotFound:
                self._seen.pop(desired.uuid, None)
                actual.discard(desired.uuid)
            except exception.Invalid:
                # The resource class may be missing, although Placement has all our traits.
                if not self._names.make_class(desired.resource_class):
                    raise
            except exception.Conflict as fault:
                if fault.fields.get("code") != CONCURRENT_UPDATE:
                    raise
                self._seen.pop(desired.uuid, None)
                actual.add(desired.uuid)
        raise exception.Conflict(reason=f"it changed {_ATTEMPTS} times while being written")

    def _apply(self, desired: Provider, actual: "ActualTree") -> None:
        if desired.uuid not in self._seen:
            self._seen[desired.uuid] = actual.find_or_create(desired)
        ours = self._ours.get(desired.uuid, frozenset())
        todo = changes(desired, self._seen[desired.uuid], ours)
        if todo:
            actual.create_names(desired)
        for change in todo:
            self._ours[desired.uuid] = ours | desired.traits
            seen = self._seen[desired.uuid]
            if isinstance(change, SetInventories):
                generation = self._placement.set_inventories(
                    desired.uuid, seen.generation, change.inventories
                )
                seen = replace(seen, generation=generation, inventories=change.inventories)
            else:
                generation = self._placement.set_traits(
                    desired.uuid, seen.generation, change.traits
                )
                seen = replace(seen, generation=generation, traits=change.traits)
            self._seen[desired.uuid] = seen
        self._ours[desired.uuid] = desired.traits
        actual.restore_name(desired)
        if todo:
            _LOG.info("Provider %s is as desired in Placement", desired.name)


class ActualTree:
    """The providers of one host's tree in Placement, read and created as far as one pass needs.

    ``tree`` is the desired tree, and ``root`` the UUID of the compute's provider. ``listing`` are
    the providers that Placement has in this tree, if they have been read already. A conflict that
    only an operator can resolve is raised as exception.Conflict with the field ``final``.
    """

    def __init__(
        self,
        placement: Placement,
        custom_names: "CustomNames",
        root: str,
        tree: ProviderTree,
        *,
        listing: Mapping[str, Node] | None = None,
    ) -> None:
        self.root = root
        self.desired = tree
        self._placement = placement
        self._names = custom_names
        self._listed = listing is not None
        self._learned = False
        self._present = set(listing or ())
        self._provider_names = {uuid: node.name for uuid, node in (listing or {}).items()}

    def add(self, uuid: str) -> None:
        """Record that the host's tree has this provider."""
        self._present.add(uuid)

    def discard(self, uuid: str) -> None:
        """Record that this provider does not exist any more."""
        self._present.discard(uuid)
        self._provider_names.pop(uuid, None)

    def restore_name(self, desired: Provider) -> None:
        """Restore the name of a provider that somebody renamed.

        If another provider has the name now, log it and leave it to an operator: the name is only
        for readers.
        """
        current = self._provider_names.get(desired.uuid, desired.name)
        if current == desired.name:
            return
        try:
            self._placement.rename(desired.uuid, desired.name)
        except exception.Conflict as fault:
            if fault.fields.get("code") != DUPLICATE_NAME:
                raise
            _LOG.warning(
                "Provider %s keeps name %s in Placement: another provider has its name %s",
                desired.uuid,
                current,
                desired.name,
            )
            return
        _LOG.info("Restored name of provider %s in Placement: %s", desired.uuid, desired.name)

    def create_names(self, desired: Provider) -> None:
        """Create the traits and classes of the whole tree; call this before the first write.

        Raises exception.Conflict if ``desired`` has traits that cannot be created.
        """
        if not self._learned:
            self._learned = True
            self._names.create_all(
                provider for provider in self.desired.providers if provider.validate() is None
            )
        unknown = ", ".join(sorted(desired.traits - self._names.traits))
        if unknown:
            reason = f"this Placement does not know the standard traits {unknown}"
            raise exception.Conflict(reason=reason, final=True)

    def find_or_create(self, desired: Provider) -> Actual:
        """Return what Placement holds of a provider; create the provider if it does not exist.

        Raises exception.Conflict if another provider has its name or UUID.
        """
        if desired.uuid in self._present:
            return self._read(desired.uuid)
        self.create_names(desired)
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
        """Return what Placement holds of a provider whose name or UUID is in use.

        A provider in the host's tree is ours (an earlier process published it). The tree is listed
        once per pass.
        """
        if not self._listed:
            self._listed = True
            self._present |= self._placement.tree(self.root).keys()
        if desired.uuid in self._present:
            return self._read(desired.uuid)
        holder = self._placement.find_by_name(desired.name) or self._placement.find_by_uuid(
            desired.uuid
        )
        if holder is None:
            raise exception.Conflict(
                reason="its name or UUID was in use in Placement, and is free again"
            )
        claimant = holder.uuid
        if holder.parent_uuid is not None:
            claimant += f" in the tree of {holder.root_uuid}"
        raise exception.Conflict(reason=f"claimed in Placement by {claimant}", final=True)

    def _read(self, uuid: str) -> Actual:
        generation, inventories = self._placement.inventories(uuid)
        later, traits = self._placement.traits(uuid)
        # With the lower generation, the next write fails if the provider changed between the reads.
        return Actual(min(generation, later), inventories, traits)


class CustomNames:
    """Create custom traits and resource classes; remember existing names for the process."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._classes: frozenset[str] = frozenset()
        #: The traits that Placement has.
        self.traits: frozenset[str] = frozenset()

    def create_all(self, providers: Iterable[Provider]) -> None:
        """Create the custom traits and classes of all these providers that do not exist.

        This costs one request for the traits, and one for each missing name. If Placement has all
        our custom traits, such devices have been published before, so their classes exist too and
        are not requested. See ``make_class`` for the case in which they do not exist.
        """
        desired = tuple(providers)
        traits = {trait for provider in desired for trait in provider.traits}
        lacking: set[str] = set()
        unchecked = traits - self.traits
        if unchecked:
            existing = self._placement.known_traits(unchecked)
            lacking = {name for name in unchecked - existing if is_custom(name)}
            for name in sorted(lacking):
                self._placement.create_trait(name)
            self.traits |= existing | lacking
        if lacking or not any(is_custom(trait) for trait in traits):
            for name in sorted({provider.resource_class for provider in desired}):
                self.make_class(name)

    def make_class(self, name: str) -> bool:
        """Create a custom resource class; return False for a standard or remembered one."""
        if not is_custom(name) or name in self._classes:
            return False
        self._placement.create_resource_class(name)
        self._classes |= {name}
        return True

    def forget(self) -> None:
        """Forget all names: somebody may have deleted one."""
        self._classes = self.traits = frozenset()

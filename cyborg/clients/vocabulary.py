# SPDX-License-Identifier: Apache-2.0
"""The traits and resource classes that Placement knows: custom ones are made, none is deleted."""

from collections.abc import Iterable

from cyborg.clients.placement import Placement
from cyborg.model.provider import Provider, is_custom


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
        wanted = tuple(providers)
        traits = {trait for one in wanted for trait in one.traits}
        met_before = self._learn_traits(traits) and any(is_custom(one) for one in traits)
        if not met_before:
            for name in sorted({one.resource_class for one in wanted}):
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

    def _learn_traits(self, wanted: set[str]) -> bool:
        """Make the custom ones exist; answers whether all of them did already."""
        asked = wanted - self._traits
        if not asked:
            return True
        known = self._placement.known_traits(asked)
        lacking = {name for name in asked - known if is_custom(name)}
        for name in sorted(lacking):
            self._placement.create_trait(name)
        self._traits |= known | lacking
        return not lacking

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

        At most one request for the classes, one for the traits, and one for each word lacking.
        """
        wanted = tuple(providers)
        self._learn_classes({one.resource_class for one in wanted if is_custom(one.resource_class)})
        self._learn_traits({trait for one in wanted for trait in one.traits})

    def lack(self, provider: Provider) -> str | None:
        """The sentence that names what this Placement does not know; None when it knows all."""
        unknown = provider.traits - self._traits
        if unknown:
            return f"this Placement does not know the standard traits {', '.join(sorted(unknown))}"
        return None

    def forget(self) -> None:
        """Believe nothing any more: somebody may have deleted a word."""
        self._classes = self._traits = frozenset()

    def _learn_classes(self, wanted: set[str]) -> None:
        if wanted <= self._classes:
            return
        known = self._placement.resource_classes()
        for name in sorted(wanted - known):
            self._placement.create_resource_class(name)
        self._classes |= known | wanted

    def _learn_traits(self, wanted: set[str]) -> None:
        asked = wanted - self._traits
        if not asked:
            return
        known = self._placement.known_traits(asked)
        lacking = {name for name in asked - known if is_custom(name)}
        for name in sorted(lacking):
            self._placement.create_trait(name)
        self._traits |= known | lacking

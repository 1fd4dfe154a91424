# SPDX-License-Identifier: Apache-2.0
"""What clients see while things break, kept apart by client and by fault."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

#: What stands in for a status where no answer came.
NOTHING = "none"
VERBS = ("create", "bind", "list", "delete")


@dataclass
class Seen:
    """What one client saw: answers by verb and status; what became of its binds."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    lifecycles: int = 0
    failed: int = 0
    settled: int = 0

    def row(self, verb: str) -> str:
        """The answers to one verb, in words: successes as their number, the others by status."""
        mine = {status: count for (one, status), count in self.answers.items() if one == verb}
        good = sum(count for status, count in mine.items() if status.startswith("2"))
        others = [f"{status} x{mine[status]}" for status in sorted(mine) if status[0] != "2"]
        return ", ".join([str(good), *others])


@dataclass
class Chapter:
    """All that clients saw from the beginning of one fault until its verdict.

    ``binds`` are the times of PATCHes in seconds, those without an answer included.
    """

    seen: Mapping[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    binds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class ClientLog:
    """Writes down; may be told from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chapter = Chapter()
        self._holders: dict[tuple[str, str], str] = {}
        self.left_behind = 0

    @property
    def page(self) -> Chapter:
        """The chapter that is being written."""
        with self._lock:
            return self._chapter

    def turn_page(self) -> None:
        """Begin a new chapter."""
        with self._lock:
            self._chapter = Chapter()

    def answer(self, client: str, verb: str, status: str, seconds: float) -> None:
        """A request was answered, or not (``NOTHING``)."""
        with self._writing(client) as seen:
            seen.answers[verb, status] += 1
            if verb == "bind":
                self._chapter.binds.append(seconds)

    def lived(self, client: str) -> None:
        """A life from scheduling to the end of its bind."""
        with self._writing(client) as seen:
            seen.lifecycles += 1

    def failed(self, client: str) -> None:
        """A bind ended as BindFailed."""
        with self._writing(client) as seen:
            seen.failed += 1

    def settled(self, client: str) -> None:
        """A request whose outcome was unknown was repeated, and the outcome known then."""
        with self._writing(client) as seen:
            seen.settled += 1

    def violation(self, sentence: str) -> None:
        """Something that must never be."""
        with self._lock:
            self._chapter.violations.append(sentence)

    def may_be_left(self, count: int) -> None:
        """So many ARQs may have been made by requests of which no answer was seen."""
        with self._lock:
            self.left_behind += count

    def hold(self, unit: tuple[str, str], instance: str) -> None:
        """A guest has a unit now (provider, address): nobody else may."""
        with self._lock:
            holder = self._holders.setdefault(unit, instance)
            if holder != instance:
                sentence = f"unit {unit[1]} of {unit[0]} is given to {instance} and to {holder}"
                self._chapter.violations.append(sentence)

    def let_go(self, instance: str) -> None:
        """A guest is about to give its units back."""
        with self._lock:
            self._holders = {
                unit: holder for unit, holder in self._holders.items() if holder != instance
            }

    @contextmanager
    def _writing(self, client: str) -> Iterator[Seen]:
        with self._lock:
            yield self._chapter.seen[client]

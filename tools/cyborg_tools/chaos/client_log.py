# SPDX-License-Identifier: Apache-2.0
"""Record what clients see during faults, by client and by fault."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

#: The status of a request without a response.
NOTHING = "none"
VERBS = ("create", "bind", "list", "delete")


@dataclass
class Seen:
    """Results of one client: responses by verb and status, and the end of its binds."""

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
    """Results of all clients from the start of one fault until its verdict.

    ``binds`` are the times of PATCHes in seconds, those without an answer included.
    """

    seen: Mapping[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    binds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class ClientLog:
    """The log of all clients; its methods can be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chapter = Chapter()
        self._holders: dict[tuple[str, str], str] = {}
        self.left_behind = 0

    @property
    def page(self) -> Chapter:
        """Return the current chapter."""
        with self._lock:
            return self._chapter

    def turn_page(self) -> None:
        """Start a new chapter."""
        with self._lock:
            self._chapter = Chapter()

    def answer(self, client: str, verb: str, status: str, seconds: float) -> None:
        """Record the status of a response; ``NOTHING`` if there was none."""
        with self._writing(client) as seen:
            seen.answers[verb, status] += 1
            if verb == "bind":
                self._chapter.binds.append(seconds)

    def lived(self, client: str) -> None:
        """Count one server, from scheduling to the end of its bind."""
        with self._writing(client) as seen:
            seen.lifecycles += 1

    def failed(self, client: str) -> None:
        """Record a bind that ended as BindFailed."""
        with self._writing(client) as seen:
            seen.failed += 1

    def settled(self, client: str) -> None:
        """Record a repeated request whose outcome is now known."""
        with self._writing(client) as seen:
            seen.settled += 1

    def violation(self, sentence: str) -> None:
        """Record a violation."""
        with self._lock:
            self._chapter.violations.append(sentence)

    def may_be_left(self, count: int) -> None:
        """So many ARQs may have been made by requests of which no answer was seen."""
        with self._lock:
            self.left_behind += count

    def hold(self, unit: tuple[str, str], instance: str) -> None:
        """Record that an instance holds a unit (provider, address)."""
        with self._lock:
            holder = self._holders.setdefault(unit, instance)
            if holder != instance:
                sentence = f"unit {unit[1]} of {unit[0]} is held by {instance} and by {holder}"
                self._chapter.violations.append(sentence)

    def let_go(self, instance: str) -> None:
        """Record that an instance releases its units."""
        with self._lock:
            self._holders = {
                unit: holder for unit, holder in self._holders.items() if holder != instance
            }

    @contextmanager
    def _writing(self, client: str) -> Iterator[Seen]:
        with self._lock:
            yield self._chapter.seen[client]

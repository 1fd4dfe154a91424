# SPDX-License-Identifier: Apache-2.0
"""The position of a reader that follows the history: which events it has read.

The ids of events grow in the order in which they are written, not in which they are committed: an
event with a smaller id may become visible later. So a position is an id up to which all events are
read, and the events above it that are read as well.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

#: How many runs of ids a position has at most.
MOST_RUNS: Final = 500
#: The length of the text of so many runs, in characters, unless the ids are far apart.
LONGEST_TEXT: Final = 16_384
#: The greatest id.
_GREATEST: Final = 2**63 - 1
_RUN: Final = re.compile(r"([1-9][0-9]{0,17})(?:-([1-9][0-9]{0,17}))?")


@dataclass(frozen=True)
class Position:
    """All events up to the id ``after`` are read, and those with an id in ``runs``.

    A run is its first and its last id. The runs are above ``after``, in order, and do not touch.
    """

    after: int
    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, after: int, text: str) -> Self:
        """Return a position from its id and the text of its runs; raises ValueError."""
        runs: list[tuple[int, int]] = []
        for part in text.split(",") if text else ():
            match = _RUN.fullmatch(part)
            if match is None:
                raise ValueError("it must be numbers and ranges, for example 1-3,7")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or (runs and after + first <= runs[-1][1]):
                raise ValueError("its numbers must grow")
            if after + last > _GREATEST:
                raise ValueError("its numbers are too large")
            runs.append((after + first, after + last))
        if len(runs) > MOST_RUNS:
            raise ValueError(f"it has more than {MOST_RUNS} parts")
        return cls(after, tuple(runs))

    @property
    def text(self) -> str:
        """Return the runs as numbers and ranges, counted from ``after``."""
        pairs = ((first - self.after, last - self.after) for first, last in self.runs)
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)

    def has_read(self, id_: int) -> bool:
        """Return whether an event is read."""
        return id_ <= self.after or any(first <= id_ <= last for first, last in self.runs)

    def read(self, ids: Iterable[int]) -> Self:
        """Return the position after these events are read as well."""
        new = [(id_, id_) for id_ in ids if not self.has_read(id_)]
        runs: list[tuple[int, int]] = []
        for first, last in sorted([*self.runs, *new]):
            if runs and first <= runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
            else:
                runs.append((first, last))
        return replace(self, runs=tuple(runs))

    def settled(self, id_: int) -> Self:
        """Return the position when no event up to this id can become visible any more."""
        if id_ <= self.after:
            return self
        runs = tuple((max(first, id_ + 1), last) for first, last in self.runs if last > id_)
        return replace(self, after=id_, runs=runs)

    def room(self, settled: int) -> int:
        """Return how many events above ``settled`` can be read: the runs are bounded."""
        return MOST_RUNS - len(self.settled(settled).runs)

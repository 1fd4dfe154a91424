# SPDX-License-Identifier: Apache-2.0
"""Compare what a host reports with the stored rows of one table, by key."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Stored(Protocol):
    """A stored row."""

    @property
    def id(self) -> int: ...


class Losable(Stored, Protocol):
    """A stored row that stays when its object is lost, since ``lost_ms``."""

    @property
    def lost_ms(self) -> int | None: ...


Key = TypeVar("Key", bound=Hashable)
S = TypeVar("S", bound=Stored)
L = TypeVar("L", bound=Losable)
Row = dict[str, Any]


@dataclass
class Comparison(Generic[Key, S]):
    """The stored rows and the reported columns of one table, each by key.

    Only rows that the report may change belong to ``stored``. The columns in ``reported`` are those
    that the report decides.
    """

    stored: dict[Key, S] = field(default_factory=dict)
    reported: dict[Key, Row] = field(default_factory=dict)

    @property
    def added(self) -> dict[Key, Row]:
        """Return the columns that have no row yet, by key."""
        return {key: row for key, row in self.reported.items() if key not in self.stored}

    @property
    def changed(self) -> Iterator[tuple[int, Row]]:
        """Yield the id of each row that differs, with the columns that differ."""
        for key, columns in self.reported.items():
            if key in self.stored:
                row = self.stored[key]
                values = {name: new for name, new in columns.items() if getattr(row, name) != new}
                if values:
                    yield row.id, values

    @property
    def kept(self) -> list[S]:
        """Return the rows that the report shows."""
        return [row for key, row in self.stored.items() if key in self.reported]

    @property
    def missing(self) -> list[S]:
        """Return the rows that the report does not show."""
        return [row for key, row in self.stored.items() if key not in self.reported]


@dataclass
class LosableComparison(Comparison[Key, L]):
    """The rows and the columns of a table whose rows stay when their objects are lost."""

    @property
    def lost(self) -> list[int]:
        """Return the ids of the rows that the report does not show and that are not lost yet."""
        return [row.id for row in self.missing if row.lost_ms is None]

    @property
    def returned(self) -> list[int]:
        """Return the ids of the rows that are marked lost and that the report shows."""
        return [row.id for row in self.kept if row.lost_ms is not None]

# SPDX-License-Identifier: Apache-2.0
"""The results of a run, as values that turn into JSON and into tables."""

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Samples:
    """Times of one kind of request in seconds, and how long all of it took."""

    times: Sequence[float]
    elapsed: float

    @property
    def p50_ms(self) -> float:
        """The median in milliseconds."""
        return statistics.median(self.times) * 1000

    @property
    def p99_ms(self) -> float:
        """What 99 of 100 stayed within (the slowest, for fewer than 100), in milliseconds."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000

    @property
    def per_second(self) -> float:
        """How many there were in a second."""
        return len(self.times) / self.elapsed


@dataclass(frozen=True)
class Figure:
    """One measured thing.

    ``others`` are the unrelated requests in the database, ``rows`` how many things an answer
    holds. ``floor_ms`` is None where this run has no floor to compare with, ``aim`` is the ratio
    to it that should not be exceeded.
    """

    name: str
    others: int
    clients: int
    rows: int
    samples: int
    per_second: float
    p50_ms: float
    p99_ms: float
    floor_ms: float | None = None
    aim: float | None = None

    @classmethod
    def of(cls, name: str, found: Samples, **more: Any) -> "Figure":
        """Sum samples up."""
        return cls(
            name=name,
            samples=len(found.times),
            per_second=found.per_second,
            p50_ms=found.p50_ms,
            p99_ms=found.p99_ms,
            **{"others": 0, "clients": 1, "rows": 1, **more},
        )

    @property
    def ratio(self) -> float | None:
        """The median as a multiple of the floor."""
        return self.p50_ms / self.floor_ms if self.floor_ms else None

    @property
    def missed(self) -> bool:
        """Whether the ratio is above its aim."""
        return self.ratio is not None and self.aim is not None and self.ratio > self.aim

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "ratio": self.ratio, "missed": self.missed}


@dataclass(frozen=True)
class Count:
    """What one kind of request cost among so many others, and what it may cost."""

    name: str
    others: int
    statements: int
    commits: int
    rpc: int
    allowed: tuple[int, int, int] | None

    @property
    def exceeded(self) -> bool:
        """Whether it cost more than it may."""
        costs = (self.statements, self.commits, self.rpc)
        return self.allowed is not None and any(
            cost > most for cost, most in zip(costs, self.allowed, strict=True)
        )

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "exceeded": self.exceeded}


@dataclass(frozen=True)
class AuditFigure:
    """Duration and peak memory of the process that audited a cloud with so many ARQs."""

    arqs: int
    seconds: float
    mebibytes: float
    findings: int


@dataclass
class Results:
    """Everything of one run; ``floor`` holds the parts that the floors are made of."""

    database: str
    transport: str
    counts: list[Count] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    floor: list[Figure] = field(default_factory=list)
    audits: list[AuditFigure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exceeded(self) -> list[Count]:
        """The counts above what they may be."""
        return [one for one in self.counts if one.exceeded]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "database": self.database,
            "transport": self.transport,
            "python": platform.python_version(),
            "seconds": self.seconds,
            "counts": [one.document() for one in self.counts],
            "floor": [one.document() for one in self.floor],
            "figures": [one.document() for one in self.figures],
            "audits": [asdict(one) for one in self.audits],
        }


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table with a line below its head; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in [rows[0], ["-" * width for width in widths], *rows[1:]]:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)

# SPDX-License-Identifier: Apache-2.0
"""The results of a run, as values that become tables or JSON."""

from dataclasses import dataclass, field
from typing import Any

from cyborg_tools.bench.figures import Samples
from cyborg_tools.chaos.client_log import VERBS, Chapter


@dataclass
class Part:
    """One fault, from its beginning to the verdict; times in seconds.

    ``recovery`` is how long after the fault's end a new server took to boot with a device that
    needs preparation, Nova told and all; None for the part without a fault.
    """

    name: str
    title: str
    chapter: Chapter
    facts: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    recovery: float | None = None
    elapsed: float = 0.0

    @property
    def violations(self) -> list[str]:
        """Return the violations."""
        return self.chapter.violations

    @property
    def bind_p50_ms(self) -> float | None:
        """The median time of a PATCH."""
        return self._binds.p50_ms if self.chapter.binds else None

    @property
    def bind_p99_ms(self) -> float | None:
        """The time that one PATCH in a hundred exceeds; of few, the slowest."""
        return self._binds.p99_ms if self.chapter.binds else None

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "fault": self.name,
            "title": self.title,
            "facts": self.facts,
            "figures_s": {name: round(value, 2) for name, value in self.figures.items()},
            "recovery_s": None if self.recovery is None else round(self.recovery, 2),
            "elapsed_s": round(self.elapsed, 1),
            "bind_ms": {"p50": self.bind_p50_ms, "p99": self.bind_p99_ms},
            "clients": {
                name: {
                    "boots": seen.lifecycles,
                    "failed": seen.failed,
                    "settled": seen.settled,
                    **{
                        verb: {
                            status: count
                            for (one, status), count in sorted(seen.answers.items())
                            if one == verb
                        }
                        for verb in VERBS
                    },
                }
                for name, seen in sorted(self.chapter.seen.items())
            },
            "violations": self.violations,
        }

    @property
    def _binds(self) -> Samples:
        return Samples(self.chapter.binds, self.elapsed)


@dataclass
class Results:
    """The whole run."""

    seed: int
    parts: list[Part] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def violations(self) -> int:
        """Return the number of violations."""
        return sum(len(one.violations) for one in self.parts)

    def document(self) -> dict[str, Any]:
        """One document for programs."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "parts": [one.document() for one in self.parts],
        }

# SPDX-License-Identifier: Apache-2.0
"""What accelerators measure of themselves: the figures that everybody understands, and others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

#: The figures that have a metric each, with their meaning; their names end in the unit.
FIGURES: Final[Mapping[str, str]] = {
    "utilization_ratio": "Utilisation of the accelerator, from 0 to 1.",
    "memory_used_bytes": "Used memory of the accelerator, in bytes.",
    "memory_total_bytes": "Total memory of the accelerator, in bytes.",
    "temperature_celsius": "Temperature of the accelerator, in degrees Celsius.",
    "power_watts": "Power draw of the accelerator, in watts.",
}
#: A driver may give so many figures of one device; the rest is left out.
MOST_FIGURES: Final = 64
_LONGEST_NAME: Final = 64


@dataclass(frozen=True)
class Reading:
    """What one device measured; ``driver`` and ``key`` name it within its host.

    ``figures`` are those of ``FIGURES`` that the driver knows and others of its own.
    """

    KIND: ClassVar[str] = "Reading"

    driver: str
    key: str
    figures: dict[str, float] = field(default_factory=dict)


def sound(figures: Mapping[Any, Any]) -> dict[str, float]:
    """The figures that are a word and a finite number; what else a driver gave is left out."""
    kept = {
        name: float(value)
        for name, value in figures.items()
        if isinstance(name, str)
        and 0 < len(name) <= _LONGEST_NAME
        and name.isprintable()
        and isinstance(value, int | float)
        and math.isfinite(value)
    }
    return dict(sorted(kept.items())[:MOST_FIGURES])

# SPDX-License-Identifier: Apache-2.0
"""Cards that measure what a test says, or never end to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.drivers.scan import Scan
from cyborg.tests.fixtures.waiting import Gate
from cyborg.tests.functional.life.cards import CardDriver, Rack, SecondDriver

FIGURES = {
    "utilization_ratio": 0.5,
    "memory_used_bytes": 1024.0,
    "temperature_celsius": 61.5,
    "power_watts": 120.0,
    "fan_rpm": 3000.0,
}


class MeasuringDriver(CardDriver):
    """``figures`` are those of all its cards; ``gate``, when closed, keeps it from answering."""

    figures: Any = FIGURES

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = Gate()
        self.gate.set()
        self.asked = 0

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver."""
        self.asked += 1
        self.gate.hold()
        if isinstance(self.figures, Exception):
            raise self.figures
        figures: Mapping[str, float] = self.figures
        return figures


class SecondMeasuringDriver(MeasuringDriver, SecondDriver):
    """The same for cards of another make."""

    name = "second_driver"


@dataclass(eq=False)
class MeasuringRack(Rack):
    """A machine with such cards."""

    driver: MeasuringDriver

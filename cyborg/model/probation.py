# SPDX-License-Identifier: Apache-2.0
"""How the health of a device follows what its agent reports, time, and the words of operators.

A device whose fault is gone stays reserved in ``probation`` for some time, and is offered again by
itself. One that was taken out of service too often is ``parked`` until an operator releases it. An
operator can have the faults of a device ``ignored`` for a limited time. All times are in
milliseconds of the clock of the database, and all of it is stored, so a restart changes nothing.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from cyborg.model.health import IGNORED, PARKED, PROBATION, Condition, DeviceHealth, legible_all

_FAULTY: Final = frozenset({Condition.DRAIN.value, Condition.DEAD.value})


#: The shortest and the longest time for which an operator can have faults ignored, in seconds.
IGNORE_LIMITS: Final = (60, 30 * 24 * 3600)


@dataclass(frozen=True)
class HealthOrder:
    """An operator's order about the health of a device.

    ``ignore_for`` is the time, in seconds, for which faults have no effect; None: the device
    follows its faults again, and is neither parked nor in probation any more.
    """

    KIND: ClassVar[str] = "HealthOrder"

    ignore_for: int | None = None


@dataclass(frozen=True)
class Rules:
    """Times in milliseconds: the length of a probation, and the window in which faults count.

    A device is parked at its fault number ``faults`` within the window; 0: it never is.
    """

    probation: int = 0
    faults: int = 0
    window: int = 0


#: A device whose fault is gone is offered at once, and is never parked.
AT_ONCE: Final = Rules()


@dataclass(frozen=True)
class State:
    """The stored health of a device.

    ``health`` is the word that decides whether its units are offered. ``reported`` is the last word
    of the agent. ``until`` is when a probation or the ignoring ends. ``faults`` are the times at
    which the device was taken out of service, oldest first.
    """

    health: str | None = None
    reasons: tuple[str, ...] = ()
    reported: str | None = None
    reported_reasons: tuple[str, ...] = ()
    until: int | None = None
    faults: tuple[int, ...] = ()

    def after_report(self, report: DeviceHealth, now: int, rules: Rules) -> "State":
        """Return the state after a report of the agent."""
        word = None if report.condition is None else report.condition.value
        state = replace(self, reported=word, reported_reasons=legible_all(report.reasons))
        return state.settled(now, rules)

    def settled(self, now: int, rules: Rules) -> "State":
        """Return the state at this time."""
        if self.health in (IGNORED, PROBATION) and self.until is not None and now >= self.until:
            return replace(self, health=None, reasons=(), until=None).settled(now, rules)
        faulty = self.reported in _FAULTY
        if self.health == IGNORED:
            return replace(self, reasons=_ignored(self.until or now, self.reported_reasons))
        if self.health == PARKED:
            return self
        if faulty:
            return self._out_of_service(now, rules)
        if self.health == PROBATION:
            return self
        if self.health in _FAULTY and rules.probation:
            until = now + rules.probation
            text = f"The fault is gone. The units are offered again at {_time(until)}."
            return replace(
                self, health=PROBATION, until=until, reasons=legible_all((text, *self.reasons))
            )
        return replace(self, health=self.reported, reasons=self.reported_reasons, until=None)

    def ignored(self, until: int) -> "State":
        """Return the state in which faults have no effect until this time."""
        reasons = _ignored(until, self.reported_reasons)
        return replace(self, health=IGNORED, reasons=reasons, until=until, faults=())

    def released(self, now: int, rules: Rules) -> "State":
        """Return the state after an operator ended a probation, a parking or the ignoring."""
        state = replace(self, health=None, reasons=(), until=None, faults=())
        return state.settled(now, rules)

    def _out_of_service(self, now: int, rules: Rules) -> "State":
        faults = tuple(at for at in self.faults if at > now - rules.window)
        if self.health not in _FAULTY:
            faults = (*faults, now)
        if 0 < rules.faults <= len(faults):
            text = (
                f"The device was taken out of service {len(faults)} times within "
                f"{rules.window / 3_600_000:g} h. Repair or replace it, then release it with "
                "'cyborg accelerator-update --health auto'."
            )
            reasons = legible_all((text, *self.reported_reasons))
            return replace(self, health=PARKED, reasons=reasons, until=None, faults=faults)
        return replace(
            self, health=self.reported, reasons=self.reported_reasons, until=None, faults=faults
        )


def _ignored(until: int, reported: tuple[str, ...]) -> tuple[str, ...]:
    return legible_all(
        (f"An operator has faults of the device ignored until {_time(until)}.", *reported)
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")

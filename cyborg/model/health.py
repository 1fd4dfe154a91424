# SPDX-License-Identifier: Apache-2.0
"""The health of a device: its words, their effect on the offered units, and its reports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

#: Characters of a reason that are kept, and reasons of a device.
_REASON: Final = 1000
_REASONS: Final = 20


class Condition(StrEnum):
    """The health of a device; without a word its driver has not reported the health.

    ``ok`` and ``degraded`` devices are offered. The units of ``drain`` and ``dead`` devices are
    reserved: ``drain`` when the driver reports a fault, ``dead`` when the device cannot work any
    more. Instances keep the units that they hold in every condition.
    """

    OK = "ok"
    DEGRADED = "degraded"
    DRAIN = "drain"
    DEAD = "dead"


#: The words that the conductor adds, see ``cyborg.model.probation``. The units of devices in
#: ``probation`` and of ``parked`` ones are reserved, those of ``ignored`` ones are offered.
PROBATION: Final = "probation"
PARKED: Final = "parked"
IGNORED: Final = "ignored"
#: Every word of the API for the health of a device.
CONDITIONS: Final = (*(condition.value for condition in Condition), PROBATION, PARKED, IGNORED)
#: What the history and notifications say where the driver has not told the health.
UNKNOWN: Final = "unknown"
_ACTION: Final = "health "
#: The words for devices that are offered.
OFFERED: Final = frozenset({Condition.OK.value, Condition.DEGRADED.value, IGNORED})


def offered(health: str | None) -> bool:
    """Return whether units of a device with this health are offered; not for an unknown word."""
    return health is None or health in OFFERED


def notable(before: str | None, after: str | None) -> bool:
    """Return whether the history records a change of health; a first ``ok`` is not recorded."""
    return before != after and not {before, after} <= {None, Condition.OK.value}


def action(health: str | None) -> str:
    """Return the action of the history record about a change of a device's health."""
    return f"{_ACTION}{health or UNKNOWN}"


def of_action(action: str) -> str | None:
    """Return the health in the action of a history record; None for any other action."""
    return action.removeprefix(_ACTION) if action.startswith(_ACTION) else None


@dataclass(frozen=True)
class DeviceHealth:
    """What an agent reports about the health of one of its devices.

    ``condition`` None: the health of this device is not known (any more). ``reasons`` are printable
    lines: what was observed, and what the operator should do.
    """

    key: str
    condition: Condition | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signal:
    """One fact about the health of a device, which the health policy of the host judges.

    ``kind`` and ``name`` say what is told: ``nvidia`` and ``xid``, for example. ``code`` is its
    value, a word or a number. ``evidence`` is a clause for the operator: what was observed.
    """

    kind: str
    name: str
    code: str | int
    evidence: str


class Recovery(StrEnum):
    """What can recover a device from a fault that lasts."""

    #: A driver of the host was bound to it.
    BIND = "bind"
    #: The agent has reset it.
    RESET = "reset"
    #: It was removed from the bus, and added again.
    REPLUG = "replug"


@dataclass(frozen=True)
class Finding:
    """What a signal means; ``evidence`` is a clause, ``action`` a sentence or None.

    ``until`` names what recovers the device: the fault stays until the agent has seen one of it.
    Empty: the fault ends when it is not told any more. ``signal`` None: an earlier process has
    reported the fault.
    """

    condition: Condition
    evidence: str
    action: str | None = None
    until: frozenset[Recovery] = frozenset()
    signal: Signal | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons that the finding gives."""
        return legible_all((self.evidence, self.action))


@dataclass(frozen=True)
class Judgement:
    """What all signals about a device mean together; the worst finding is first.

    Without findings the device is ``ok``.
    """

    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Self:
        """Return the judgement of findings in any order; those that mean ``ok`` do not count."""
        faults = [finding for finding in findings if finding.condition is not Condition.OK]
        return cls(tuple(sorted(faults, key=lambda fault: -_SEVERITY[fault.condition])))

    @property
    def condition(self) -> Condition:
        """Return the worst condition."""
        return self.findings[0].condition if self.findings else Condition.OK

    @property
    def evidence(self) -> tuple[str, ...]:
        """Return what was observed."""
        return tuple(dict.fromkeys(finding.evidence for finding in self.findings))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return what was observed and what to do about it, as far as a device keeps reasons."""
        reasons = dict.fromkeys(text for finding in self.findings for text in finding.reasons)
        return tuple(reasons)[:_REASONS]


_SEVERITY: Final = {condition: number for number, condition in enumerate(Condition)}


def legible(text: str | None) -> str | None:
    """Return a reason as one printable line that any database can store; None if it is empty."""
    words = "".join(
        character if character.isprintable() else " " for character in text or ""
    ).split()
    return " ".join(words)[:_REASON] or None


def legible_all(texts: Iterable[str | None]) -> tuple[str, ...]:
    """Return reasons as printable lines, without the empty ones and within the limit."""
    lines = (legible(text) for text in texts)
    return tuple(line for line in lines if line is not None)[:_REASONS]


def summary(reasons: Sequence[str]) -> str | None:
    """Return reasons as one text of sentences, for the history and for logs; None without any."""
    parts = [*(reason.rstrip(".") for reason in reasons[:-1]), *reasons[-1:]]
    return legible(". ".join(parts))


def text(reasons: Sequence[str]) -> str | None:
    """Return reasons as the text of a column, one to a line; None without any."""
    return "\n".join(reasons) or None


def stored(column: str | None) -> tuple[str, ...]:
    """Return the reasons in the text of a column."""
    return tuple((column or "").splitlines())

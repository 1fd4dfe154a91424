# SPDX-License-Identifier: Apache-2.0
"""The health of a device: its words, their effect on the offered units, and its reports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
class Finding:
    """One fact that the agent itself observed about a device.

    ``evidence`` is a clause, ``action`` a sentence for the operator, None: nothing is to be done.
    """

    condition: Condition
    evidence: str
    action: str | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons that the finding gives."""
        return legible_all((self.evidence, self.action))


def merged(
    key: str, answer: DeviceHealth | None, findings: Sequence[Finding] | None
) -> DeviceHealth | None:
    """Return the health of a device from the driver's answer and the findings of the agent.

    The worst condition counts, and the reasons of all are kept, those of the worst first.
    ``answer`` is None while the driver has not answered or has no health check, ``findings`` while
    the agent has not checked the device. None: nothing is known that could be reported.
    """
    parts: list[tuple[Condition, tuple[str, ...]]] = []
    if answer is not None and answer.condition is not None:
        parts.append((answer.condition, answer.reasons))
    if findings is not None:
        parts += [(finding.condition, finding.reasons) for finding in findings]
        parts.append((Condition.OK, ()))
    if not parts:
        return answer
    parts.sort(key=lambda part: -_SEVERITY[part[0]])
    reasons = [
        reason for condition, texts in parts if condition is not Condition.OK for reason in texts
    ]
    return DeviceHealth(key, parts[0][0], tuple(dict.fromkeys(reasons))[:_REASONS])


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

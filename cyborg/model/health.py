# SPDX-License-Identifier: Apache-2.0
"""The health of a device: the words, what each means for the offer, and how an agent reports it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Characters of a reason that are kept.
_REASON: Final = 1000


class Condition(StrEnum):
    """The health of a device; no word at all: its driver has not told the health.

    ``ok`` and ``degraded`` devices are offered. The units of ``drain`` and ``dead`` devices are
    reserved: ``drain`` when the driver reports a fault, ``dead`` when the device can work no more.
    Instances keep the units that they hold in every condition.
    """

    OK = "ok"
    DEGRADED = "degraded"
    DRAIN = "drain"
    DEAD = "dead"


#: Every word of the API for the health of a device.
CONDITIONS: Final = tuple(condition.value for condition in Condition)
#: What the history and notifications say where the driver has not told the health.
UNKNOWN: Final = "unknown"
_ACTION: Final = "health "
#: The words for devices that are offered.
OFFERED: Final = frozenset({Condition.OK.value, Condition.DEGRADED.value})


def offered(health: str | None) -> bool:
    """Whether units of a device of this health may be given out; an unknown word forbids it."""
    return health is None or health in OFFERED


def notable(before: str | None, after: str | None) -> bool:
    """Whether a change of health is recorded in the history; a first ``ok`` is not."""
    return before != after and not {before, after} <= {None, Condition.OK.value}


def action(health: str | None) -> str:
    """The action of a line of history about a device whose health has changed."""
    return f"{_ACTION}{health or UNKNOWN}"


def of_action(action: str) -> str | None:
    """The health that a line of history is about; None when it is about something else."""
    return action.removeprefix(_ACTION) if action.startswith(_ACTION) else None


@dataclass(frozen=True)
class DeviceHealth:
    """The last answer of a driver about one of its devices.

    ``condition`` None: the driver cannot tell the health of this device (any more).
    """

    key: str
    condition: Condition | None = None
    reason: str | None = None


def legible(text: str | None) -> str | None:
    """A reason in the form in which any database can store it: one line, printable, not empty."""
    words = "".join(
        character if character.isprintable() else " " for character in text or ""
    ).split()
    return " ".join(words)[:_REASON] or None

# SPDX-License-Identifier: Apache-2.0
"""The health of a device: its words, their effect on the offered units, and its reports."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Characters of a reason that are kept.
_REASON: Final = 1000


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


#: Every word of the API for the health of a device.
CONDITIONS: Final = tuple(condition.value for condition in Condition)
#: What the history and notifications say where the driver has not told the health.
UNKNOWN: Final = "unknown"
_ACTION: Final = "health "
#: The words for devices that are offered.
OFFERED: Final = frozenset({Condition.OK.value, Condition.DEGRADED.value})


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
    """The last answer of a driver about one of its devices.

    ``condition`` None: the driver cannot tell the health of this device (any more).
    """

    key: str
    condition: Condition | None = None
    reason: str | None = None


def legible(text: str | None) -> str | None:
    """Return a reason as one printable line that any database can store; None if it is empty."""
    words = "".join(
        character if character.isprintable() else " " for character in text or ""
    ).split()
    return " ".join(words)[:_REASON] or None

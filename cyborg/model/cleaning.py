# SPDX-License-Identifier: Apache-2.0
"""Cleaning: how thoroughly the data of a guest is removed from a unit before the next guest.

The host and the device profile both have a word. ``level`` is the only place that combines them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

#: The key of the ``accel:`` requirements of a group, and of the task of an agent.
CLEAN = "clean"


class CleanLevel(StrEnum):
    """What the agent does after a guest; each level includes the levels before it.

    ``reset``: the steps that bring the device into its initial state, which may leave data on its
    media. ``full``: also the steps that erase the data.
    """

    NONE = "none"
    RESET = "reset"
    FULL = "full"

    def includes(self, other: "CleanLevel") -> bool:
        """Return whether a step of the other level runs at this level."""
        order = list(CleanLevel)
        return order.index(other) <= order.index(self)


#: Key in the ``spec`` of release work: the unit waits until its device is in service.
FIRST: Final = "first"
#: The levels at which something is cleaned.
CLEANING = (CleanLevel.RESET, CleanLevel.FULL)


class HostClean(StrEnum):
    """What a host says about the units of a deployable that it can clean.

    ``default``: the host has a safe step and its configuration has no word. The other values are
    those of the configuration.
    """

    DEFAULT = "default"
    NONE = CleanLevel.NONE.value
    RESET = CleanLevel.RESET.value
    FULL = CleanLevel.FULL.value


@dataclass(frozen=True)
class CleanedStep:
    """A clean step that was completed, and how many milliseconds it took."""

    name: str
    ms: int


class CleanResult(StrEnum):
    """How the last cleaning of a unit ended, or that it has not ended."""

    CLEANING = "cleaning"
    CLEANED = "cleaned"
    #: Host or profile wanted no cleaning, or only steps that the unit does not have.
    SKIPPED = "skipped"
    FAILED = "failed"
    #: An operator has freed the unit without it.
    OVERRIDDEN = "overridden"


@dataclass(frozen=True)
class CleanRecord:
    """The last cleaning of a unit.

    ``steps`` were completed. ``reason`` says why it failed; while it goes on, it is the progress.
    """

    result: CleanResult
    level: CleanLevel
    steps: tuple[CleanedStep, ...] = ()
    reason: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return the record as it is stored and shown."""
        return {
            "result": self.result.value,
            "level": self.level.value,
            "steps": [{"name": step.name, "seconds": step.ms / 1000} for step in self.steps],
            "reason": self.reason,
        }


def host_clean(configured: CleanLevel | None, *, cleanable: bool) -> HostClean | None:
    """Return what a driver reports; None: nothing of the deployable can be cleaned.

    ``cleanable`` tells whether there is a safe step. Without one, only an explicit ``full`` is
    reported: a unit is then given out once, and an operator frees it.
    """
    if configured is None:
        return HostClean.DEFAULT if cleanable else None
    return HostClean(configured) if cleanable or configured is CleanLevel.FULL else None


def profile_level(spec: Mapping[str, str]) -> CleanLevel | None:
    """Return the level of the ``accel:`` requirements of a group, None where they have none.

    A value that is not a level is ignored: profiles of older clients may have any text here.
    """
    word = spec.get(CLEAN)
    return CleanLevel(word) if word in list(CleanLevel) else None


def level(host: str | None, profile: CleanLevel | None) -> CleanLevel | None:
    """Return how a unit is cleaned after its guest; None: as its driver does without a word.

    ``host`` is what the host has reported, see ``HostClean``. If the configuration of the host has
    a word, the stricter of the two wins: neither side can weaken what the other side requires. If
    it has none, the profile decides, and without a word there the unit is cleaned fully. Where
    nothing can be cleaned, only ``full`` and ``none`` of the profile count.
    """
    if host is None:
        return None if profile is CleanLevel.RESET else profile
    if host == HostClean.DEFAULT:
        return profile or CleanLevel.FULL
    configured = CleanLevel(host)
    if profile is None or configured.includes(profile):
        return configured
    return profile


def stricter(first: CleanLevel | None, second: CleanLevel | None) -> CleanLevel | None:
    """Return the stricter of two levels; None, the word of the driver alone, is the weakest."""
    if first is None or second is None:
        return first or second
    return first if first.includes(second) else second

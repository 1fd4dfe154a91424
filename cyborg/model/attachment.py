# SPDX-License-Identifier: Apache-2.0
"""The steps by which accelerators are attached to an existing instance, and detached.

A detach, or an attach that is rolled back, begins with REBOOT, or with RELEASE if no guest can have
seen the accelerators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar


class Step(StrEnum):
    """The next step of the work; each step may be repeated without harm."""

    PREPARE = "prepare"
    ALLOCATE = "allocate"
    REBOOT = "reboot"
    WATCH = "watch"
    RELEASE = "release"
    SHRINK = "shrink"


class Event(StrEnum):
    """The outcomes of a step."""

    DONE = "done"
    #: The guest has the accelerators that are listed, and no other.
    GUEST_UPDATED = "guest updated"
    #: The server is deleted, or on another host.
    SERVER_GONE = "server gone"
    FAILED = "failed"
    #: The step cannot be taken yet.
    WAITS = "waits"


#: The step that follows a step that is done; None is the end.
NEXT: Mapping[Step, Step | None] = MappingProxyType(
    {
        Step.PREPARE: Step.ALLOCATE,
        Step.ALLOCATE: Step.REBOOT,
        Step.REBOOT: Step.WATCH,
        Step.RELEASE: Step.SHRINK,
        Step.SHRINK: None,
    }
)
#: The step that follows another outcome while ARQs are removed. Otherwise GUEST_UPDATED ends the
#: attach, and any other outcome rolls it back.
REMOVAL: Mapping[Event, Step] = MappingProxyType(
    {
        Event.GUEST_UPDATED: Step.RELEASE,
        Event.SERVER_GONE: Step.RELEASE,
        Event.FAILED: Step.REBOOT,
    }
)


@dataclass(frozen=True)
class Plan:
    """The progress of the work on some ARQs of an instance, stored in the row of the work.

    ``node`` is the hypervisor where the instance was found, ``providers`` maps the providers of
    the ARQs to their resource classes. ``being_removed``: the ARQs go, because a detach was
    requested, or because of ``fault``. ``reboots`` is how many reboots were requested for this, the
    last when the work was ``rebooted_at`` milliseconds old. ``reported``: the outcome is stored,
    and only the clean-up is left.
    """

    KIND: ClassVar[str] = "Plan"

    step: Step
    arqs: tuple[str, ...]
    node: str
    providers: dict[str, str] = field(default_factory=dict)
    being_removed: bool = False
    fault: str | None = None
    reboots: int = 0
    rebooted_at: int = 0
    reported: bool = False

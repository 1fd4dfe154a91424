# SPDX-License-Identifier: Apache-2.0
"""The steps by which accelerators are attached to an existing instance, and detached.

An attach goes from PREPARE to WATCH. A detach, or an attach that is rolled back, goes from REBOOT
to SHRINK, or begins with RELEASE if no guest can have seen the accelerators.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


class Step(StrEnum):
    """The next step of the work; each step may be repeated without harm."""

    PREPARE = "prepare"
    ALLOCATE = "allocate"
    REBOOT = "reboot"
    WATCH = "watch"
    RELEASE = "release"
    SHRINK = "shrink"


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

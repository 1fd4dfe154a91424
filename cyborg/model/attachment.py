# SPDX-License-Identifier: Apache-2.0
"""Attaching accelerators to an instance that exists, and taking them away again: one way of steps.

Attaching goes from PREPARE to WATCH. Whatever leaves an instance (a detach, or an attach that is
taken back) goes from REBOOT to SHRINK, or from RELEASE on where no guest can have seen it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


class Step(StrEnum):
    """What is to be done next; each step may be begun again without harm."""

    PREPARE = "prepare"
    ALLOCATE = "allocate"
    REBOOT = "reboot"
    WATCH = "watch"
    RELEASE = "release"
    SHRINK = "shrink"


@dataclass(frozen=True)
class Plan:
    """How far the work on some ARQs of an instance has come; it lives in the work's row.

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

# SPDX-License-Identifier: Apache-2.0
"""The progress of the work that attaches accelerators to an instance, or detaches them."""

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Plan:
    """The progress of the work on some ARQs of an instance, stored in the row of the work.

    ``node`` is the hypervisor where the instance was found, ``providers`` maps the providers of
    the ARQs to their resource classes. An attach that is rolled back has a ``fault``. ``reboots``
    is how many reboots were requested to attach or detach the ARQs, the last when the work was
    ``rebooted_at`` milliseconds old. ``reported``: the outcome is stored, and only the clean-up is
    left.
    """

    KIND: ClassVar[str] = "Plan"

    arqs: tuple[str, ...]
    node: str
    providers: dict[str, str] = field(default_factory=dict)
    fault: str | None = None
    reboots: int = 0
    rebooted_at: int = 0
    reported: bool = False

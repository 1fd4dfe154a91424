# SPDX-License-Identifier: Apache-2.0
"""Work that outlives its transaction: what kinds there are, and what an agent is asked to do."""

from dataclasses import dataclass, field
from enum import StrEnum


class WorkKind(StrEnum):
    """Each kind has one handler in the conductor."""

    NOTIFY = "notify"
    PREPARE = "prepare"
    RELEASE = "release"
    PROGRAM = "program"


@dataclass(frozen=True)
class HandleTask:
    """Prepare or release one attach handle on the agent's host.

    ``operation`` identifies the task: an agent that meets it again answers as before. ``spec``
    holds the ``accel:*`` wishes of the device profile's group, as strings. ``order`` rises with
    each task of a handle: one that arrives after a later one is refused.
    """

    operation: str
    driver: str
    device_key: str
    deployable: str
    handle_key: str
    handle_uuid: str
    spec: dict[str, str] = field(default_factory=dict)
    order: int = 0


@dataclass(frozen=True)
class ProgramTask:
    """Load one Glance image into a deployable on the agent's host."""

    operation: str
    driver: str
    device_key: str
    deployable: str
    image_uuid: str


@dataclass(frozen=True)
class Outcome:
    """How far a task got.

    ``done`` False: the agent is still at it, ask again with the same operation. ``fault`` is None
    when it succeeded, else a sentence for the operator.
    """

    operation: str
    done: bool = True
    fault: str | None = None

# SPDX-License-Identifier: Apache-2.0
"""A long verb that somebody asked for: one thing with a life, and a result for each host."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class OperationState(StrEnum):
    """How far an operation is; it is over with the last of its hosts."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ResultState(StrEnum):
    """How far one host is; ``waiting``: its agent is down, and it goes on when that returns."""

    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


#: States from which a result still goes on.
OPEN = frozenset({ResultState.RUNNING, ResultState.WAITING})


@dataclass(frozen=True)
class Step:
    """Something that was reached, and when by the database's clock, in milliseconds."""

    name: str
    at_ms: int


@dataclass(frozen=True)
class HostResult:
    """What became of an operation on one host; ``result`` is what the verb answers with."""

    host: str
    state: ResultState
    result: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Operation:
    """One long verb; times in milliseconds by the database's clock.

    ``subject`` tells what it is about: ``hosts``, and driver, backend, device, instance or service
    where there is one. Operations of earlier releases have none.
    """

    KIND: ClassVar[str] = "Operation"

    uuid: str
    verb: str
    state: OperationState
    created_ms: int
    project_id: str | None = None
    user_id: str | None = None
    request_id: str | None = None
    steps: tuple[Step, ...] = ()
    results: tuple[HostResult, ...] = ()
    error: str | None = None
    finished_ms: int | None = None
    subject: dict[str, Any] | None = None


def verdict(states: Collection[str]) -> OperationState:
    """The state of an operation whose results are in these states."""
    if OPEN & set(states):
        return OperationState.RUNNING
    failed = ResultState.FAILED in states
    return OperationState.FAILED if failed else OperationState.SUCCEEDED

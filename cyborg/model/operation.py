# SPDX-License-Identifier: Apache-2.0
"""Operations: long-running verbs that users follow, with a result for each host."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class OperationState(StrEnum):
    """The state of an operation; it ends with the last of its hosts."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ResultState(StrEnum):
    """The state on one host; ``waiting``: its agent is down, and it continues when that returns."""

    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


#: The states of a result that has not ended.
OPEN = frozenset({ResultState.RUNNING, ResultState.WAITING})


@dataclass(frozen=True)
class Step:
    """A step that was reached, and when: by the database's clock, in milliseconds."""

    name: str
    at_ms: int


@dataclass(frozen=True)
class HostResult:
    """The result of an operation on one host; ``result`` is the answer of the verb."""

    host: str
    state: ResultState
    result: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Operation:
    """One operation; times in milliseconds by the database's clock.

    ``subject`` names its objects: ``hosts``, and driver, backend, device, instance or service if it
    has one. Operations of earlier releases have no subject.
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
    """Return the state of an operation whose results are in these states."""
    if OPEN & set(states):
        return OperationState.RUNNING
    failed = ResultState.FAILED in states
    return OperationState.FAILED if failed else OperationState.SUCCEEDED

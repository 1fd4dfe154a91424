# SPDX-License-Identifier: Apache-2.0
"""The form of the tables of states: which event leads from which states to which state."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)


@dataclass(frozen=True)
class Move(Generic[State]):
    """An event leads from any state of ``sources`` to ``target``."""

    sources: frozenset[State]
    target: State

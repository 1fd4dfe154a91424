# SPDX-License-Identifier: Apache-2.0
"""What an agent tells the conductor about its host: one value, with a digest to compare."""

import hashlib
import json
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from typing import Any

from cyborg.model.device import Device
from cyborg.model.provider import ProviderTree


class DriverState(StrEnum):
    """The status words of services and drivers."""

    READY = "READY"
    STARTING = "STARTING"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class DriverReport:
    """What one driver found. A driver that failed (``error``) keeps the devices it had."""

    driver: str
    state: DriverState
    devices: tuple[Device, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """The whole host as its drivers see it now."""

    drivers: tuple[DriverReport, ...]

    def digest(self) -> str:
        """A hex SHA-256 that is equal exactly when the facts are, whatever order they came in."""
        facts = [_sorted(vars(one)) for one in self.drivers]
        text = json.dumps(sorted(facts, key=_word), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _sorted(value: Any) -> Any:
    """The same facts in one order: where a driver came across a thing first is no fact."""
    if isinstance(value, dict):
        return {key: _sorted(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return sorted(map(_sorted, value), key=_word)
    # Not asdict: it copies every word, which for many devices takes longer than all the rest.
    return _sorted(vars(value)) if is_dataclass(value) else value


def _word(fact: Any) -> str:
    """What orders facts of one kind: what tells each from the others."""
    if not isinstance(fact, dict):
        return str(fact)
    return " ".join(str(fact[one]) for one in ("driver", "name", "key", "value") if one in fact)


@dataclass(frozen=True)
class Hello:
    """An agent's heartbeat.

    ``provider_names`` are the names under which Placement may know this compute, best first;
    exactly one once it was found there. ``epoch`` is None in a process's first hello, later what
    the conductor issued.
    """

    host: str
    provider_names: tuple[str, ...]
    version: str
    endpoint: str
    epoch: int | None
    status: DriverState = DriverState.READY


@dataclass(frozen=True)
class Welcome:
    """The answer to a hello.

    ``digest`` is that of the last report the conductor took in (None: none yet);
    ``desired_generation`` differs from what the agent has when the desired state changed.
    """

    epoch: int
    digest: str | None
    desired_generation: int


@dataclass(frozen=True)
class Acknowledged:
    """A report was taken in; ``refused`` names deployables the conductor cannot keep, and why."""

    desired_generation: int
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Desired:
    """What the database wants of a host: the provider tree that Placement shall show.

    ``refused`` is what it believes that Placement refuses (deployable name → reason).
    """

    generation: int
    tree: ProviderTree
    refused: dict[str, str] = field(default_factory=dict)

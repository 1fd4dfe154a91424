# SPDX-License-Identifier: Apache-2.0
"""What an agent tells the conductor about its host: one value, with a digest to compare."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum

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
        facts = sorted(
            (
                {**asdict(one), "devices": sorted((asdict(d) for d in one.devices), key=_key)}
                for one in self.drivers
            ),
            key=lambda one: str(one["driver"]),
        )
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _key(device: dict[str, object]) -> str:
    return str(device["key"])


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
    """What the database wants of a host: the provider tree that Placement shall show."""

    generation: int
    tree: ProviderTree

# SPDX-License-Identifier: Apache-2.0
"""The messages between an agent and the conductor about a host: reports and heartbeats."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.health import DeviceHealth
from cyborg.model.provider import ProviderTree

#: The figures that have a metric each, with their meaning; their names end in the unit.
FIGURES: Final[Mapping[str, str]] = {
    "utilization_ratio": "Utilisation of the accelerator, from 0 to 1.",
    "memory_used_bytes": "Used memory of the accelerator, in bytes.",
    "memory_total_bytes": "Total memory of the accelerator, in bytes.",
    "temperature_celsius": "Temperature of the accelerator, in degrees Celsius.",
    "power_watts": "Power draw of the accelerator, in watts.",
}
#: The maximum number of figures of one device; more are left out.
MOST_FIGURES: Final = 64
_LONGEST_NAME: Final = 64


class DriverState(StrEnum):
    """The status words of services and drivers."""

    READY = "READY"
    STARTING = "STARTING"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class InstalledDriver:
    """A driver is installed on this host, and what became of loading it; said by the loader.

    ``endpoint`` is its entry point, ``type`` a word for what hardware it supports, ``version`` that
    of its package.
    """

    driver: str
    status: DriverState
    endpoint: str | None = None
    type: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class DriverOption:
    """An option that operators may set of a driver.

    ``type`` is a word for its values, ``default`` is text in the form in which a file would have
    it, and ``help`` is one sentence.
    """

    name: str
    group: str
    type: str
    default: str | None = None
    help: str = ""


@dataclass(frozen=True)
class DriverReport:
    """What one driver found. A driver that failed (``error``) keeps the devices it had.

    One that is installed but not enabled is STOPPED and has no devices, but hardware. ``hardware``
    and ``backends`` are None where the driver could not tell: what was known of them stands.
    ``accepts`` follows from the driver's package and configuration: it is no fact of the digest.
    ``health`` holds the devices about which the driver has answered. A device that is missing there
    keeps the health that the conductor has stored.
    """

    driver: str
    state: DriverState
    devices: tuple[Device, ...] = ()
    error: str | None = None
    hardware: tuple[Hardware, ...] | None = None
    backends: tuple[Backend, ...] | None = None
    endpoint: str | None = None
    type: str | None = None
    version: str | None = None
    accepts: tuple[DriverOption, ...] = ()
    health: tuple[DeviceHealth, ...] = ()


@dataclass(frozen=True)
class Report:
    """The whole host as its drivers see it now."""

    KIND: ClassVar[str] = "Report"

    drivers: tuple[DriverReport, ...]

    def digest(self) -> str:
        """Return a hex SHA-256 that is equal exactly when the facts are, in any order.

        A report without health, identity and topology has the digest that releases without them
        compute.
        """
        facts = [
            _sorted(
                {
                    name: fact
                    for name, fact in vars(driver).items()
                    if name != "accepts" and (name != "health" or fact)
                }
            )
            for driver in self.drivers
        ]
        text = json.dumps(sorted(facts, key=_word), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def kept_out(self, taken: "Acknowledged") -> dict[str, dict[str, str]]:
        """Return what of each driver the conductor does not keep: driver → name → reason."""
        return {
            driver.driver: {
                deployable.name: taken.refused[deployable.name]
                for device in driver.devices
                for deployable in device.deployables
                if deployable.name in taken.refused
                and taken.owning_drivers.get(deployable.name) != driver.driver
            }
            for driver in self.drivers
        }

    def deployables(self) -> frozenset[str]:
        """Return the names of all deployables; those of failed drivers are missing."""
        return frozenset(
            deployable.name
            for driver in self.drivers
            for device in driver.devices
            for deployable in device.deployables
        )


def _sorted(value: Any) -> Any:
    """Return the facts in a fixed order: the order in which a driver found them is no fact."""
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sorted(map(_sorted, value), key=_word)
    if isinstance(value, Device):
        return {
            name: _sorted(fact)
            for name, fact in vars(value).items()
            if fact or name not in ("identity", "topology")
        }
    # Not asdict: it copies every word, which for many devices takes longer than all the rest.
    return _sorted(vars(value)) if is_dataclass(value) else value


def _word(fact: Any) -> str:
    """Return the sort key of a fact: the fields that distinguish facts of one kind."""
    if not isinstance(fact, dict):
        return str(fact)
    return " ".join(
        str(fact[name]) for name in ("driver", "name", "key", "value", "kind") if name in fact
    )


@dataclass(frozen=True)
class Changes:
    """The numbers of devices that are present, and new, changed and lost since another report."""

    discovered: int
    added: int
    changed: int
    lost: int


def changes(before: Iterable[Device], after: Iterable[Device]) -> Changes:
    """Return the differences between the devices of one driver in two reports."""
    old = {device.key: _sorted(device) for device in before}
    new = {device.key: _sorted(device) for device in after}
    return Changes(
        discovered=len(new),
        added=len(new.keys() - old.keys()),
        changed=sum(new[key] != old[key] for key in new.keys() & old.keys()),
        lost=len(old.keys() - new.keys()),
    )


@dataclass(frozen=True)
class AgentHeartbeat:
    """An agent's heartbeat.

    ``provider_names`` are the names under which Placement may know this compute, best first;
    exactly one once it was found there. ``epoch`` is None in a process's first heartbeat, later
    what the conductor issued. ``endpoint`` is ``topic@server`` of the agent, ``drivers`` are those
    that are installed on its host. ``bus_error`` says why the agent's RPC server receives no
    requests; it is empty while the server listens. ``failure`` says why ``status`` is FAILED.
    """

    KIND: ClassVar[str] = "AgentHeartbeat"

    host: str
    provider_names: tuple[str, ...]
    version: str
    endpoint: str
    epoch: int | None
    status: DriverState = DriverState.READY
    drivers: tuple[InstalledDriver, ...] = ()
    bus_error: str = ""
    failure: str = ""


@dataclass(frozen=True)
class HeartbeatReply:
    """The answer to the heartbeat of an agent.

    ``digest`` is that of the last report the conductor took in (None: none yet);
    ``desired_generation`` differs from what the agent has when the desired state changed.
    """

    KIND: ClassVar[str] = "HeartbeatReply"

    epoch: int
    digest: str | None
    desired_generation: int


@dataclass(frozen=True)
class Acknowledged:
    """A report was taken in; ``refused`` names deployables the conductor cannot keep, and why.

    ``owning_drivers`` names, for those of them that another driver of the host shows as well, the
    driver whose device keeps the name.
    """

    KIND: ClassVar[str] = "Acknowledged"

    desired_generation: int
    refused: dict[str, str] = field(default_factory=dict)
    owning_drivers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ObsoleteProvider:
    """A provider that shall go, and the name of its deployable."""

    uuid: str
    name: str


@dataclass(frozen=True)
class RequestedDriver:
    """What operators want of one driver on a host.

    ``requested`` None: as the host's own configuration says. ``options`` are laid over that.
    """

    name: str
    requested: bool | None = None
    enabled: bool = True
    options: dict[str, str] = field(default_factory=dict)

    def loaded(self, *, configured: bool) -> bool:
        """Return whether to load the driver on a host whose configuration names it or not."""
        return self.enabled and (configured if self.requested is None else self.requested)


@dataclass(frozen=True)
class CreatedDevice:
    """A device that operators created on a backend of a driver, or are about to."""

    driver: str
    device: Device


@dataclass(frozen=True)
class Desired:
    """What the database wants of a host: the provider tree that Placement shall show.

    ``refused`` is what it believes that Placement refuses (deployable name → reason).
    ``obsolete_providers`` are those of removed devices, in the order in which they can be removed:
    the agent removes them where nothing is allocated, and reports it. ``drivers`` are those for
    which operators request something else than the host's configuration. ``operator_created`` are
    the devices that operators created: their drivers tell whether they are there.
    """

    KIND: ClassVar[str] = "Desired"

    generation: int
    tree: ProviderTree
    refused: dict[str, str] = field(default_factory=dict)
    obsolete_providers: tuple[ObsoleteProvider, ...] = ()
    drivers: tuple[RequestedDriver, ...] = ()
    operator_created: tuple[CreatedDevice, ...] = ()


@dataclass(frozen=True)
class Reading:
    """What one device measured; ``driver`` and ``key`` name it within its host.

    ``figures`` are those of ``FIGURES`` that the driver knows, and others of its own.
    """

    KIND: ClassVar[str] = "Reading"

    driver: str
    key: str
    figures: dict[str, float] = field(default_factory=dict)


def valid_figures(figures: Mapping[Any, Any]) -> dict[str, float]:
    """Return the figures of a driver that have a printable name and a finite number."""
    kept = {
        name: float(value)
        for name, value in figures.items()
        if isinstance(name, str)
        and 0 < len(name) <= _LONGEST_NAME
        and name.isprintable()
        and isinstance(value, int | float)
        and math.isfinite(value)
    }
    return dict(sorted(kept.items())[:MOST_FIGURES])

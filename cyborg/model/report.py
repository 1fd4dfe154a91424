# SPDX-License-Identifier: Apache-2.0
"""The messages between an agent and the conductor about a host: reports and heartbeats."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from cyborg.model.device import Backend, Device, Hardware, flaw_of_text
from cyborg.model.health import DeviceHealth, legible
from cyborg.model.provider import ProviderTree
from cyborg_cli.text import escaped

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


#: The largest numbers of things in one report. A host has a hundred times fewer.
MOST: Final[Mapping[str, int]] = {
    "drivers": 256,
    "options of drivers": 16_384,
    "backends": 4_096,
    "services on backends": 16_384,
    "devices": 4_096,
    "deployables": 16_384,
    "attach handles": 65_536,
    "attributes and traits": 131_072,
    "entries of hardware": 16_384,
    "answers about health": 16_384,
}
#: Widths of columns.
_WIDE: Final = 255
#: The name of an event: its id and its time, which any database holds.
_EVENT: Final = re.compile(r"[0-9]{1,18}:[0-9]{1,18}")
_DRIVER_NAME: Final = 100
_VERSION: Final = 64
#: Characters of an error text of an agent that are kept.
_LONGEST_ERROR: Final = 4000


def cut(text: str) -> str:
    """Return an error text of an agent in a bounded length; a mark tells how much is left out.

    Characters that no database holds, such as those of odd file names, are escaped.
    """
    text = escaped(text)
    if len(text) <= _LONGEST_ERROR:
        return text
    return f"{text[:_LONGEST_ERROR]} ... ({len(text) - _LONGEST_ERROR} more characters)"


def label(text: str | None, width: int) -> str | None:
    """Return a word about a driver as one printable line of this width; None if it is empty."""
    return (legible(text) or "")[:width] or None


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
    ``accepts`` is None if the driver could not be loaded.
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
    accepts: tuple[DriverOption, ...] | None = None
    health: tuple[DeviceHealth, ...] = ()


@dataclass(frozen=True)
class Report:
    """The whole host as its drivers see it now."""

    KIND: ClassVar[str] = "Report"

    drivers: tuple[DriverReport, ...]

    def digest(self) -> str:
        """Return a hex SHA-256 that is equal exactly when the facts are, in any order.

        A field counts unless it has its default. So a report of a release that has one more field
        has the digest that a release without the field computes, while no driver uses the field.
        """
        text = json.dumps(_sorted(self.drivers), sort_keys=True)
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

    def validate(self) -> str | None:
        """Return why the report cannot be stored, as a clause; None if it can.

        It is larger than any host needs, or a driver has a name that the database cannot hold.
        """
        for driver in self.drivers:
            flaw = flaw_of_text("the name of a driver", driver.driver, _DRIVER_NAME)
            if flaw is not None:
                return flaw
        devices = [device for driver in self.drivers for device in driver.devices]
        deployables = [deployable for device in devices for deployable in device.deployables]
        backends = [backend for driver in self.drivers for backend in driver.backends or ()]
        counts = {
            "drivers": len(self.drivers),
            "options of drivers": sum(len(driver.accepts or ()) for driver in self.drivers),
            "backends": len(backends),
            "services on backends": sum(len(backend.services) for backend in backends),
            "devices": len(devices),
            "deployables": len(deployables),
            "attach handles": sum(len(item.handles) for item in deployables),
            "attributes and traits": sum(
                len(item.attributes) + len(item.traits) for item in deployables
            ),
            "entries of hardware": sum(len(driver.hardware or ()) for driver in self.drivers),
            "answers about health": sum(len(driver.health) for driver in self.drivers),
        }
        for what, count in counts.items():
            if count > MOST[what]:
                return f"it has {count} {what}, and at most {MOST[what]} are stored"
        return None

    def deployables(self) -> frozenset[str]:
        """Return the names of all deployables; those of failed drivers are missing."""
        return frozenset(
            deployable.name
            for driver in self.drivers
            for device in driver.devices
            for deployable in device.deployables
        )


def _sorted(value: Any) -> Any:
    """Return the facts in a fixed order: the order in which a driver found them is no fact.

    Fields that have their default are left out.
    """
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sorted(map(_sorted, value), key=_word)
    if not is_dataclass(value):
        return value
    # Not asdict: it copies every word, which for many devices takes longer than all the rest.
    kind: Any = type(value)
    defaults = _defaults(kind)
    return {
        name: _sorted(fact)
        for name, fact in vars(value).items()
        if name not in defaults or fact != defaults[name]
    }


@functools.cache
def _defaults(kind: Any) -> Mapping[str, Any]:
    """Return the default of each field of a dataclass that has one."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(kind)
    }
    return {name: default for name, default in defaults.items() if default is not MISSING}


def _word(fact: Any) -> str:
    """Return the sort key of a fact: the fields that distinguish facts of one kind."""
    if not isinstance(fact, dict):
        return str(fact)
    return " ".join(
        str(fact[name]) for name in ("driver", "name", "key", "value", "kind") if name in fact
    )


@dataclass(frozen=True)
class DeviceCounts:
    """The numbers of devices that are present, and new, changed and lost since another report."""

    discovered: int
    added: int
    changed: int
    lost: int


def count_changes(before: Iterable[Device], after: Iterable[Device]) -> DeviceCounts:
    """Return the differences between the devices of one driver in two reports."""
    old = {device.key: _sorted(device) for device in before}
    new = {device.key: _sorted(device) for device in after}
    return DeviceCounts(
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
    ``history`` is that of the last reply that any agent of this host has got; empty: none is known.
    ``publish_error`` says why Placement does not get what is desired; it is empty while it does.
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
    history: str = ""
    publish_error: str = ""

    def validate(self) -> str | None:
        """Return why the database cannot hold this heartbeat, as a clause; None if it can."""
        texts = (
            ("its host", self.host, _WIDE),
            *((("its version", self.version, _VERSION),) if self.version else ()),
            ("its endpoint", self.endpoint, _WIDE),
            *(("the name of a provider", name, _WIDE) for name in self.provider_names),
            *(("the name of a driver", item.driver, _DRIVER_NAME) for item in self.drivers),
        )
        if self.history and not _EVENT.fullmatch(self.history):
            return "its history is not the name of an event"
        return next(filter(None, (flaw_of_text(*text) for text in texts)), None)


@dataclass(frozen=True)
class HeartbeatReply:
    """The answer to the heartbeat of an agent.

    ``digest`` is that of the last report the conductor took in (None: none yet);
    ``desired_generation`` differs from what the agent has when the desired state changed.
    ``history`` names the last event of the host: a database that does not have it later is older
    than what the host has seen. It is empty while the host has no event.
    """

    KIND: ClassVar[str] = "HeartbeatReply"

    epoch: int
    digest: str | None
    desired_generation: int
    history: str = ""


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

    ``refused`` is what it believes that Placement refuses (deployable name → reason), and
    ``published`` what it believes that Placement has (deployable name → total and reserved units).
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
    published: dict[str, list[int]] = field(default_factory=dict)


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

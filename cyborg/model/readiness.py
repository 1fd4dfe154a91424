# SPDX-License-Identifier: Apache-2.0
"""The readiness of processes and peers, each with its state, likely cause and remedy.

Pure: rows of processes and observations go in, components come out. The API's list of services,
its detailed health check, ``cyborg-status check`` and the audit all use the same rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

from cyborg.model.process import CONDUCTOR


class Level(IntEnum):
    """The severity of a state; the numbers are exit statuses."""

    OK = 0
    WARNING = 1
    FAILURE = 2


class State(StrEnum):
    """The state of a component.

    UP: it works. FAILED: a process runs and cannot do its work. NOT_RECEIVING: a process runs and
    receives no requests. NOT_PUBLISHING: an agent runs, and Placement does not get what is desired.
    NOT_HEARD: the state of a process is unknown, because conductors do not receive its heartbeats,
    or refuse them. DOWN: a process or a peer does not answer, or refuses. UNCHECKED: the check was
    not possible.
    """

    UP = "up"
    FAILED = "failed"
    NOT_RECEIVING = "not receiving"
    NOT_PUBLISHING = "not publishing"
    NOT_HEARD = "not heard"
    DOWN = "down"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Process:
    """The row of a process.

    ``silent_ms`` is the age of its last heartbeat, ``last_seen_ms`` the time of that heartbeat,
    both by the database's clock. ``bus_error`` is why it receives no requests over the message
    bus, since ``bus_error_ms``; None while it receives them. ``status_reason`` is why it cannot do
    its work although it receives requests: no driver of an agent works. None while it can.
    ``clock_error`` is why conductors have refused its messages since its last heartbeat.
    ``publish_error`` is why Placement does not get what is desired of an agent's host, since
    ``publish_error_ms``; None while it gets it.
    """

    binary: str
    host: str
    silent_ms: int
    last_seen_ms: int
    bus_error: str | None = None
    bus_error_ms: int | None = None
    status_reason: str | None = None
    clock_error: str | None = None
    publish_error: str | None = None
    publish_error_ms: int | None = None


@dataclass(frozen=True)
class Look:
    """The result of checking a peer from this process; ``up`` None: the check was not possible.

    ``cause`` says what is wrong, ``remedy`` what to do about it, each as a sentence.
    """

    name: str
    up: bool | None
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Component:
    """A process or a peer, and its state."""

    name: str
    state: State
    level: Level
    cause: str = ""
    remedy: str = ""

    @property
    def document(self) -> dict[str, str | None]:
        """Return the component as an object for JSON."""
        return {
            "name": self.name,
            "state": self.state.value,
            "level": self.level.name.lower(),
            "cause": self.cause or None,
            "remedy": self.remedy or None,
        }

    @property
    def sentence(self) -> str:
        """Return name, state, cause and remedy in one line."""
        parts = [f"{self.name} is {self.state}.", self.cause, self.remedy]
        return " ".join(part for part in parts if part)


BUS = "Message bus"
DATABASE = "Database"
#: The time, in milliseconds, for which conductors may have been down before they started without a
#: connection to the bus; heartbeats of that time were lost as well.
_RESTART_MS = 600_000
_FAILED_REMEDY = (
    "Correct the configuration of the drivers on this host, or what they complain about; "
    "disable drivers that the host does not need."
)
_REPLACED_REMEDY = (
    "If the other process has replaced this one, delete the row of this one: cyborg service-delete."
)
_UNHEARD_REMEDY = "Repair the conductors first; this process is not the cause."


class Cloud:
    """All processes together: a missing heartbeat of one may be the fault of another.

    ``down_after`` maps a binary to the number of milliseconds without a heartbeat after which its
    process counts as down.
    """

    def __init__(self, processes: Sequence[Process], down_after: Mapping[str, int]) -> None:
        self._processes = processes
        self._down_after = down_after
        self._conductors = [
            process
            for process in processes
            if process.binary == CONDUCTOR and self.is_fresh(process)
        ]

    def is_fresh(self, process: Process) -> bool:
        """Return whether the last heartbeat of a process is recent enough."""
        return process.silent_ms <= self._down_after.get(process.binary, 0)

    @property
    def bus_failure(self) -> str:
        """Return why no conductor receives requests, as the reason of one; empty if one does."""
        if not self._conductors or not all(conductor.bus_error for conductor in self._conductors):
            return ""
        return _bare(self._conductors[0].bus_error or "")

    @property
    def bus_failure_since(self) -> int | None:
        """Return when the last conductor stopped receiving; None while one receives."""
        times = [
            conductor.bus_error_ms
            for conductor in self._conductors
            if conductor.bus_error_ms is not None
        ]
        return max(times) if self.bus_failure and times else None

    def process(self, process: Process) -> Component:
        """Return the state of one process."""
        name = f"{process.binary} on {process.host}"
        if process.clock_error:
            cause = f"Conductors refuse its messages: {_bare(process.clock_error)}."
            remedy = (
                f"Compare the clocks of the two hosts (chronyc tracking), set the wrong one, and "
                f"keep the clock of {process.host} synchronized."
            )
            return Component(name, State.NOT_HEARD, Level.WARNING, cause, remedy)
        if self.is_fresh(process):
            if not process.bus_error and process.status_reason:
                cause = process.status_reason
                return Component(name, State.FAILED, Level.WARNING, cause, _FAILED_REMEDY)
            if not process.bus_error and process.publish_error:
                cause, remedy = not_publishing(process)
                return Component(name, State.NOT_PUBLISHING, Level.WARNING, cause, remedy)
            if not process.bus_error:
                return Component(name, State.UP, Level.OK)
            level = Level.FAILURE if self.bus_failure else Level.WARNING
            cause = (
                f"It receives no requests{_since(process.bus_error_ms)}: "
                f"{_bare(process.bus_error)}."
            )
            return Component(name, State.NOT_RECEIVING, level, cause, bus_remedy(process.bus_error))
        silence = f"No heartbeat for {duration(process.silent_ms)}"
        if process.binary == CONDUCTOR:
            level = Level.WARNING if self._conductors else Level.FAILURE
            if any(conductor.host == process.host for conductor in self._conductors):
                cause = f"{silence}; another {CONDUCTOR} on this host is up."
                return Component(name, State.DOWN, level, cause, _REPLACED_REMEDY)
            remedy = (
                f"Start {CONDUCTOR} on {process.host}. If it runs, its log says why it cannot "
                "reach the database."
            )
            return Component(name, State.DOWN, level, f"{silence}.", remedy)
        reason = self.unheard(process)
        if reason:
            return Component(
                name,
                State.NOT_HEARD,
                Level.WARNING,
                f"{silence}: {reason}.",
                bus_remedy(self.bus_failure) if self.bus_failure else _UNHEARD_REMEDY,
            )
        remedy = (
            f"Start {process.binary} on {process.host}. If it runs, its log says why it cannot "
            "reach the message bus."
        )
        return Component(name, State.DOWN, Level.WARNING, f"{silence}.", remedy)

    def unheard(self, process: Process) -> str:
        """Return why the heartbeats of a process may not arrive although it sends them.

        Empty when the conductors are not the reason: they receive, or the heartbeats ended before
        the conductors stopped.
        """
        limit = self._down_after.get(process.binary, 0)
        if not self._conductors:
            heard = [
                conductor.bus_error_ms or conductor.last_seen_ms
                for conductor in self._processes
                if conductor.binary == CONDUCTOR
            ]
            if heard and process.last_seen_ms + limit < max(heard):
                return ""
            return "no conductor is up to receive them"
        if not self.bus_failure:
            return ""
        since = self.bus_failure_since
        if since is not None and process.last_seen_ms + limit + _RESTART_MS < since:
            return ""
        return f"the conductors receive nothing ({self.bus_failure})"

    def bus(self, trouble: str | None) -> Component:
        """Return the state of the message bus, by all conductors and by ``trouble``.

        ``trouble`` is why this process reaches no conductor over the bus, empty when it reaches
        one, None when it did not try.
        """
        if self.bus_failure:
            since = _since(self.bus_failure_since)
            cause = f"No conductor answers{since}: {self.bus_failure}."
            return Component(BUS, State.DOWN, Level.FAILURE, cause, bus_remedy(self.bus_failure))
        if not self._conductors:
            # A conductor that stops removes its row; only conductors store heartbeats of others.
            since = _since(max((process.last_seen_ms for process in self._processes), default=None))
            cause = f"No conductor is up{since}."
            return Component(BUS, State.DOWN, Level.FAILURE, cause, f"Start a {CONDUCTOR}.")
        return _bus_of(trouble)


def view(
    processes: Sequence[Process],
    down_after: Mapping[str, int],
    *,
    looks: Sequence[Look] = (),
    trouble: str | None = None,
) -> list[Component]:
    """Return the states of the peers, of the message bus, then of each process.

    If the database is down there are no rows of processes, and only ``trouble`` tells the state of
    the bus.
    """
    cloud = Cloud(processes, down_after)
    components = []
    for look in looks:
        if look.up is None:
            component = Component(look.name, State.UNCHECKED, Level.OK, look.cause, look.remedy)
        elif look.up:
            component = Component(look.name, State.UP, Level.OK)
        else:
            component = Component(look.name, State.DOWN, Level.FAILURE, look.cause, look.remedy)
        components.append(component)
    database_down = any(look.up is False and look.name == DATABASE for look in looks)
    if database_down and not processes:
        components.append(_bus_of(trouble))
    else:
        components.append(cloud.bus(trouble))
    return components + [cloud.process(process) for process in processes]


def worst(components: Sequence[Component]) -> Level:
    """Return the level of the worst component."""
    return max((component.level for component in components), default=Level.OK)


def not_publishing(process: Process) -> tuple[str, str]:
    """Return why an agent cannot publish and what to do about it, each as a sentence."""
    reason = _bare(process.publish_error or "")
    cause = f"It cannot publish in Placement{_since(process.publish_error_ms)}: {reason}."
    return cause, _remedy(reason, _PUBLISH_REMEDIES)


def bus_remedy(reason: str) -> str:
    """Return what to do about a message bus that refuses a process for ``reason``."""
    return _remedy(reason, _BUS_REMEDIES)


_Remedies = tuple[tuple[tuple[str, ...], str], ...]


def _remedy(reason: str, remedies: _Remedies) -> str:
    """Return the first remedy with a sign that is in the reason; the last one has no signs."""
    words = reason.lower()
    return next(
        remedy for signs, remedy in remedies if not signs or any(sign in words for sign in signs)
    )


#: The words of the broker (AMQP 0-9-1 reply texts) and of the operating system.
_BUS_REMEDIES: _Remedies = (
    (
        ("signing keys",),
        (
            "Derive the file of this host again (cyborg-signing-key derive) and move it there; the "
            "agent reads it without a restart."
        ),
    ),
    (
        ("another durability",),
        (
            "Stop all processes of Cyborg, remove the exchange and the queues that are named at "
            "the broker, and start the processes with equal options in [oslo_messaging_rabbit]."
        ),
    ),
    (
        ("530", "not_allowed", "vhost"),
        (
            "Check that the virtual host of [DEFAULT] transport_url exists and that the account "
            "has permissions there (rabbitmqctl list_permissions -p VHOST)."
        ),
    ),
    (
        ("403", "access_refused", "accessrefused", "login was refused"),
        (
            "Check the account and the password of [DEFAULT] transport_url, and its permissions "
            "(rabbitmqctl list_user_permissions USER)."
        ),
    ),
    (
        ("certificate", "ssl", "tls"),
        "Check the certificates of the message broker and of [oslo_messaging_rabbit] ssl_ca_file.",
    ),
    (
        ("refused", "unreachable", "timed out", "name or service not known", "econnrefused"),
        "Start the message broker, or correct host and port of [DEFAULT] transport_url.",
    ),
    ((), "Check that the message broker runs and that [DEFAULT] transport_url leads to it."),
)
#: The words of ``cyborg.clients.http`` and ``cyborg.clients.placement``.
_PUBLISH_REMEDIES: _Remedies = (
    (
        ("refuses the account",),
        "Correct user, password and project of [placement] on this host.",
    ),
    (
        ("answered 401", "answered 403"),
        (
            "Give the account of [placement] on this host the role service; cyborg-status upgrade "
            "check on the host tests it."
        ),
    ),
    (
        ("compute provider",),
        (
            "Start nova-compute on this host, or set [agent] resource_provider_name to its name in "
            "Placement."
        ),
    ),
    (
        ("is not available",),
        "Start Placement and Keystone, or correct their addresses in [placement] on this host.",
    ),
    ((), "See the log of the agent and of Placement."),
)


def _bus_of(trouble: str | None) -> Component:
    """Return the state of the message bus as this process sees it."""
    if trouble:
        cause = f"No conductor answers: {_bare(trouble)}."
        return Component(BUS, State.DOWN, Level.FAILURE, cause, bus_remedy(trouble))
    state = State.UNCHECKED if trouble is None else State.UP
    return Component(BUS, state, Level.OK)


def duration(milliseconds: int) -> str:
    """Return a duration in its largest suitable unit, for example ``3 hours``."""
    seconds = milliseconds // 1000
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}s"
    return f"{seconds} seconds"


def _since(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return f" since {datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _bare(reason: str) -> str:
    return reason.strip().rstrip(".")

# SPDX-License-Identifier: Apache-2.0
"""The health of the service: processes and peers, each with its state, likely cause and remedy.

Pure: rows of processes and observations go in, components come out. The API's list of services,
its detailed health check, ``cyborg-status check`` and the audit all use the same rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

from cyborg.model.process import CONDUCTOR


class Level(IntEnum):
    """How bad the state of a component is; the numbers are exit statuses."""

    OK = 0
    WARNING = 1
    FAILURE = 2


class State(StrEnum):
    """The state of a component.

    UP: it works. FAILED: a process lives and cannot do its work. NOT_RECEIVING: a process lives and
    receives no requests. NOT_HEARD: nothing is known of a process, because no conductor can hear
    it. DOWN: a process or a peer does not answer, or refuses. UNCHECKED: nobody could ask.
    """

    UP = "up"
    FAILED = "failed"
    NOT_RECEIVING = "not receiving"
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
    """

    binary: str
    host: str
    silent_ms: int
    last_seen_ms: int
    bus_error: str | None = None
    bus_error_ms: int | None = None
    status_reason: str | None = None


@dataclass(frozen=True)
class Look:
    """What the process that asks saw of a peer; ``up`` None: it could not ask.

    ``cause`` says what is wrong, ``remedy`` what to do about it, each as a sentence.
    """

    name: str
    up: bool | None
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Component:
    """A process or a peer, and how it is."""

    name: str
    state: State
    level: Level
    cause: str = ""
    remedy: str = ""

    @property
    def document(self) -> dict[str, str | None]:
        """The form for JSON."""
        return {
            "name": self.name,
            "state": self.state.value,
            "level": self.level.name.lower(),
            "cause": self.cause or None,
            "remedy": self.remedy or None,
        }

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        parts = [f"{self.name} is {self.state}.", self.cause, self.remedy]
        return " ".join(part for part in parts if part)


BUS = "Message bus"
DATABASE = "Database"
#: For how long conductors may have been away before they came back deaf: nobody heard anything
#: in that time either.
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
    """All processes, judged together: the silence of one may be the fault of another.

    ``down_after`` tells after how many milliseconds without a heartbeat a process of a binary
    counts as down.
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
        """Whether its last heartbeat is young enough."""
        return process.silent_ms <= self._down_after.get(process.binary, 0)

    @property
    def deaf(self) -> str:
        """Why no conductor receives anything, as the reason of one; empty while any receives."""
        if not self._conductors or not all(conductor.bus_error for conductor in self._conductors):
            return ""
        return _bare(self._conductors[0].bus_error or "")

    @property
    def deaf_since(self) -> int | None:
        """The time at which the last conductor stopped receiving; None while any receives."""
        times = [
            conductor.bus_error_ms
            for conductor in self._conductors
            if conductor.bus_error_ms is not None
        ]
        return max(times) if self.deaf and times else None

    def process(self, process: Process) -> Component:
        """Judge one process."""
        name = f"{process.binary} on {process.host}"
        if self.is_fresh(process):
            if not process.bus_error and process.status_reason:
                cause = process.status_reason
                return Component(name, State.FAILED, Level.WARNING, cause, _FAILED_REMEDY)
            if not process.bus_error:
                return Component(name, State.UP, Level.OK)
            level = Level.FAILURE if self.deaf else Level.WARNING
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
                bus_remedy(self.deaf) if self.deaf else _UNHEARD_REMEDY,
            )
        remedy = (
            f"Start {process.binary} on {process.host}. If it runs, its log says why it cannot "
            "reach the message bus."
        )
        return Component(name, State.DOWN, Level.WARNING, f"{silence}.", remedy)

    def unheard(self, process: Process) -> str:
        """Why the heartbeats of a silent process may not arrive although it sends them.

        Empty when the conductors are not the reason: they receive, or the process was silent
        before they stopped.
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
        if not self.deaf:
            return ""
        since = self.deaf_since
        if since is not None and process.last_seen_ms + limit + _RESTART_MS < since:
            return ""
        return f"the conductors receive nothing ({self.deaf})"

    def conductors(self, trouble: str | None) -> Component:
        """Judge the message bus by all conductors, and by what the process that asks saw.

        ``trouble`` is why the process that asks reaches no conductor over the bus, empty when it
        reaches one, None when it did not try.
        """
        if self.deaf:
            since = _since(self.deaf_since)
            cause = f"No conductor answers{since}: {self.deaf}."
            return Component(BUS, State.DOWN, Level.FAILURE, cause, bus_remedy(self.deaf))
        conductors = [process for process in self._processes if process.binary == CONDUCTOR]
        if not self._conductors:
            since = _since(max((conductor.last_seen_ms for conductor in conductors), default=None))
            cause = f"No conductor is up{since}."
            return Component(BUS, State.DOWN, Level.FAILURE, cause, f"Start a {CONDUCTOR}.")
        if trouble:
            cause = f"No conductor answers: {_bare(trouble)}."
            return Component(BUS, State.DOWN, Level.FAILURE, cause, bus_remedy(trouble))
        if trouble is None:
            return Component(BUS, State.UNCHECKED, Level.OK)
        return Component(BUS, State.UP, Level.OK)


def view(
    processes: Sequence[Process],
    down_after: Mapping[str, int],
    *,
    looks: Sequence[Look] = (),
    trouble: str | None = None,
) -> list[Component]:
    """Judge everything: the peers that were asked, the message bus, then each process.

    Without rows of processes (the database is away) the bus is judged by ``trouble`` alone.
    """
    cloud = Cloud(processes, down_after)
    away = any(look.up is False and look.name == DATABASE for look in looks)
    bus = _bus_alone(trouble) if away and not processes else cloud.conductors(trouble)
    return [
        *(_peer(look) for look in looks),
        bus,
        *(cloud.process(process) for process in processes),
    ]


def worst(components: Sequence[Component]) -> Level:
    """The level of the worst component."""
    return max((component.level for component in components), default=Level.OK)


def bus_remedy(reason: str) -> str:
    """What to do about a message bus that refuses a process for ``reason``."""
    words = reason.lower()
    for signs, remedy in _BUS_REMEDIES:
        if any(sign in words for sign in signs):
            return remedy
    return "Check that the message broker runs and that [DEFAULT] transport_url leads to it."


#: The words of the broker (AMQP 0-9-1 reply texts) and of the operating system.
_BUS_REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
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
)


def _bus_alone(trouble: str | None) -> Component:
    if trouble:
        cause = f"No conductor answers: {_bare(trouble)}."
        return Component(BUS, State.DOWN, Level.FAILURE, cause, bus_remedy(trouble))
    state = State.UNCHECKED if trouble is None else State.UP
    return Component(BUS, state, Level.OK)


def _peer(look: Look) -> Component:
    if look.up is None:
        return Component(look.name, State.UNCHECKED, Level.OK, look.cause, look.remedy)
    if look.up:
        return Component(look.name, State.UP, Level.OK)
    return Component(look.name, State.DOWN, Level.FAILURE, look.cause, look.remedy)


def duration(milliseconds: int) -> str:
    """A time as people say it."""
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

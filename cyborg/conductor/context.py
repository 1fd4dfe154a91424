# SPDX-License-Identifier: Apache-2.0
"""What the use cases of a conductor work with, and how a function becomes the use case of a verb.

A use case is a function of the context and a command. The endpoint finds those of a module by
``handles``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from cyborg.clients.limits import ProjectLimits
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Allocations
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.meters import Meters
from cyborg.conf.agent import AgentOptions
from cyborg.conf.conductor import AuditOptions, ConductorOptions
from cyborg.conf.default import DefaultOptions
from cyborg.db.engine import Database
from cyborg.model.audit_findings import Ages
from cyborg.model.probation import AT_ONCE, Rules
from cyborg.model.process import AGENT, CONDUCTOR, down_after
from cyborg.model.provider import ANY_NAMES, HostNames
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.command import Command, Handler

Answer = TypeVar("Answer")
C = TypeVar("C", bound=Command[Any])
_MS_PER_DAY: Final = 24 * 3600 * 1000


@dataclass(frozen=True)
class Settings:
    """The options of a conductor, and what is made of them; intervals are in seconds."""

    default: DefaultOptions
    agent: AgentOptions
    conductor: ConductorOptions
    audit: AuditOptions
    process: str
    version: str
    ages: Ages = field(default_factory=Ages)
    #: The names in Placement that the agents of hosts may use.
    host_names: HostNames = ANY_NAMES
    #: How devices return after a fault; their probation ends up to ``probation_interval`` later.
    health_rules: Rules = AT_ONCE
    probation_interval: float = 10.0
    unattached_interval: float = 10.0
    housekeeping_interval: float = 600.0
    instance_interval: float = 10.0
    #: The timeout of a request to an agent; a task may take many requests.
    agent_timeout: float = 15.0

    @property
    def host(self) -> str:
        """Return the name of the host of the conductor."""
        return self.default.host

    @property
    def down_after(self) -> dict[str, int]:
        """Return ``cyborg.model.process.down_after`` for these options."""
        return down_after(
            heartbeat_interval=self.agent.heartbeat_interval, lease=self.conductor.lease
        )

    @property
    def lost_ms(self) -> int:
        """Milliseconds after which lost devices are removed; 0 is never."""
        return round(self.conductor.lost_retention * _MS_PER_DAY)

    @property
    def history_ms(self) -> int:
        """Milliseconds after which history is deleted; 0 is never."""
        return round(self.conductor.history_retention * _MS_PER_DAY)

    @property
    def usage_ms(self) -> int:
        """Milliseconds after which records of use are deleted; 0 is never."""
        return round(self.conductor.usage_retention * _MS_PER_DAY)

    @property
    def lease_ms(self) -> int:
        """Milliseconds after which a silent conductor is down."""
        return self.down_after[CONDUCTOR]

    @property
    def agent_grace_ms(self) -> int:
        """Milliseconds of silence of an agent until the units that need it are reserved."""
        return int(self.conductor.agent_grace * 1000)

    @property
    def bind_ms(self) -> int:
        """Milliseconds that an agent has to prepare a unit for a bind."""
        return int(self.default.bind_timeout * 1000)

    @property
    def agent_down_ms(self) -> int:
        """Milliseconds of silence after which an agent is down."""
        return self.down_after[AGENT]


@dataclass(frozen=True, kw_only=True)
class Conductor:
    """The context of all use cases of a conductor.

    ``publisher`` is called when a conductor has to write inventories in Placement. Without
    ``limits`` projects have no quotas.
    """

    db: Database
    settings: Settings
    agents: AgentClient
    nova: Nova
    placement: Allocations
    publisher: Callable[[], Publisher]
    limits: ProjectLimits | None = None
    meters: Meters = field(default_factory=Meters)


@dataclass(frozen=True)
class UseCase(Generic[C, Answer]):
    """The function that does what a command asks; call it with the context and the command."""

    command: type[C]
    function: Callable[[Conductor, C], Answer]

    def __call__(self, ctx: Conductor, command: C) -> Answer:
        """Do what the command asks, and return its answer."""
        return self.function(ctx, command)


def handles(
    command: type[C],
) -> Callable[[Callable[[Conductor, C], Answer]], UseCase[C, Answer]]:
    """Make a function the use case of a command."""
    return partial(UseCase, command)


def handlers(ctx: Conductor, modules: Iterable[ModuleType]) -> list[Handler]:
    """Return the handlers of all commands that have a use case in these modules."""
    return [
        Handler(case.command, partial(case, ctx))
        for module in modules
        for case in vars(module).values()
        if isinstance(case, UseCase)
    ]

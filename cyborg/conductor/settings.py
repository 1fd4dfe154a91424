# SPDX-License-Identifier: Apache-2.0
"""What a conductor is told of its configuration: plain values, nothing to look up."""

from dataclasses import dataclass

from cyborg.model.names import AGENT, API, CONDUCTOR


@dataclass(frozen=True)
class Settings:
    """Plain values from the configuration; times in seconds.

    A retention of 0 is one without end.
    """

    host: str
    process: str
    version: str
    heartbeat: float
    lease: float
    bind_timeout: float
    agent_down_after: float
    threads: int
    audit_interval: float = 600.0
    audit_changes: int = 50
    housekeeping_interval: float = 600.0
    lost_retention: float = 0.0
    history_retention: float = 0.0
    #: 0: dead agents' devices stay on offer.
    agent_grace: float = 3600.0
    #: Drivers whose new devices need no operator's word; ``*`` is every one.
    auto_enable: frozenset[str] = frozenset()
    #: 0: Nova is not asked what instances are called.
    instance_refresh: float = 0.0
    instance_turn: float = 10.0

    @property
    def down_after(self) -> dict[str, int]:
        """After how many milliseconds of silence a process of a binary is down."""
        return {
            AGENT: self.agent_down_ms,
            API: self.agent_down_ms,
            CONDUCTOR: int(self.lease * 1000),
        }

    @property
    def lost_ms(self) -> int:
        """After how many milliseconds what is lost is given up; 0 is never."""
        return int(self.lost_retention * 1000)

    @property
    def agent_down_ms(self) -> int:
        """How many milliseconds an agent may be silent and count as up."""
        return int(self.agent_down_after * 1000)

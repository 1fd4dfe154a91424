# SPDX-License-Identifier: Apache-2.0
"""The processes of this service: their names, when one is down, and why one gets no requests."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: The names of the programs, which process tables, logs and the API show.
API: Final = "cyborg-api"
CONDUCTOR: Final = "cyborg-conductor"
AGENT: Final = "cyborg-agent"
#: Seconds between two heartbeats of a process that serves the API.
API_INTERVAL: Final = 10.0
#: An agent or an API is down after so many intervals without a heartbeat.
_INTERVALS: Final = 3
#: What is shown of a host that drains, and of which no accelerator request has a unit any more.
DRAINED: Final = "drained"


def down_after(*, heartbeat_interval: float, lease: float) -> dict[str, int]:
    """Return binary → milliseconds without a heartbeat after which a process of it is down.

    ``heartbeat_interval`` of ``[agent]`` and ``lease`` of ``[conductor]`` are in seconds.
    """
    return {
        AGENT: round(1000 * _INTERVALS * heartbeat_interval),
        API: round(1000 * _INTERVALS * API_INTERVAL),
        CONDUCTOR: int(1000 * lease),
    }


class HostStatus(StrEnum):
    """Whether the host of an agent is in service, as an operator has ordered last.

    A host that is disabled or draining offers no units. One that drains shall become empty.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"
    DRAINING = "draining"


#: Every word of the API for the status of a process.
HOST_STATES: Final = (*(status.value for status in HostStatus), DRAINED)


@dataclass(frozen=True)
class BusFault:
    """The reason why a process receives no requests over the message bus, and since when.

    ``reason`` is a clause without a full stop that names the broker and the broker's own words,
    and never a password. ``since`` is the time of the first failure on ``time.monotonic()``.
    ``refused`` is True when a broker answers and refuses (login, permission, virtual host,
    certificate), and False when no broker answers.
    """

    reason: str
    since: float
    refused: bool = False

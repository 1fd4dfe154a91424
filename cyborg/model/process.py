# SPDX-License-Identifier: Apache-2.0
"""The processes of this service: their names, and why one receives no requests."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: The names of the programs, which process tables, logs and the API show.
API: Final = "cyborg-api"
CONDUCTOR: Final = "cyborg-conductor"
AGENT: Final = "cyborg-agent"
#: What is shown of a host that drains, and of which no accelerator request has a unit any more.
DRAINED: Final = "drained"


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

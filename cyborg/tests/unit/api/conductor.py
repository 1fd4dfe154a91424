# SPDX-License-Identifier: Apache-2.0
"""What the API is given of a conductor: a client that records the calls."""

from datetime import datetime
from typing import Any, Final, TypeVar

from cyborg.model.caller import Caller
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import Write

Answer = TypeVar("Answer")

#: When the rows of the small cloud were made.
NOW: Final = datetime(2026, 3, 4, 5, 6, 7)


class RecordedConductor:
    """The verbs of a client; ``fault`` makes each of them raise it.

    While ``up`` is False, no conductor is reached, because of ``bus_error``.
    """

    def __init__(self, client: ConductorClient) -> None:
        self._client = client
        self.reset()

    def reset(self) -> None:
        """Forget the calls, and be reached."""
        self.calls: list[tuple[str, Caller, dict[str, Any]]] = []
        self.fault: Exception | None = None
        self.up = True
        self.bus_error = "the message bus refuses the connection (530 NOT_ALLOWED: vhost gone)"

    def reached(self) -> bool:
        return self.up

    @property
    def trouble(self) -> str:
        return "" if self.up else self.bus_error

    def write(self, command: Write[Answer]) -> Answer:
        arguments = dict(vars(command))
        caller = arguments.pop("caller")
        del arguments["request_key"]
        self.calls.append((command.verb, caller, arguments))
        if self.fault is not None:
            raise self.fault
        return self._client.write(command)

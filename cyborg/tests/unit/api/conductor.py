# SPDX-License-Identifier: Apache-2.0
"""A real conductor behind the API, on the in-process bus; its client records the calls."""

from datetime import datetime
from typing import Any, Final, TypeVar

from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.rpc.verbs import Write
from cyborg.tests.fixtures.single_step import Environment, RunningClock

Answer = TypeVar("Answer")

#: When the rows of the small cloud were made.
NOW: Final = datetime(2026, 3, 4, 5, 6, 7)
#: Timeout in seconds; every call answers at once.
_PATIENCE: Final = 60.0


class RecordedConductor:
    """The verbs of ``ConductorClient``, answered by a conductor on the given database.

    No agent answers it, and neither Nova nor Placement can be reached. ``fault`` makes each verb
    raise it. While ``up`` is False, no conductor is reached, because of ``bus_error``.
    """

    def __init__(self, db: Database) -> None:
        url = db.engine.url.render_as_string(hide_password=False)
        self._environment = Environment(database_url=url, clock=RunningClock())
        self._process = self._environment.conductor(auto_enable=frozenset())
        self._process.renew()
        self._process.serve()
        self._client = self._environment.client()
        self.reset()

    def reset(self) -> None:
        """Forget the calls, and be reached."""
        self.calls: list[tuple[str, Caller, dict[str, Any]]] = []
        self.fault: Exception | None = None
        self.up = True
        self.bus_error = "the message bus refuses the connection (530 NOT_ALLOWED: vhost gone)"

    def close(self) -> None:
        """Close the clients and the bus."""
        self._client.close()
        self._process.stop()
        self._environment.close()

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

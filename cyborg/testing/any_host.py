# SPDX-License-Identifier: Apache-2.0
"""The agents of any number of hosts, over one connection to the conductors."""

import threading
from typing import Any

from cyborg.rpc import versions
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC, Bus, RPCClient


class AnyHost(ReportClient):
    """Sends each request in the name of the agent whose host the request is about."""

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        super().__init__(bus, timeout=timeout, sender=AGENT_TOPIC)
        self._line = _Line(
            bus, CONDUCTOR_TOPIC, peer="conductor", timeout=timeout, later=versions.CONDUCTOR
        )


class _Line(RPCClient):
    def __init__(self, *positional: Any, **named: Any) -> None:
        self._senders = threading.local()
        super().__init__(*positional, **named)

    def call(self, verb: str, *, request_id: str = "", **arguments: Any) -> Any:
        host = arguments["hello"]["body"]["host"] if verb == "hello" else arguments["host"]
        self._senders.name = f"{AGENT_TOPIC}@{host}"
        return super().call(verb, request_id=request_id, **arguments)

    @property
    def _sender(self) -> str:
        return str(self._senders.name)

    @_sender.setter
    def _sender(self, name: str) -> None:
        self._senders.name = name

# SPDX-License-Identifier: Apache-2.0
"""Client of the agents: the conductor calls one host at a time."""

import logging
from typing import TypeVar

from cyborg import exception
from cyborg.model.report import cut
from cyborg.rpc import verbs
from cyborg.rpc.transport import AGENT_TOPIC, Bus, RPCClient

LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class AgentClient(RPCClient):
    """Send commands to the agent of a host (``[DEFAULT] host``); ``sender`` names the conductor."""

    def __init__(self, bus: Bus, *, timeout: float, sender: str = "") -> None:
        super().__init__(
            bus, AGENT_TOPIC, peer="agent", timeout=timeout, sender=sender, later=verbs.AGENT
        )

    def request(
        self, host: str, command: verbs.ToAgent[Answer], *, within: float | None = None
    ) -> Answer:
        """Return the answer of the agent.

        Raises the errors that the command declares; Unavailable if the agent does not answer within
        ``timeout`` seconds, or ``within`` if that is shorter; Invalid for an answer to another task
        or of a wrong type; and UnknownVerb for an agent of an older release that does not have the
        verb or an argument of it. Texts of an error are cut at a bounded length.
        """
        try:
            reply = self.call_server(host, command.verb, within=within, **command.dump())
        except exception.CyborgError as error:
            fields = {
                name: cut(value) if isinstance(value, str) else value
                for name, value in error.fields.items()
            }
            raise type(error)(**fields) from error
        try:
            return command.read(reply)
        except exception.Invalid as error:
            LOG.warning(
                "Answer of the agent on host %s to %s refused: %s", host, command.verb, error
            )
            raise

    def cast(self, host: str, command: verbs.ToAgent[None]) -> None:
        """Send a command that may be lost; do not wait, and raise nothing."""
        self.cast_server(host, command.verb, **command.dump())

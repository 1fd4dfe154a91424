# SPDX-License-Identifier: Apache-2.0
"""The RPC endpoint of a conductor: check the sender of each command, and run its use case."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cyborg import exception
from cyborg.conductor import metrics
from cyborg.conductor.arqs import attributes, bind, create, device_profiles, release
from cyborg.conductor.context import Conductor, handlers
from cyborg.conductor.hosts import devices, guests, heartbeats, lost_devices, removal
from cyborg.conductor.operations import attach, created_accelerators, discovery, drivers
from cyborg.conductor.reports import apply, desired_state
from cyborg.model.process import CONDUCTOR
from cyborg.rpc import endpoint, verbs
from cyborg.rpc.command import Handler
from cyborg.rpc.endpoint import Context
from cyborg.rpc.transport import CONDUCTOR_AGENTS_TOPIC, CONDUCTOR_TOPIC
from cyborg_cli.text import escaped_line

LOG = logging.getLogger(__name__)

#: Refusals that are due to the sender of a request, or to its arguments.
_REFUSALS = (exception.Invalid, exception.Forbidden, exception.StaleEpoch)
#: The modules whose use cases the endpoint calls.
MODULES: Final = (
    *(attributes, bind, create, device_profiles, release),
    *(devices, guests, heartbeats, lost_devices, removal, metrics),
    *(attach, created_accelerators, discovery, drivers),
    *(apply, desired_state),
)

DatabaseFailed = Callable[[exception.DatabaseUnavailable], object]


class Endpoint(endpoint.Endpoint):
    """Verbs of conductors: those that the handlers in ``served`` are for.

    A request without a sender is refused with Forbidden; the first refusal of each verb is logged.
    So is a request of an agent for a host that is not the sender's. Each refusal of an agent is
    logged, and the same refusal again only after one of its requests was accepted.
    ``database_failed`` is called when a request fails because of the database.
    """

    def __init__(
        self,
        served: Iterable[Handler],
        *,
        database_failed: DatabaseFailed = lambda _error: None,
    ) -> None:
        super().__init__(CONDUCTOR, verbs.CONDUCTOR, *served)
        self._without_sender: set[str] = set()
        self._refused: dict[tuple[str, str], str] = {}
        self._database_failed = database_failed

    def _run(self, handler: Handler, context: Context, arguments: Mapping[str, Any]) -> Any:
        kind, sender = handler.command, context.get("sender")
        if not isinstance(sender, str) or not sender:
            if kind.verb not in self._without_sender:
                self._without_sender.add(kind.verb)
                LOG.warning(
                    "Request %s over the message bus refused: it names no sender. Later requests "
                    "of this kind are refused without a log line.",
                    kind.verb,
                )
            raise exception.Forbidden(reason=f"The request {kind.verb} names no sender.")
        try:
            command = kind.load(arguments)
            if isinstance(command, verbs.AgentRequest):
                host = command.of_host
                if sender.rpartition("@")[2] != host:
                    raise exception.Forbidden(reason=f"{sender} cannot speak for host {host}.")
            answer = handler.handle(command)
        except exception.DatabaseUnavailable as error:
            self._database_failed(error)
            raise
        except _REFUSALS as error:
            place = kind.verb, sender
            if issubclass(kind, verbs.AgentRequest) and self._refused.get(place) != str(error):
                self._refused[place] = str(error)
                LOG.warning(
                    "Sender %s: request %s over the message bus refused: %s",
                    *(escaped_line(sender), kind.verb, escaped_line(str(error))),
                )
            raise
        self._refused.pop((kind.verb, sender), None)
        return answer


def endpoints(
    ctx: Conductor, *, database_failed: DatabaseFailed = lambda _error: None
) -> dict[str, Endpoint]:
    """Return the endpoints of a conductor by their topics: each verb is on one of them."""
    served: dict[str, list[Handler]] = {CONDUCTOR_TOPIC: [], CONDUCTOR_AGENTS_TOPIC: []}
    for handler in handlers(ctx, MODULES):
        of_agent = issubclass(handler.command, verbs.AgentRequest)
        served[CONDUCTOR_AGENTS_TOPIC if of_agent else CONDUCTOR_TOPIC].append(handler)
    return {topic: Endpoint(own, database_failed=database_failed) for topic, own in served.items()}

# SPDX-License-Identifier: Apache-2.0
"""The agent's heartbeats, which wait for no driver, and the answers of the conductors."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cyborg import exception
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.providers import Providers
from cyborg.agent.reporter import Reporter
from cyborg.agent.state_store import DesiredStateCache
from cyborg.model.process import AGENT
from cyborg.model.report import (
    Acknowledged,
    AgentHeartbeat,
    Desired,
    DriverState,
    HeartbeatReply,
    Report,
)
from cyborg.model.work import DiscoveryTask
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchDesired, Heartbeat, SendReport

#: The maximal length of the texts of a heartbeat, in characters.
_MAX_FAILURE: Final = 2000


@dataclass(frozen=True)
class LastHeartbeat:
    """The result of a heartbeat.

    ``reply`` is None if no conductor answered. ``failures`` is how many heartbeats of this process
    got no answer. ``requests`` are the discovery requests that came before the heartbeat: the reply
    tells of the desired state that they rely on.
    """

    reply: HeartbeatReply | None
    failures: int
    requests: Sequence[DiscoveryTask]


class Heartbeats:
    """Send one heartbeat in each call of ``run_once``; another thread sends the reports.

    ``endpoint`` is the agent's RPC endpoint. ``bus_error`` says why this agent receives no requests
    over the bus; it is empty while it does. ``overdue`` says why the hardware has not been scanned
    for a long time; it is empty otherwise. ``wake`` is called after each heartbeat.
    """

    def __init__(
        self,
        *,
        version: str,
        endpoint: str,
        conductor: ConductorClient,
        cache: DesiredStateCache,
        providers: Providers,
        reporter: Reporter,
        discoveries: DiscoveryRequests,
        bus_error: Callable[[], str],
        overdue: Callable[[], str],
        wake: Callable[[], None],
    ) -> None:
        self.host = providers.host
        self.cache = cache
        self._version = version
        self._endpoint = endpoint
        self._conductor = conductor
        self._providers = providers
        self._reporter = reporter
        self.discoveries = discoveries
        self._bus_error = bus_error
        self._overdue = overdue
        self._wake = wake
        #: The epoch of this agent; None before the first reply to a heartbeat.
        self.epoch: int | None = None
        #: None before the first heartbeat, and after one that was refused because another agent has
        #: this host: this agent must change nothing then.
        self.last: LastHeartbeat | None = None
        self._failures = 0
        #: Why the conductor has refused the last report; empty: it has not.
        self._refusal = ""
        self._lock = threading.Lock()
        #: How many answers of conductors there were that are no replies to heartbeats.
        self._answers = 0

    @property
    def publish_error(self) -> str:
        """Return why Placement does not have what is desired; empty while it has."""
        return self._providers.error

    def run_once(self) -> None:
        """Send a heartbeat; raise its error, or that of Placement while the compute is not found.

        The compute is looked for before the heartbeat, because the conductor gives a new host the
        name that Placement has for it.
        """
        try:
            self._send()
        finally:
            self._wake()

    def _send(self) -> None:
        # In this order: the reply must tell of the state that these requests rely on.
        requests, answers = self.discoveries.pending(), self._answers
        placement_error = self._providers.find_root()
        failure = self._failure()[:_MAX_FAILURE]
        try:
            reply = self._conductor.request(
                Heartbeat(
                    AgentHeartbeat(
                        self.host,
                        self._providers.names,
                        self._version,
                        self._endpoint,
                        self.epoch,
                        drivers=tuple(self._reporter.driver_manager.installed_drivers.values()),
                        bus_error=self._bus_error(),
                        status=DriverState.FAILED if failure else DriverState.READY,
                        failure=failure,
                        history=self.cache.history,
                        publish_error=self.publish_error[:_MAX_FAILURE],
                    )
                )
            )
        except exception.CyborgError as error:
            superseded = isinstance(error, exception.StaleEpoch)
            with self._lock:
                self._failures += not superseded
                self.last = None if superseded else LastHeartbeat(None, self._failures, requests)
            raise
        self.cache.store_history(reply.history)
        with self._lock:
            self.epoch = reply.epoch
            previous = self.last.reply if self.last is not None else None
            if self._answers != answers and previous is not None:
                # While this heartbeat was on its way, a report or the desired state was answered.
                # The conductor may have read what it replies before that.
                generation = max(reply.desired_generation, previous.desired_generation)
                reply = replace(reply, digest=previous.digest, desired_generation=generation)
            self.last = LastHeartbeat(reply, self._failures, requests)
        if placement_error is not None:
            raise placement_error

    def report(self, epoch: int, report: Report, digest: str) -> Acknowledged:
        """Send a report with this digest to the conductor, and store it for the next start.

        The next heartbeats tell why a report is refused, until one is accepted.
        """
        try:
            acknowledged = self._conductor.request(SendReport(self.host, epoch, report))
        except exception.Invalid as error:
            self._refusal = f"The conductor refuses the report of the host. {error}"
            raise
        self._refusal = ""
        self.cache.store(report=report)
        self._note(acknowledged.desired_generation, digest=digest)
        return acknowledged

    def desired(self, epoch: int) -> Desired:
        """Return the desired state from the conductor, and store it for the next start."""
        desired = self._conductor.request(FetchDesired(self.host, epoch))
        self.cache.store(desired=desired)
        self._note(desired.generation)
        return desired

    def check(self, epoch: int) -> None:
        """Raise StaleEpoch if ``epoch`` shows that another agent has taken over this host.

        An agent that has no epoch yet is the newest agent of the host.
        """
        if self.epoch is not None and self.epoch < epoch:
            raise exception.StaleEpoch(
                epoch=self.epoch, binary=AGENT, host=self.host, current=epoch
            )

    def _failure(self) -> str:
        overdue, call = self._overdue(), self._reporter.current_call
        if overdue:
            reason = f"{call} has not returned" if call else "see the log of the agent"
            return f"The hardware is not scanned any more: {overdue}; {reason}."
        return self._refusal or self._reporter.failure()

    def _note(self, generation: int, **values: Any) -> None:
        """Take over what an answer says into the reply to the last heartbeat.

        The conductor may have read the answer before it read that reply.
        """
        with self._lock:
            self._answers += 1
            if self.last is not None and self.last.reply is not None:
                reply = self.last.reply
                generation = max(generation, reply.desired_generation)
                reply = replace(reply, desired_generation=generation, **values)
                self.last = replace(self.last, reply=reply)

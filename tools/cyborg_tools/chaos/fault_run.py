# SPDX-License-Identifier: Apache-2.0
"""The parts that faults share: an interrupted bind, outages, and results."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa

from cyborg import exception, service
from cyborg.db.models import Event, Service, Work
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg_tools.chaos.client_log import ClientLog
from cyborg_tools.chaos.load import Load
from cyborg_tools.chaos.scenarios import BIND_DEADLINE, RESOLVED, Instance
from cyborg_tools.chaos.world import PROBE, PROBED_ADDRESS, USUAL, World

#: Seconds that a preparation takes which is to be interrupted.
_SLOW = 2.0
_FRESH_MS = 2000
#: Seconds that one look at the service may take to come true while nothing is broken.
PATIENCE = 60.0
(_PROFILE,) = PROBE


@dataclass
class FaultRun:
    """The environment of one fault. ``short`` makes outages short.

    ``facts`` are sentences for the reader; ``figures`` times in seconds, by what they are of;
    ``over`` is when the fault was over, by the monotonic clock.
    """

    world: World
    load: Load
    client_log: ClientLog
    short: bool
    facts: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    over: float = 0.0

    def fact(self, sentence: str) -> None:
        """Add a fact to the report."""
        self.facts.append(sentence)

    def last(self, short: float, usual: float) -> None:
        """Let an outage last so many seconds."""
        seconds = short if self.short else usual
        threading.Event().wait(seconds)
        self.fact(f"it lasted {seconds:g} s")

    def ends(self) -> None:
        """Record the end of the fault, when recovery starts."""
        self.over = time.monotonic()

    @contextmanager
    def mid_bind(self) -> Iterator["Interrupted"]:
        """A bind whose preparation has begun on the host, and goes on for a while.

        At the end of the block the card is as quick as before, and the guest is ended.
        """
        machine = self.world.machine
        machine.take(PROBED_ADDRESS, _SLOW)
        try:
            one = self._begun()
            yield one
        finally:
            machine.take(PROBED_ADDRESS, USUAL)
        self.load.probe.end(one.instance)

    def until(self, what: str, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Wait for something that must come true; a violation when it does not."""
        if not service.wait_until(condition, timeout=timeout):
            self.client_log.violation(f"{what} did not happen within {timeout:.0f} s")

    def time_to_resolve(self, one: "Interrupted", since: float) -> None:
        """Write down how long a bind took to be resolved, and Nova to be told, since then."""
        resolved = self.load.probe.resolved(one.instance)
        self.figures["ARQ resolved"] = time.monotonic() - since
        if not resolved:
            self.fact("the bind in question failed")
        try:
            self.world.nova.wait_for_events(one.instance.arqs, BIND_DEADLINE)
        except TimeoutError as fault:
            self.client_log.violation(f"Nova was not told: {fault}")
        self.figures["ARQ resolved and Nova told"] = time.monotonic() - since

    def is_alive(self, conductor: str) -> bool:
        """Whether a conductor has given a sign of life within the last two seconds."""
        host = f"control-{conductor.rpartition('-')[2]}"
        age = self.world.reader.now - sa.func.max(Service.last_seen_ms)
        with self.world.reader.reader() as tx:
            query = sa.select(age).where(Service.host == host, Service.binary == CONDUCTOR)
            return int(tx.execute(query).scalar_one()) < _FRESH_MS

    def ends_of_bind(self, one: "Interrupted") -> int:
        """How often the history tells that this bind has ended."""
        ended = Event.subject_uuid.in_(one.instance.arqs), Event.action.in_(RESOLVED)
        with self.world.reader.reader() as tx:
            query = sa.select(sa.func.count()).select_from(Event).where(*ended)
            return int(tx.execute(query).scalar_one())

    def _begun(self) -> "Interrupted":
        for _ in range(20):
            instance = self.load.probe.begin(_PROFILE)
            if instance is None:
                # No room now: clients are about to end guests.
                threading.Event().wait(0.2)
                continue
            found: list[str] = []
            if service.wait_until(lambda: self._owned(instance, found), timeout=10, step=0.02):  # noqa: B023 - called at once
                return Interrupted(instance, found[0])
            self.load.probe.resolved(instance)
            self.load.probe.end(instance)
        raise exception.Unavailable(
            peer="the service", reason=f"no bind could be interrupted; {self._room()}"
        )

    def _room(self) -> str:
        """What Placement has of the card for such binds, in words."""
        offered = self.world.offered(PROBED_ADDRESS)
        taken = self.world.placement.call(
            "GET", f"/resource_providers/{self.world.provider(PROBED_ADDRESS)}/allocations"
        )["allocations"]
        return f"Placement offers {offered} unit(s), of which {len(taken)} servers have some"

    def _owned(self, instance: Instance, found: list[str]) -> bool:
        """Whether a conductor is at this guest's preparation; its name goes into ``found``."""
        query = (
            sa.select(Service.host)
            .join(Work, Work.owner_id == Service.id)
            .where(Work.arq_uuid.in_(instance.arqs), Work.kind == WorkKind.PREPARE.value)
        )
        with self.world.reader.reader() as tx:
            found[:] = [f"{CONDUCTOR}-{host.rpartition('-')[2]}" for host in tx.scalars(query)]
        return bool(found)


@dataclass(frozen=True)
class Interrupted:
    """A bind in the middle of its preparation, and the name of the conductor that is at it."""

    instance: Instance
    conductor: str

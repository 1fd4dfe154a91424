# SPDX-License-Identifier: Apache-2.0
"""The parts that faults share: an interrupted bind, a full disk, waiting, and results."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa

from cyborg import exception, service
from cyborg.db.models import Event, Service, Work
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos.load import RESOLVED, Instance, Load
from cyborg_tools.chaos.results import ClientLog
from cyborg_tools.chaos.world import NO_LIMIT, PROBE, PROBED_ADDRESS, USUAL, World

#: Seconds that a preparation takes which is to be interrupted.
_SLOW = 2.0
_FRESH_MS = 2000
_CHUNK = b"\0" * 4096
(_PROFILE,) = PROBE


@dataclass(frozen=True)
class Interrupted:
    """A bind in the middle of its preparation, and the name of the conductor that is at it."""

    instance: Instance
    conductor: str


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

    def last(self, short: float, usual: float) -> None:
        """Let an outage last so many seconds."""
        seconds = short if self.short else usual
        threading.Event().wait(seconds)
        self.facts.append(f"it lasted {seconds:g} s")

    def ends(self) -> None:
        """Record the end of the fault, when recovery starts."""
        self.over = time.monotonic()

    @contextmanager
    def mid_bind(self) -> Iterator[Interrupted]:
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

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the disk of the agent, kill the agent and start it; the space is free at the end."""
        state_path, written = self.world.state_path, 0
        filler = state_path / "filler"
        if self.world.disk != NO_LIMIT:
            try:
                with filler.open("wb", buffering=0) as out:
                    while True:
                        written += out.write(_CHUNK)
            except OSError as fault:
                if fault.errno != errno.ENOSPC:
                    raise
            self.facts.append(f"state_path ({self.world.disk}) was filled up: {written} bytes")
        else:
            state_path.chmod(0o500)
            self.facts.append(
                "no right to mount a small tmpfs here: state_path was made read-only instead"
            )
        try:
            killed = self.kill(AGENT)
            self.world.begin(AGENT, wait=True)
            seconds = time.monotonic() - killed
            self.facts.append(f"killed meanwhile, it runs again after {seconds:.1f} s")
            yield
        finally:
            filler.unlink(missing_ok=True)
            state_path.chmod(0o700)

    def kill(self, *daemons: str) -> float:
        """Kill daemons; return when, by the monotonic clock."""
        for name in daemons:
            self.world.program(name).kill()
        return time.monotonic()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for something that must come true; a violation when it does not."""
        if not service.wait_until(condition, timeout=PATIENCE):
            self.client_log.violation(f"{what} did not happen within {PATIENCE:.0f} s")

    def time_to_resolve(self, one: Interrupted, since: float) -> None:
        """Write down how long a bind took to be resolved, and Nova to be told, since then."""
        resolved = self.load.probe.resolved(one.instance)
        self.figures["ARQ resolved"] = time.monotonic() - since
        if not resolved:
            self.facts.append("the bind in question failed")
        self.nova_is_told(one, PATIENCE, "Nova was not told")
        self.figures["ARQ resolved and Nova told"] = time.monotonic() - since

    def nova_is_told(self, one: Interrupted, patience: float, otherwise: str) -> None:
        """Wait until Nova knows the end of a bind; a violation when that takes too long."""
        try:
            self.world.nova.wait_for_events(one.instance.arqs, patience)
        except TimeoutError as fault:
            self.client_log.violation(f"{otherwise}: {fault}")

    def is_alive(self, conductor: str) -> bool:
        """Whether a conductor has sent a heartbeat within the last two seconds."""
        host = f"control-{conductor.rpartition('-')[2]}"
        age = self.world.reader.now - sa.func.max(Service.last_seen_ms)
        with self.world.reader.reader() as tx:
            query = sa.select(age).where(Service.host == host, Service.binary == CONDUCTOR)
            return int(tx.execute(query).scalar_one()) < _FRESH_MS

    def ends_of_bind(self, one: Interrupted) -> int:
        """How often the history tells that this bind has ended."""
        ended = Event.subject_uuid.in_(one.instance.arqs), Event.action.in_(RESOLVED)
        with self.world.reader.reader() as tx:
            query = sa.select(sa.func.count()).select_from(Event).where(*ended)
            return int(tx.execute(query).scalar_one())

    def _begun(self) -> Interrupted:
        for _ in range(20):
            instance = self.load.probe.begin(_PROFILE)
            if instance is None:
                # No room now: clients are about to end guests.
                threading.Event().wait(0.2)
                continue
            owners: list[str] = []
            if service.wait_until(lambda: self._owned(instance, owners), timeout=10, step=0.02):  # noqa: B023 - called at once
                return Interrupted(instance, owners[0])
            self.load.probe.resolved(instance)
            self.load.probe.end(instance)
        offered, provider = self.world.offered(PROBED_ADDRESS), self.world.provider(PROBED_ADDRESS)
        path = f"/resource_providers/{provider}/allocations"
        taken = self.world.placement.call("GET", path)["allocations"]
        raise exception.Unavailable(
            peer="the service",
            reason=f"no bind could be interrupted; Placement offers {offered} unit(s), of which "
            f"{len(taken)} servers have some",
        )

    def _owned(self, instance: Instance, owners: list[str]) -> bool:
        """Whether a conductor is at this guest's preparation; its name goes into ``owners``."""
        query = (
            sa.select(Service.host)
            .join(Work, Work.owner_id == Service.id)
            .where(Work.arq_uuid.in_(instance.arqs), Work.kind == WorkKind.PREPARE.value)
        )
        with self.world.reader.reader() as tx:
            owners[:] = [f"{CONDUCTOR}-{host.rpartition('-')[2]}" for host in tx.scalars(query)]
        return bool(owners)

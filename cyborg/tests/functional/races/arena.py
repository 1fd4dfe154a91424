# SPDX-License-Identifier: Apache-2.0
"""Where workers meet: two conductors on one database, and hosts that are there from the start.

Nothing runs by itself. Each round begins with the same rows, put back by a few statements.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.db.engine import Database, Reader, retried
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    DirtyUnit,
    Event,
    Instance,
    Work,
)
from cyborg.model.arq import Binding, State
from cyborg.model.audit_findings import Ages
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.report import AgentHeartbeat, Report
from cyborg.rpc.transport import Bus
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS
from cyborg.tests.fixtures.manual_processes import ManualConductor
from cyborg.tests.fixtures.waiting import Meeting, result
from cyborg.tests.oracle import snapshot
from cyborg.tests.oracle.rows import AuditViews
from cyborg.tests.oracle.rules import check

WORKERS = 32
NOVA = Caller("project", "nova", "req-race", all_projects=True, service=True)
#: How a verb ended: None when it was carried out.
Outcome = type[exception.CyborgError] | None
Verb = Callable[[], object]
T = TypeVar("T")

_DAY = 86_400_000
#: What was said once, at the start, counts all the time.
_PATIENT = Ages(agent_silence=_DAY, conductor_silence=_DAY)


def at_once(verbs: Sequence[Callable[[], T]]) -> list[T]:
    """The answers of verbs that begin at the same moment, in their order; raises what one does."""
    start = Meeting(len(verbs))

    def run(verb: Callable[[], T]) -> T:
        start.meet()
        return verb()

    with ThreadPoolExecutor(len(verbs)) as pool:
        return [result(one) for one in [pool.submit(run, verb) for verb in verbs]]


def sound(database: Reader) -> None:
    """Every invariant that can be told from the rows alone holds."""
    found = [
        (one.kind, one.cause) for one in check(snapshot.take(database), AuditViews(), _PATIENT)
    ]
    assert not found, found


class Conductor(ManualConductor):
    """A conductor that has the lease of its work, on a database object of its own.

    A test calls its use cases as Nova does.
    """

    def __init__(
        self, name: str, *, url: str, bus: Bus, nova: Adapter | None = None, threads: int = 4
    ) -> None:
        super().__init__(
            Database(url), bus, nova=nova, host=name, threads=threads, agent_down_after=600.0
        )
        self.lease.renew()

    def create(self, profile: str, request_key: str | None = None) -> list[str]:
        """New ARQs; their uuids."""
        made = self.cases.arq_creator.create(NOVA, request_key or str(uuid4()), profile)
        return [one.uuid for one in made]

    def bind(
        self, arqs: Sequence[str], provider: str, instance: str, *, request_key: str | None = None
    ) -> None:
        """Bind ARQs of one instance to one provider."""
        binds = [Binding(one, "compute", provider, instance) for one in arqs]
        self.cases.arq_binder.patch(NOVA, request_key or str(uuid4()), binds, [])

    def unbind(self, arqs: Sequence[str], *, request_key: str | None = None) -> None:
        """Take ARQs off their instance."""
        self.cases.arq_binder.patch(NOVA, request_key or str(uuid4()), [], arqs)

    def delete(self, arqs: Sequence[str], *, request_key: str | None = None) -> None:
        """Delete ARQs by uuid."""
        self.cases.arq_releaser.by_uuid(NOVA, request_key or str(uuid4()), arqs)

    def delete_of(self, instance: str, *, request_key: str | None = None) -> None:
        """Delete the ARQs of an instance."""
        self.cases.arq_releaser.by_instance(NOVA, request_key or str(uuid4()), instance)


@dataclass
class Arena:
    """Two conductors and what they know: hosts that sent a heartbeat and reported once."""

    conductors: tuple[Conductor, ...]
    epochs: dict[str, int] = field(default_factory=dict)
    _profiles: dict[int, str] = field(default_factory=dict)

    @property
    def db(self) -> Database:
        """For looking, and for putting things back."""
        return self.conductors[0].db

    def take_turns(self, count: int) -> list[Conductor]:
        """So many workers' conductors, alternately."""
        return [self.conductors[one % len(self.conductors)] for one in range(count)]

    def profile(self, units: int) -> str:
        """The name of a profile that asks for so many units."""
        if units not in self._profiles:
            name = self._profiles[units] = f"units-{units}"
            made = DeviceProfile(str(uuid4()), name, ({f"resources:{RESOURCE_CLASS}": str(units)},))
            self.conductors[0].cases.profiles.create(NOVA, str(uuid4()), made)
        return self._profiles[units]

    def request(self, count: int, size: int = 1) -> list[list[str]]:
        """New ARQs, in bodies of ``size`` each."""
        made = self.conductors[0].create(self.profile(count * size))
        return [made[first : first + size] for first in range(0, len(made), size)]

    def report(self, host: str, report: Report, *, by: Conductor | None = None) -> None:
        """Hand in a host's report; a host that is news sends a heartbeat before."""
        conductor = by or self.conductors[0]
        if host not in self.epochs:
            heartbeat = AgentHeartbeat(host, (host,), "0", f"agent@{host}", None)
            self.epochs[host] = conductor.cases.heartbeats.heartbeat(heartbeat).epoch
        conductor.cases.report_applier.report(host, self.epochs[host], report)

    def outcomes(self, verbs: Sequence[Verb]) -> list[Outcome]:
        """How verbs that begin at the same moment end; no error but ours is an outcome."""
        return at_once([partial(_outcome, one) for one in verbs])

    def reset(self) -> None:
        """No ARQ, no work, no history; every device is there, in service and free."""
        self._empty()
        for one in self.conductors:
            one.lease.renew()

    @retried
    def _empty(self) -> None:
        # A handler of the last round may still be undoing what it may not do.
        with self.db.writer() as tx:
            for table in (Work, Event, Arq, Instance, DirtyUnit):
                tx.execute(sa.delete(table))
            free = {"state": "free", "lost_ms": None, "blocked": False, "cleaning": False}
            free |= {"clean_record": None, "clean_ms": None}
            tx.execute(sa.update(AttachHandle).values(free))
            tx.execute(sa.update(Deployable).values(lost_ms=None, publish_error=None))
            tx.execute(sa.update(Device).values(lost_ms=None, status="enabled"))

    def holds(self, bound: Mapping[str, Collection[str]], *, state: State = State.BOUND) -> None:
        """Just these ARQs (by instance) are bound, each with a handle; the others have nothing.

        Nova is to be told of each once, or the host to prepare it, and history knows of it.
        """
        sound(self.db)
        with self.db.reader() as tx:
            arqs = tx.execute(
                sa.select(Arq.uuid, Arq.state, Arq.instance_uuid, Arq.attach_handle_id)
            ).all()
            held = tx.execute(
                sa.select(sa.func.count()).where(AttachHandle.state == "held")
            ).scalar_one()
            work = tx.execute(sa.select(Work.arq_uuid).where(Work.kind != "release")).scalars()
            told = Counter(work)
            written = Counter(
                tx.execute(sa.select(Event.subject_uuid).where(Event.action == state)).scalars()
            )
        wanted = {arq: instance for instance, uuids in bound.items() for arq in uuids}
        having = {one.uuid: one.instance_uuid for one in arqs if one.state == state}
        assert having == wanted
        left = [one for one in arqs if one.uuid not in wanted]
        assert {(one.instance_uuid, one.attach_handle_id) for one in left} <= {(None, None)}
        assert {one.state for one in left} <= {State.INITIAL, State.UNBOUND}
        assert held == len(wanted)
        assert {told[one] for one in wanted} | {written[one] for one in wanted} <= {1}

    def count(self, table: Any, *where: sa.ColumnElement[bool]) -> int:
        """How many rows of a table fit."""
        with self.db.reader() as tx:
            query = sa.select(sa.func.count()).select_from(table).where(*where)
            return int(tx.execute(query).scalar_one())


def _outcome(verb: Verb) -> Outcome:
    try:
        verb()
    except exception.CyborgError as error:
        return type(error)
    return None

# SPDX-License-Identifier: Apache-2.0
"""Two hosts whose names begin alike, and whose drivers, devices and units have the same keys."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.arqs.quotas import NO_QUOTAS, Quotas
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.conductor.tasks.units import UnitTasks
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import METADATA, Arq, AttachHandle, Deployable, Device, Host, Service, Work
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import Binding
from cyborg.model.cleaning import CleanResult, HostClean
from cyborg.model.device import AttachHandle as Handle
from cyborg.model.device import AttachType, DeviceType
from cyborg.model.device import Deployable as Part
from cyborg.model.device import Device as Card
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.model.report import Desired, DriverReport, DriverState, Report
from cyborg.model.work import Outcome, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.tests.fixtures.host_reports import DRIVER, RESOURCE_CLASS, facts, report_of
from cyborg.tests.functional.races.arena import NOVA, Arena, Conductor
from cyborg.tests.functional.rules.rows import execute

FIRST, SECOND = "node-1", "node-10"
#: Milliseconds: how long lost things are kept, and an agent may be silent.
RETENTION = 30 * 24 * 3600 * 1000
DOWN_AFTER = 30_000
#: The units of the memory of a sliced card, and what a slice of each size takes of them.
MEMORY = 8
SLICES = {"big": 6, "half": 4, "small": 1}


@dataclass
class Agents:
    """Notes what the agents are asked and told, as (host, command); each answers that it is done.

    ``answers`` are fields of the answers by the key of the attach handle.
    """

    asked: list[tuple[str, Any]] = field(default_factory=list)
    told: list[tuple[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: What a host raises instead.
    errors: dict[str, exception.CyborgError] = field(default_factory=dict)

    def request(self, host: str, command: Any, *, within: float | None = None) -> Outcome:
        self.asked.append((host, command))
        if host in self.errors:
            raise self.errors[host]
        key = getattr(command.task, "handle_key", "")
        return Outcome(command.task.request_key, **self.answers.get(key, {}))

    def cast(self, host: str, command: Any) -> None:
        self.told.append((host, command))


@dataclass
class Pair:
    """The hosts, and the use cases of the only conductor; a host is there after its report."""

    conductor: Conductor
    agents: Agents = field(default_factory=Agents)
    cleanings: list[CleanResult] = field(default_factory=list)
    quotas: Quotas = NO_QUOTAS
    arena: Arena = field(init=False)

    def __post_init__(self) -> None:
        self.arena = Arena((self.conductor,))

    @property
    def db(self) -> Database:
        return self.conductor.db

    @property
    def agent_client(self) -> AgentClient:
        return cast(AgentClient, self.agents)

    @property
    def binder(self) -> ArqBinder:
        binder = self.conductor.cases.arq_binder
        return replace(binder, agents=self.agent_client, quotas=self.quotas)

    @property
    def lost_devices(self) -> LostDevices:
        return LostDevices(db=self.db, lost_retention=RETENTION, down_after=DOWN_AFTER)

    def report(self, host: str, report: Report) -> None:
        self.arena.report(host, report)

    def both(self, devices: int = 1, **more: Any) -> None:
        """Both hosts report so many devices, see ``report_of``."""
        for host in (FIRST, SECOND):
            self.report(host, report_of(host, devices, **more))

    def profile(self, *groups: Mapping[str, str]) -> str:
        """The name of a new profile with these groups."""
        made = DeviceProfile(str(uuid4()), f"profile-{uuid4().hex[:12]}", tuple(map(dict, groups)))
        self.conductor.cases.profiles.create(NOVA, str(uuid4()), made)
        return made.name

    def request(self, *specs: Mapping[str, str]) -> list[str]:
        """New ARQs of one unit each, with these further requirements; their uuids."""
        groups = [{f"resources:{RESOURCE_CLASS}": "1", **spec} for spec in specs or ({},)]
        return self.conductor.create(self.profile(*groups))

    def bind(self, *bindings: Binding, key: str | None = None) -> None:
        """Bind ARQs in one request."""
        self.binder.patch(NOVA, key or str(uuid4()), bindings, [])

    def boot(self, provider: str, *specs: Mapping[str, str]) -> tuple[list[str], str]:
        """Bind new ARQs to a new instance; their uuids, and that of the instance."""
        arqs, instance = self.request(*specs), str(uuid4())
        self.bind(*(Binding(arq, "compute", provider, instance) for arq in arqs))
        return arqs, instance

    def claim(self, *kinds: WorkKind) -> Sequence[ClaimedWork]:
        """The work of these kinds, whoever has it."""
        owner = self.conductor.lease.owner
        assert owner is not None
        due = sa.case((Work.kind.in_([kind.value for kind in kinds]), 0), else_=1 << 53)
        execute(self.db, sa.update(Work).values(not_before_ms=due))
        with self.db.writer() as tx:
            rows = work.claim(tx, owner=owner, lease_ms=-60_000, limit=50)
        return sorted(rows, key=lambda row: row.id)

    def do(self, kind: WorkKind, rows: Sequence[ClaimedWork] | None = None) -> None:
        """Do the work of a kind once, or that of these rows, the oldest first."""
        tasks = UnitTasks(
            queue=WorkQueue(db=self.db),
            agents=self.agent_client,
            wake=lambda: None,
            record_cleaning=self.cleanings.append,
        )
        for row in self.claim(kind) if rows is None else rows:
            tasks.handlers()[kind]([row])

    def generation(self, host: str) -> int:
        with self.db.reader() as tx:
            query = sa.select(Host.desired_generation).where(Host.service_host == host)
            return int(tx.execute(query).scalar_one())

    def generations(self) -> list[int]:
        return [self.generation(host) for host in (FIRST, SECOND)]

    def desired(self, host: str) -> Desired:
        desired_states = DesiredStates(db=self.db, lost_retention=RETENTION)
        return desired_states.desired(host, self.arena.epochs[host])

    def reserved(self, host: str) -> dict[str, int]:
        """How many units of each provider are reserved, by its name."""
        return {one.name: one.reserved for one in self.desired(host).tree.providers}

    def rows(self, model: Any, *terms: sa.ColumnElement[bool]) -> list[Any]:
        """The rows of a table that match the terms, by id."""
        with self.db.reader() as tx:
            table = model.__table__
            return list(tx.execute(sa.select(table).where(*terms).order_by(table.c.id)))

    def row(self, model: Any, *terms: sa.ColumnElement[bool]) -> Any:
        (row,) = self.rows(model, *terms)
        return row

    def arq(self, uuid: str) -> Any:
        return self.row(Arq, Arq.uuid == uuid)

    def arqs(self, uuids: Collection[str]) -> list[Any]:
        return [self.arq(uuid) for uuid in uuids]

    def handle(self, arq: str) -> Any:
        """The attach handle of an ARQ."""
        return self.row(AttachHandle, AttachHandle.id == self.arq(arq).attach_handle_id)

    def device(self, host: str, index: int = 0) -> Any:
        own = sa.select(Host.id).where(Host.service_host == host).scalar_subquery()
        return self.rows(Device, Device.host_id == own)[index]

    def units(self, name: str) -> list[Any]:
        """The attach handles of the deployable with this name."""
        own = sa.select(Deployable.id).where(Deployable.name == name).scalar_subquery()
        return self.rows(AttachHandle, AttachHandle.deployable_id == own)

    def process(self, host: str) -> Any:
        """The row of the agent of a host."""
        return self.row(Service, Service.host == host, Service.binary == AGENT)

    def silence(self, *hosts: str) -> None:
        """The agents of these hosts have sent no heartbeat for a long time."""
        self.change(Service, Service.host.in_(hosts), last_seen_ms=1)

    def change(self, model: Any, *terms: sa.ColumnElement[bool], **values: Any) -> None:
        execute(self.db, sa.update(model).where(*terms).values(**values))


def emptied(conductor: Conductor) -> Pair:
    """No host, and nothing else, is in the database of the conductor."""
    tables = [table for table in METADATA.sorted_tables if table.name != "alembic_version"]
    parentless = sa.update(Deployable).values(parent_id=None, root_id=None)
    execute(conductor.db, parentless, *map(sa.delete, reversed(tables)))
    conductor.lease.renew()
    return Pair(conductor)


def sliced(
    host: str,
    cards: int = 1,
    *,
    memory: int = MEMORY,
    slices: Mapping[str, int] = SLICES,
    clean: HostClean | None = None,
) -> Report:
    """The report of a host whose cards are taken in slices of several sizes.

    ``slice_of`` names their providers.
    """
    shown = tuple(
        Card(
            f"0000:8{index}:00.0",
            DeviceType.GPU,
            "v",
            "m",
            {},
            tuple(
                Part(
                    f"{host}_{index}_{name}",
                    RESOURCE_CLASS,
                    "bench",
                    tuple(
                        Handle(f"{name}-{unit}", AttachType.PCI, {})
                        for unit in range(MEMORY // size)
                    ),
                    attributes=facts(RESOURCE_CLASS),
                    prepare=True,
                    cost={"memory": size} if memory else {},
                    clean=clean,
                )
                for name, size in slices.items()
            ),
            pools={"memory": memory} if memory else {},
        )
        for index in range(cards)
    )
    return Report((DriverReport(DRIVER, DriverState.READY, shown),))


def slice_of(host: str, index: int, name: str) -> str:
    """The provider of the slices of a size of a card of ``sliced``."""
    return provider_uuid(f"{host}_{index}_{name}")

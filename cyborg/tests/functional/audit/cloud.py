# SPDX-License-Identifier: Apache-2.0
"""A small cloud made by the use cases themselves, with nothing running beside the test."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.arqs.create import ArqCreator
from cyborg.conductor.arqs.device_profiles import Profiles
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import Repairs
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Deployable, Device, Host
from cyborg.db.services import Process
from cyborg.model.arq import Binding
from cyborg.model.audit_findings import Ages, Kind
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.process import CONDUCTOR
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.agent import AgentClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.oracle.audit import expected_findings

NOVA = Caller("nova-project", "nova", "req-audit", all_projects=True, service=True)
#: Milliseconds: a day, how long what is lost is kept, how long an agent may be silent.
DAY = 24 * 3600 * 1000
RETENTION = 30 * DAY
DOWN_AFTER = 30_000
#: Everything counts at once: nobody else is at work here.
AT_ONCE = Ages(settle=-1)


@dataclass
class SmallCloud:
    """Hosts whose agents do what they are told when they are told."""

    db: Database
    placement: PlacementService
    nova: SimulatedNova
    profile: str = field(default_factory=lambda: f"profile-{uuid4().hex[:12]}")
    epochs: dict[str, int] = field(default_factory=dict)
    publishers: dict[str, Publisher] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lease = ConductorLease(db=self.db, process=Process("control", CONDUCTOR, "0", "", "1"))
        self.lease.renew()
        group = {f"resources:{RESOURCE_CLASS}": "1"}
        made = DeviceProfile(str(uuid4()), self.profile, (group,))
        Profiles(db=self.db).create(NOVA, str(uuid4()), made)

    def auditor(
        self, ages: Ages = AT_ONCE, *, nova: Adapter | None = None, placement: Adapter | None = None
    ) -> Auditor:
        """One without any memory; it asks these peers instead of the cloud's."""
        return Auditor(
            db=self.db,
            placement=Placement(placement or self.placement.adapter()),
            servers=Servers(nova or self.nova.adapter()),
            ages=ages,
        )

    @property
    def repairs(self) -> Repairs:
        return Repairs(db=self.db, wake=lambda: None)

    def host(self, *, prepare: bool = False, units: int = 4) -> str:
        """A compute with one card, published; its name."""
        name = self.compute("audited")
        report = report_of(name, 1, handles=units, prepare=prepare)
        ReportApplier(db=self.db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
            name, self.epochs[name], report
        )
        self.publish(name)
        return name

    def compute(self, prefix: str) -> str:
        """A compute whose agent has reported nothing yet; its name."""
        name = fresh_host(prefix)
        self.placement.make_compute(name)
        self.heartbeat(name)
        self.publishers[name] = Publisher(Placement(self.placement.adapter()))
        return name

    def heartbeat(self, host: str) -> None:
        """The agent's sign of life."""
        heartbeat = AgentHeartbeat(host, (host,), "0", f"agent@{host}", self.epochs.get(host))
        self.epochs[host] = Heartbeats(db=self.db, down_after=DOWN_AFTER).heartbeat(heartbeat).epoch

    def publish(self, host: str) -> None:
        """The agent's full check."""
        wanted = DesiredStates(db=self.db).desired(host, self.epochs[host])
        result = self.publishers[host].check(wanted.tree)
        assert result.problems == {}

    def generation(self, host: str) -> int:
        """The generation of what is desired of a host."""
        with self.db.reader() as tx:
            query = sa.select(Host.desired_generation).where(Host.name == host)
            return int(tx.execute(query).scalar_one())

    def request(self) -> str:
        """A new ARQ; its uuid."""
        creator = ArqCreator(db=self.db, max_per_request=1, max_unbound=1000)
        (made,) = creator.create(NOVA, str(uuid4()), self.profile)
        return made.uuid

    def allocate(self, host: str, instance: str) -> None:
        """What the scheduler does before a bind."""
        assert self.placement.claim(instance, {provider_of(host, 0): {RESOURCE_CLASS: 1}})

    def bind(self, host: str, arq: str = "") -> tuple[str, str]:
        """Boot a server with one unit of a host, for a new ARQ unless one is given.

        Returns the uuids of ARQ and instance.
        """
        arq, instance = arq or self.request(), str(uuid4())
        self.nova.own(instance, "nova-project")
        self.allocate(host, instance)
        binding = Binding(arq, host, provider_of(host, 0), instance)
        agents = AgentClient(DirectBus(Exchange()), timeout=PATIENCE)
        binder = ArqBinder(db=self.db, agents=agents, wake=lambda: None, bind_timeout=60_000)
        binder.patch(NOVA, str(uuid4()), [binding], [])
        return arq, instance

    def execute(self, *statements: sa.Executable) -> None:
        """Damage done by hand."""
        with self.db.writer() as tx:
            for one in statements:
                tx.execute(one)

    def found(self, host: str | None = None, ages: Ages = AT_ONCE) -> set[tuple[Kind, str]]:
        """What an audit finds now, as kinds and keys; the oracle finds the same, with causes."""
        verdict = self.auditor(ages).look(host)
        assert verdict.unasked == ()
        placement, servers = Placement(self.placement.adapter()), Servers(self.nova.adapter())
        expected = expected_findings(self.db, placement, servers, ages)
        assert verdict.findings == tuple(
            finding for finding in expected if host is None or finding.host == host
        )
        return keys(verdict.findings)

    def fix(self) -> list[str]:
        """Repair what can be; answers why some could not."""
        verdict = self.auditor().look()
        repaired = self.repairs.repair(verdict.findings, limit=10)
        assert repaired, "there was nothing to repair"
        return [one.reason for one in repaired if one.reason]


def keys(findings: Iterable[Any]) -> set[tuple[Kind, str]]:
    """Findings as kinds and keys."""
    return {(one.kind, one.key) for one in findings}


def age_lost(db: Database, by: int = RETENTION + DAY) -> None:
    """What is lost has been so for that much longer."""
    with db.writer() as tx:
        for model in (Device, Deployable, AttachHandle):
            tx.execute(sa.update(model).values(lost_ms=model.lost_ms - by))

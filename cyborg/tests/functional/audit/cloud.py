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
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import repair
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.model.arq import Binding
from cyborg.model.audit_findings import Ages, Kind
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.oracle.audit import expected_findings

#: Milliseconds: a day, how long what is lost is kept, how long an agent may be silent.
DAY = 24 * 3600 * 1000
RETENTION = 30 * DAY
DOWN_AFTER = 30_000
#: Everything counts at once: nobody else is at work here.
AT_ONCE = Ages(settle=-1)


@dataclass
class SmallCloud:
    """Hosts whose agents do what they are told when they are told, and their peers."""

    cases: UseCases
    placement: PlacementService
    nova: SimulatedNova
    publishers: dict[str, Publisher] = field(default_factory=dict)

    def auditor(
        self, ages: Ages = AT_ONCE, *, nova: Adapter | None = None, placement: Adapter | None = None
    ) -> Auditor:
        """One without any memory; it asks these peers instead of the cloud's."""
        return Auditor(
            db=self.cases.db,
            placement=Placement(placement or self.placement.adapter()),
            servers=Servers(nova or self.nova.adapter()),
            ages=ages,
        )

    def host(self, *, prepare: bool = False, units: int = 4) -> str:
        """A compute with one card, published; its name."""
        name = self.compute("audited")
        self.cases.report(name, report_of(name, 1, handles=units, prepare=prepare))
        self.publish(name)
        return name

    def compute(self, prefix: str) -> str:
        """A compute whose agent has reported nothing yet; its name."""
        name = fresh_host(prefix)
        self.placement.make_compute(name)
        self.cases.heartbeat(name)
        self.publishers[name] = Publisher(Placement(self.placement.adapter()))
        return name

    def publish(self, host: str) -> None:
        """The agent's full check."""
        result = self.publishers[host].check(self.cases.desired(host).tree)
        assert result.problems == {}

    def request(self) -> str:
        """A new ARQ; its uuid."""
        ((arq,),) = self.cases.request(1)
        return arq

    def allocate(self, host: str, instance: str) -> None:
        """What the scheduler does before a bind."""
        assert self.placement.claim(instance, {provider_of(host, 0): {RESOURCE_CLASS: 1}})

    def bind(self, host: str, arq: str = "") -> tuple[str, str]:
        """Boot a server with one unit of a host, for a new ARQ unless one is given.

        Returns the uuids of ARQ and instance.
        """
        arq, instance = arq or self.request(), str(uuid4())
        self.nova.own(instance, str(NOVA.project_id))
        self.allocate(host, instance)
        self.cases.patch(Binding(arq, host, provider_of(host, 0), instance))
        return arq, instance

    def found(self, host: str | None = None, ages: Ages = AT_ONCE) -> set[tuple[Kind, str]]:
        """What an audit finds now, as kinds and keys; the oracle finds the same, with causes."""
        verdict = self.auditor(ages).look(host)
        assert verdict.unasked == ()
        placement, servers = Placement(self.placement.adapter()), Servers(self.nova.adapter())
        expected = expected_findings(self.cases.db, placement, servers, ages)
        assert verdict.findings == tuple(
            finding for finding in expected if host is None or finding.host == host
        )
        return keys(verdict.findings)

    def fix(self) -> list[str]:
        """Repair what can be; answers why some could not."""
        verdict = self.auditor().look()
        repaired = repair(self.cases.db, verdict.findings, limit=10)
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

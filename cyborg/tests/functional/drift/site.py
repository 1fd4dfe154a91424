# SPDX-License-Identifier: Apache-2.0
"""A compute with many cards whose agent does one round when it is told, and never by itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.db.engine import Database
from cyborg.db.models import METADATA, Work
from cyborg.model.audit_findings import Ages, Kind
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.single_step import Agent, Conductor, Environment, RunningClock
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import Rack, Traits
from cyborg.tests.oracle.audit import expected_findings

UNITS = 2
CARDS = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x81, 0x81 + 20))

_DAY = 86_400_000
#: Everything counts at once: nobody else is at work here.
_AT_ONCE = Ages(settle=-1, agent_silence=_DAY, conductor_silence=_DAY)
_FULL_CHECK = 600.0


@dataclass(frozen=True)
class Entry:
    """All that Placement shows of a provider."""

    name: str
    parent: str | None
    inventories: Mapping[str, Any]
    traits: frozenset[str]
    allocations: Mapping[str, Any]


@dataclass
class Site:
    """The compute, its agent and a conductor, each a part of this process."""

    rack: Rack
    root: str
    conductor: Conductor
    agent: Agent
    service: PlacementService
    nova: SimulatedNova
    clock: list[float]
    bound: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return self.rack.compute

    @property
    def db(self) -> Database:
        return self.conductor.db

    @property
    def providers(self) -> list[str]:
        """The uuids of ours, card by card."""
        return [provider_uuid(f"{self.host}_{one}") for one in CARDS]

    @property
    def unused(self) -> list[str]:
        """Those that no server has units of."""
        return [one for one in self.providers if one not in self.bound.values()]

    def check(self) -> None:
        """The agent looks at its host and does one full check."""
        self.clock[0] += _FULL_CHECK + 1
        self.agent.run_once()

    def look(self) -> None:
        """The agent looks at its host and does no full check."""
        self.clock[0] += 2
        self.agent.run_once()

    def found(self) -> set[tuple[Kind, str]]:
        """What an audit without memory finds now."""
        return {(one.kind, one.key) for one in self.audit()}

    def audit(self) -> Any:
        """The same, with causes and remedies."""
        auditor = Auditor(
            db=self.db,
            placement=Placement(self.service.adapter()),
            servers=Servers(self.nova.adapter()),
            ages=_AT_ONCE,
        )
        verdict = auditor.look()
        assert verdict.unasked == ()
        placement, servers = Placement(self.service.adapter()), Servers(self.nova.adapter())
        assert verdict.findings == expected_findings(self.db, placement, servers, _AT_ONCE)
        return verdict.findings

    def shown(self) -> dict[str, Entry]:
        """The whole tree of the compute in Placement."""
        placement = Placement(self.service.adapter())
        return {
            uuid: Entry(
                node.name,
                node.parent_uuid,
                placement.inventories(uuid)[1],
                placement.traits(uuid)[1],
                placement.allocations_of(uuid),
            )
            for uuid, node in placement.tree(self.root).items()
        }

    def rows(self) -> dict[str, list[int]]:
        """The ids of everything in the database that a report could touch."""
        names = ("hosts", "devices", "deployables", "attach_handles", "attributes")
        with self.db.reader() as tx:
            return {
                name: list(tx.execute(sa.select(table.c.id).order_by(table.c.id)).scalars())
                for name, table in METADATA.tables.items()
                if name in (*names, "extended_accelerator_requests")
            }

    def bind(self, card: str) -> None:
        """Boot a server with one unit of a card, and wait until it has it."""
        ((arq,),) = self.conductor.request(1)
        instance, provider = str(uuid4()), self.rack.provider(card)
        self.nova.own(instance, "project")
        self.allocate(provider, instance, RESOURCE_CLASS)
        self.conductor.bind([arq], provider, instance)
        self.bound[instance] = provider
        self.settle()

    def allocate(self, provider: str, consumer: str, resource_class: str) -> None:
        """Take one unit."""
        body = {
            "allocations": {provider: {"resources": {resource_class: 1}}},
            "project_id": str(NOVA.project_id),
            "user_id": str(NOVA.user_id),
            "consumer_generation": None,
        }
        self.service.call("PUT", f"/allocations/{consumer}", body)

    def settle(self) -> None:
        """Have the conductor and the agent end what they have begun."""

        def done() -> bool:
            self.conductor.runner.run_once()
            with self.db.reader() as tx:
                return tx.execute(sa.select(Work.id)).first() is None

        eventually(done, "all work is done")


@contextmanager
def site(
    url: str, placement: PlacementService, nova: SimulatedNova, state_path: Path
) -> Iterator[Site]:
    """A compute whose cards are published, and servers on some of them."""
    name, clock = fresh_host("drift"), [0.0]
    root = placement.make_compute(name)
    environment = Environment(
        database_url=url,
        state_path=state_path,
        placement=placement.adapter(),
        nova=nova.adapter(),
        clock=RunningClock(),
    )
    conductor = environment.conductor(threads=4, heartbeat_interval=200.0)
    rack = Rack.build(name, Traits(RESOURCE_CLASS, prepare=True), dict.fromkeys(CARDS, UNITS))
    agent = environment.agent(
        name, rack.loaded, clock=lambda: clock[0], scan=1.0, full_check_interval=_FULL_CHECK
    )
    conductor.renew()
    conductor.serve()
    agent.serve()
    made = Site(rack, root, conductor, agent, placement, nova, clock)
    made.check()
    for card in CARDS[:4]:
        made.bind(card)
    yield made
    agent.stop()
    conductor.stop()
    environment.close()

# SPDX-License-Identifier: Apache-2.0
"""A small cloud in a known state, which is put back before each replay of a scenario."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.agent.state_store import StateStore
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.db import arqs
from cyborg.db.listing import Page
from cyborg.db.models import Host, Service
from cyborg.drivers.base import Driver
from cyborg.model.arq import Binding
from cyborg.model.audit_findings import Ages, Finding
from cyborg.model.caller import Caller
from cyborg.model.process import AGENT
from cyborg.model.provider import ProviderTree
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.verbs import FetchDesired
from cyborg.testing.driver_checks import look
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.single_step import Environment, Rows
from cyborg.tests.functional.enabling.cards import BareCardDriver
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.oracle.audit import expected_findings

NOVA = Caller("nova-project", "nova", "req-crash", all_projects=True, service=True)
UNITS = 3
#: Nothing is excused for being on its way: nothing is, when these are looked for.
AT_ONCE = Ages(settle=-1, agent_silence=3_600_000, conductor_silence=3_600_000)


@dataclass
class SimulatedCloud:
    """One compute with one card; ``arqs`` are for ``instance``, which has its allocation.

    They bind ``units`` of it. A ``bare`` card has to be set up.
    """

    environment: Environment
    placement: PlacementService
    nova: SimulatedNova
    traits: Traits
    instance: str = field(default_factory=lambda: str(uuid4()))
    profile: str = field(default_factory=lambda: f"profile-{uuid4().hex[:12]}")
    units: int = UNITS
    bare: bool = False
    arqs: Sequence[str] = ()
    image: str = ""
    #: Whether the profile asks for the image.
    imaged: bool = False
    rack: Rack = field(init=False)
    root: str = field(init=False)
    _rows: Rows = field(default_factory=dict)
    _prepared: frozenset[str] = frozenset()
    _set_up: bool = False
    _tree: ProviderTree | None = None
    _ms: int = 0
    _allocation: Any = None
    _guest: Guest | None = None
    #: What the agent has on its disk.
    _file: bytes = b""

    def __post_init__(self) -> None:
        self.environment.clear()
        self.move()
        project, node = NOVA.project_id or "", self.rack.compute
        self.guest = self.nova.own(self.instance, project, node, self.profile)
        self.nova.guests.listed = self.listed

    def findings(self) -> tuple[Finding, ...]:
        """What an audit must find now, by rules that read each table once."""
        peers = Placement(self.environment.placement), Servers(self.environment.nova)
        return expected_findings(self.environment.watch, *peers, AT_ONCE)

    @property
    def bindings(self) -> list[Binding]:
        """What Nova asks for when it boots the instance."""
        pairs = zip(self.arqs, self.homes, strict=True)
        return [Binding(one, self.rack.compute, home, self.instance) for one, home in pairs]

    @property
    def driver(self) -> Driver:
        """The driver of the compute."""
        return self.rack.driver

    @property
    def homes(self) -> list[str]:
        """The provider of each unit that the ARQs bind."""
        return [self.rack.provider()] * self.units

    @property
    def ready(self) -> set[str]:
        """The keys of the handles that are prepared now."""
        return self.rack.driver.ready

    def make_ready(self, keys: Collection[str]) -> None:
        """Have just these units prepared, behind everybody's back."""
        for key in self.ready - set(keys):
            self.rack.unprepare(key)
        for key in keys:
            self.rack.leak(key)

    def listed(self, instance: str) -> list[str]:
        """The ARQs that Nova is handed for an instance."""
        with self.environment.watch.reader() as tx:
            return [arq.uuid for arq in arqs.page(tx, Page(), EVERYWHERE, {"instance": instance})]

    def allocated(self) -> int:
        """How many units of the card Placement counts for the instance."""
        of_card = self._allocations()["allocations"].get(self.rack.provider(), {"resources": {}})
        return sum(of_card["resources"].values())

    def is_set_up(self) -> bool:
        """Whether the card can be used."""
        return all(not one.setup_required for one in look(self.rack.driver).hardware())

    def boot(self, *, set_up: bool = False) -> None:
        """Start the machine of a bare card anew, which may set it up by itself."""
        if isinstance(self.rack.driver, BareCardDriver):
            self.rack.driver.boot()
            if set_up:
                self.rack.driver.install(CARD, "")

    def move(self) -> None:
        """Another compute, of which nobody has heard yet, instead of the one before."""
        name = fresh_host("crash")
        self.root = self.placement.make_compute(name)
        self.rack = Rack.build(name, self.traits, {CARD: UNITS})
        if self.bare:
            driver = BareCardDriver(self.rack.machine, name, self.traits)
            self.rack = replace(self.rack, driver=driver)

    def allocate(self) -> None:
        """What the scheduler does before a bind."""
        units = {
            home: {self.traits.resource_class: count} for home, count in Counter(self.homes).items()
        }
        assert self.placement.claim(self.instance, units, NOVA.project_id)

    def free(self) -> None:
        """What Nova does when the server does not use its accelerators any more."""
        self.placement.free(self.instance)

    def keep(self) -> None:
        """Remember everything as it is now."""
        self._ms = self.environment.clock.ms
        self._allocation, self._guest = self._allocations(), replace(self.guest)
        self._prepared = frozenset(self.ready)
        self._set_up = self.is_set_up()
        file = self._agent_file()
        self._file = file.read_bytes() if file.exists() else b""
        self._rows = self.environment.dump()
        with self.environment.watch.reader() as tx:
            query = sa.select(Host.service_host, Service.epoch).join(
                Service, sa.and_(Service.host == Host.service_host, Service.binary == AGENT)
            )
            agent = tx.execute(query).one_or_none()
        if agent is not None:
            request = FetchDesired(agent.service_host, agent.epoch)
            self._tree = self.environment.cases().ask(request).tree

    def restore(self, *, publish: bool) -> None:
        """Make everything as it was; Placement only where a scenario changes it.

        An agent that knew of later events than the database would have the host's units held, as
        after the restore of a backup.
        """
        self.environment.restore(self._rows)
        self.environment.clock.ms = self._ms
        self.make_ready(self._prepared)
        self.rack.driver.loaded.clear()
        self.boot(set_up=self._set_up)
        for address in self.rack.machine.list_dir("/cards"):
            self.rack.pull(address)
        self.rack.plug(CARD, UNITS)
        assert self._guest is not None
        self.guest = self.nova.guests.put(self.instance, replace(self._guest))
        self.nova.guests.listed = self.listed
        self._put_allocation_back()
        if self._file:
            self._agent_file().write_bytes(self._file)
        else:
            self._agent_file().unlink(missing_ok=True)
        if publish:
            self._publish()

    def _agent_file(self) -> Path:
        return StateStore(self.environment.state_path, self.rack.compute).path

    def _allocations(self) -> Any:
        return self.placement.call("GET", f"/allocations/{self.instance}")

    def _put_allocation_back(self) -> None:
        kept = self._allocation["allocations"]
        now = self._allocations()["allocations"]
        if _units(now) == _units(kept):
            return
        self.placement.free(self.instance)
        assert self.placement.claim(self.instance, _units(kept), NOVA.project_id)

    def _publish(self) -> None:
        if self._tree is None:
            self.move()
            return
        placement = Placement(self.environment.placement)
        ours = {one.uuid for one in self._tree.providers}
        for uuid in placement.tree(self.root).keys() - ours - {self.root}:
            placement.delete_inventories(uuid)
            placement.delete_provider(uuid)
        assert Publisher(placement).check(self._tree).problems == {}


def _units(allocations: Any) -> dict[str, Any]:
    return {rp: one["resources"] for rp, one in allocations.items()}

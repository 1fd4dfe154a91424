# SPDX-License-Identifier: Apache-2.0
"""A unit that was not cleaned stays dirty, whatever happens to the rows that describe it.

A card is a piece of memory that keeps what its last guest wrote. Tenant A writes to it, its
instance is deleted, and the cleaning fails or cannot begin. Then the rows of the unit are removed,
or get other keys, in each way that exists. Tenant B must read nothing of A's.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import exception
from cyborg.cmd.audit import audit_after_restore
from cyborg.conductor.hosts import lost_devices
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    DirtyUnit,
    Event,
    Host,
    Service,
    Work,
)
from cyborg.drivers.base import CleanStep, Progress
from cyborg.drivers.base import Driver as BaseDriver
from cyborg.drivers.scan import Scan
from cyborg.model import device as facts
from cyborg.model.arq import Binding, State
from cyborg.model.audit_findings import Ages, Kind
from cyborg.model.cleaning import CleanLevel, HostClean
from cyborg.model.device import (
    AttachType,
    Confidence,
    DeviceStatus,
    DeviceType,
    Identity,
    IdentityKind,
)
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask
from cyborg.rpc.verbs import (
    CreateArqs,
    CreateDeviceProfile,
    DeleteDevice,
    DeleteInstanceArqs,
    InstallDriver,
    PatchArqs,
    RemoveService,
    UninstallDriver,
    UpdateDevice,
    Write,
)
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.contexts import SECONDS_PER_DAY
from cyborg.tests.fixtures.crash import FaultPlan
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.single_step import (
    DOWN_AFTER,
    Agent,
    Conductor,
    Environment,
)
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.functional.crash import row_paths
from cyborg.tests.functional.crash.cloud import NOVA
from cyborg.tests.functional.environments import new_environment

FIRST, SECOND, THIRD = "0000:81:00.0", "0000:82:00.0", "0000:83:00.0"
DRIVER = "canary_driver"
CLASS = "CUSTOM_CANARY"
#: Less than a lease, so that running processes keep it.
ROUND_MS = 4000
#: Rounds after which an agent has reported and published what is new, if there is no work.
_SETTLED = 2
#: The conductor's default of ``lost_retention``, and some more.
RETENTION_MS = 31 * 24 * 3600 * 1000


@dataclass
class Card:
    """A card, with what guests have written to it; ``number`` is its serial number, if any."""

    number: str | None = None
    data: list[str] = field(default_factory=list)


class CanaryDriver(BaseDriver):
    """Offer the cards of ``slots`` (address → card), each with one unit."""

    name = DRIVER

    def __init__(self, prefix: str) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.slots: dict[str, Card] = {}
        self.stuck = False
        self.cleanable = True
        self.key_of: Callable[[str], str] = lambda address: address
        self.part_of: Callable[[str], str] = lambda address: address
        self.prefix = prefix
        self.cleanings = 0

    def discover(self, scan: Scan) -> list[facts.Device]:
        return [self._device(address, card) for address, card in sorted(self.slots.items())]

    def clean_steps(self, task: HandleTask) -> list[CleanStep]:
        def erase(progress: Progress) -> None:
            if self.stuck:
                raise exception.DriverFailed(driver=DRIVER, verb="erase", reason="it is stuck")
            self.cleanings += 1
            self.slots[task.device_key].data.clear()

        return [CleanStep("erase", erase, level=CleanLevel.FULL)] if self.cleanable else []

    def _device(self, address: str, card: Card) -> facts.Device:
        info = PciAddress.parse(address).info()
        handle = facts.AttachHandle(self.key_of(address), AttachType.PCI, info)
        part = facts.Deployable(
            name=f"{self.prefix}_{self.part_of(address)}",
            resource_class=CLASS,
            driver_name="canary",
            handles=(handle,),
            clean=HostClean.DEFAULT if self.cleanable else None,
        )
        number = card.number
        known = [Identity(IdentityKind.DSN, number, Confidence.UNIQUE)] if number else []
        return facts.Device(
            *(address, DeviceType.PCI, "1d22", "canary", info, (part,)), identity=tuple(known)
        )


class Site:
    """One host with cards, its agent and a conductor; two tenants want the cards."""

    #: Whether the agent runs.
    runs = True

    def __init__(
        self, environment: Environment, placement: PlacementService, nova: SimulatedNova
    ) -> None:
        self.environment, self.placement, self.nova = environment, placement, nova
        #: What the agent calls its host, and what Placement calls it.
        self.agent_host = self.name = fresh_host("canary")
        self.compute = placement.make_compute(self.name)
        self.driver = CanaryDriver(self.name)
        #: Address of the unit → the instance that uses it.
        self.guests: dict[str, str] = {}

    def begin(self, conductor: Conductor, agent: Agent) -> None:
        """Let the processes answer, make the profile, and report the card."""
        self.conductor, self.agent = conductor, agent
        conductor.renew()
        conductor.serve()
        self.profile = f"profile-{uuid4().hex[:12]}"
        profile = DeviceProfile(str(uuid4()), self.profile, ({f"resources:{CLASS}": "1"},))
        self.ask(CreateDeviceProfile(NOVA, str(uuid4()), profile))
        agent.serve()
        self.settle()

    def ask(self, request: Write[Any]) -> Any:
        with contextlib.closing(self.environment.client()) as client:
            return client.write(request)

    def restart_conductor(self, **settings: Any) -> None:
        self.conductor.stop()
        self.conductor = self.conductor.again(**settings)
        self.conductor.renew()
        self.conductor.serve()

    def start_agent(self) -> None:
        self.agent = self.agent.again(
            devices=list(self.driver.slots), resource_provider_name=self.name
        )
        self.agent.serve()
        self.runs = True
        self.settle()

    def stop_agent(self) -> None:
        self.agent.stop()
        self.runs = False

    def settle(self, rounds: int = 24) -> None:
        """Let the processes do what is due, for longer than a failing cleaning is tolerated."""
        for number in range(rounds):
            if number > _SETTLED and self.environment.count(Work) == 0:
                break
            self.conductor.run_worker()
            if self.runs:
                with contextlib.suppress(exception.CyborgError):
                    self.agent.run_once()
            self.check()
            self.environment.clock.ms += ROUND_MS

    def boot(self) -> str | None:
        """Start an instance with a card if the service gives it one; it reads, then writes."""
        instance = str(uuid4())
        self.nova.own(instance, NOVA.project_id or "", self.name, self.profile)
        for provider in self.providers():
            (arq,) = self.ask(CreateArqs(NOVA, str(uuid4()), self.profile))
            binding = Binding(arq.uuid, self.name, provider, instance)
            try:
                self.ask(PatchArqs(NOVA, str(uuid4()), [binding], []))
            except exception.CyborgError:
                continue
            self.settle(3)
            self.check()
            # As Nova, which allocates before it binds.
            self.placement.claim(instance, {provider: {CLASS: 1}})
            place = next((key for key, one in self.bound().items() if one == instance), None)
            if place is None:
                # It waits for a unit that cannot be cleaned.
                self.delete(instance)
                continue
            self.driver.slots[place].data.append(instance)
            self.guests[place] = instance
            return instance
        return None

    def delete(self, instance: str) -> None:
        """Delete an instance; its data stays on the card."""
        self.guests = {key: one for key, one in self.guests.items() if one != instance}
        self.nova.disown(instance)
        self.placement.free(instance)
        self.ask(DeleteInstanceArqs(NOVA, str(uuid4()), instance))

    def used(self, *, stuck: bool) -> None:
        """Let tenant A use the only card and go; ``stuck``: until the unit is in quarantine."""
        instance = self.boot()
        assert instance is not None
        self.driver.stuck = stuck
        self.delete(instance)
        if stuck:
            self.settle()
            assert "quarantined" in self.states()

    def providers(self) -> list[str]:
        query = sa.select(Deployable.rp_uuid).join(Device, Device.id == Deployable.device_id)
        mine = query.where(Device.hostname == self.name)
        return self.environment.values(mine.order_by(Deployable.id))

    def present(self) -> list[tuple[str, str]]:
        """Return address and state of the units that are present."""
        query = (
            sa.select(AttachHandle.attach_info, UNIT)
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .join(Device, Device.id == Deployable.device_id)
            .where(
                Device.hostname == self.name,
                *(row.lost_ms.is_(None) for row in (AttachHandle, Deployable, Device)),
            )
        )
        return [(_address(info), state) for info, state in self.environment.rows(query)]

    def cleanings(self) -> dict[str, str]:
        """Return address → result of the last cleaning, as operators see it."""
        query = sa.select(AttachHandle.attach_info, AttachHandle.clean_record)
        rows = self.environment.rows(query)
        return {_address(info): record["result"] for info, record in rows}

    def bound(self) -> dict[str, str]:
        """Return address → instance of the ARQs that are Bound."""
        query = (
            sa.select(AttachHandle.attach_info, Arq.instance_uuid)
            .join(Arq, Arq.id == AttachHandle.arq_id)
            .where(Arq.state == State.BOUND.value)
        )
        return {_address(info): str(instance) for info, instance in self.environment.rows(query)}

    def states(self) -> list[str]:
        return [state for _, state in self.present()]

    def check(self) -> None:
        """No unit that may be given out, or that a new guest has, has anything of a guest."""
        for address, state in self.present():
            card = self.driver.slots.get(address)
            if state == "free" and card is not None:
                assert card.data == [], f"{address} is free with the data of a guest"
        for address, instance in self.bound().items():
            if instance not in self.guests.values():
                data = self.driver.slots[address].data
                assert data == [], f"instance {instance} reads the data of {data}"

    def next_tenant(self) -> None:
        """Tenant B gets no card before it is clean, and gets one afterwards."""
        self.settle()
        instance = self.boot()
        if instance is not None:
            self.delete(instance)
            self.settle()
        self.driver.stuck = False
        self.driver.cleanable = True
        self.settle()
        assert self.states().count("free") == len(self.driver.slots)
        assert self.boot() is not None

    def devices(self) -> list[str]:
        query = sa.select(Device.uuid).where(Device.hostname == self.name)
        return self.environment.values(query.order_by(Device.id))

    def enable(self, uuid: str) -> None:
        self.ask(UpdateDevice(NOVA, str(uuid4()), uuid, DeviceStatus.ENABLED, {}, None))

    def free(self, key: str) -> None:
        """Free a unit, as an operator who has cleaned it."""
        query = sa.select(Device.uuid).where(Device.device_key == key)
        (uuid,) = self.environment.values(query)
        self.ask(UpdateDevice(NOVA, str(uuid4()), uuid, None, {}, None, free_unit=key))

    def service(self) -> str:
        query = sa.select(Service.uuid).where(Service.host == self.agent_host)
        (uuid,) = self.environment.values(query)
        return str(uuid)

    def expire(self) -> None:
        """Let a month go by in which what is lost now stays away, and remove it."""
        self.settle()
        self.environment.clock.ms += RETENTION_MS
        self.agent.run_once()
        retention = (RETENTION_MS - 1) / 1000 / SECONDS_PER_DAY
        lost_devices.expire(self.environment.cases(lost_retention=retention).ctx)
        self.settle()

    def audit_after_restore(self) -> list[str]:
        """Run the audit as an operator; return what became of unknown holders."""
        auditor = self.environment.auditor(Ages(settle=-1))
        db = self.environment.watch
        report = audit_after_restore(auditor, db, host=None)
        assert report.verdict.unasked == ()
        return [
            report.outcome(finding)
            for finding in report.verdict.findings
            if finding.kind is Kind.UNKNOWN_HOLDER
        ]


def _address(info: str) -> str:
    parts = json.loads(info)
    return "{domain}:{bus}:{device}.{function}".format(**parts) if parts else ""


@pytest.fixture
def site(tmp_path: Path, placement: PlacementService) -> Iterator[Site]:
    with new_environment(tmp_path, placement) as (environment, nova, _):
        made = Site(environment, placement, nova)
        made.driver.slots[FIRST] = Card()
        retention = (RETENTION_MS / 1000 - 1) / SECONDS_PER_DAY
        made.begin(
            environment.conductor("conductor-1", faults=FaultPlan(), lost_retention=retention),
            environment.agent(made.name, made.driver, faults=FaultPlan(), devices=[FIRST]),
        )
        yield made
        made.conductor.stop()
        if made.runs:
            made.agent.stop()


# The ways in which rows of units go, or get other keys. Each lets tenant A leave, and returns when
# the card is there for the next tenant.


def _uninstall(site: Site) -> None:
    site.used(stuck=True)
    site.ask(UninstallDriver(NOVA, str(uuid4()), DRIVER, False, False, True))
    site.settle()
    assert site.environment.count(AttachHandle) == 0
    site.ask(InstallDriver(NOVA, str(uuid4()), DRIVER, None, None, False))
    site.settle()


def _delete_lost_device(site: Site) -> None:
    site.used(stuck=True)
    card = site.driver.slots.pop(FIRST)
    site.settle()
    site.ask(DeleteDevice(NOVA, str(uuid4()), site.devices()[0], True))
    site.settle()
    assert site.environment.count(AttachHandle) == 0
    site.driver.slots[FIRST] = card


def _retention_of_device(site: Site) -> None:
    site.used(stuck=True)
    card = site.driver.slots.pop(FIRST)
    site.expire()
    assert site.environment.count(AttachHandle) == 0
    site.driver.slots[FIRST] = card


def _remove_host(site: Site) -> None:
    # The host crashes, and its instances are evacuated.
    instance = site.boot()
    assert instance is not None
    site.stop_agent()
    site.delete(instance)
    site.environment.clock.advance(DOWN_AFTER + 1)
    site.ask(RemoveService(NOVA, str(uuid4()), site.service(), True))
    site.settle()
    assert site.environment.count(Host) == 0
    site.start_agent()


def _renumber(site: Site) -> None:
    site.used(stuck=True)
    site.driver.slots = {SECOND: site.driver.slots.pop(FIRST)}


def _exchange(site: Site) -> None:
    # A second card of the same make was there before: its address is now that of the first.
    site.driver.slots[SECOND] = Card()
    site.settle()
    site.used(stuck=True)
    slots = site.driver.slots
    site.driver.slots = {SECOND: slots[FIRST], THIRD: slots[SECOND], FIRST: Card()}


def _rekey(site: Site) -> None:
    site.used(stuck=True)
    site.driver.key_of = lambda address: f"unit-of-{address}"


def _retention_of_unit(site: Site) -> None:
    _rekey(site)
    site.expire()
    assert site.environment.count(AttachHandle) == 1
    # The driver is as before.
    site.driver.key_of = lambda address: address


def _retention_of_deployable(site: Site) -> None:
    site.used(stuck=True)
    site.driver.part_of = lambda address: f"part-of-{address}"
    site.expire()
    assert site.environment.count(Deployable) == 1
    site.driver.part_of = lambda address: address


def _restore(site: Site) -> None:
    before = site.environment.dump()
    site.used(stuck=True)
    site.environment.restore(before)
    site.settle()
    assert site.driver.cleanings == 0
    assert site.audit_after_restore() == []


def _no_step(site: Site) -> None:
    instance = site.boot()
    assert instance is not None
    site.driver.cleanable = False
    site.settle()
    site.delete(instance)


def _move(site: Site) -> None:
    # A card with a number gets another slot.
    site.driver.slots[FIRST].number = "n-1"
    site.settle()
    site.used(stuck=True)
    site.driver.slots = {SECOND: site.driver.slots.pop(FIRST)}


def _delete_and_move(site: Site) -> None:
    site.driver.slots[FIRST].number = "n-1"
    site.settle()
    _delete_lost_device(site)
    site.driver.slots = {SECOND: site.driver.slots.pop(FIRST), FIRST: Card("n-2")}


def _rename_host(site: Site) -> None:
    site.used(stuck=True)
    site.stop_agent()
    site.name = fresh_host("canary")
    site.placement.call("PUT", f"/resource_providers/{site.compute}", {"name": site.name})
    site.start_agent()


_REMOVED = {
    "lost_devices._remove > lost_devices.remove",
    "lost_devices._remove > lost_devices.remove > lost_devices._remove_parts",
}
#: Way → the paths on which it changes rows, see ``row_paths``.
WAYS: dict[Callable[[Site], None], set[str]] = {
    _uninstall: _REMOVED,
    _delete_lost_device: _REMOVED,
    _retention_of_device: _REMOVED,
    _remove_host: {
        "removal._remove_host > hosts.remove",
        "removal._remove_host > lost_devices.remove",
        "removal._remove_host > lost_devices.remove > lost_devices._remove_parts",
    },
    _rename_host: {"heartbeats.heartbeat > hosts.rename"},
    _renumber: set(),
    _exchange: set(),
    _rekey: set(),
    _retention_of_unit: {"lost_devices._expire_on > lost_devices.remove_handles"},
    _retention_of_deployable: {
        "lost_devices._remove > lost_devices.remove_deployables",
        "lost_devices._remove > lost_devices.remove_deployables > lost_devices._remove_parts",
    },
    _restore: set(),
    _no_step: set(),
    _move: {"device_diff._free_keys", "device_diff._update"},
    _delete_and_move: _REMOVED,
}


@pytest.mark.parametrize(
    "way",
    chosen(WAYS, "ways to lose a row", len(WAYS) // 2),
    ids=lambda way: way.__name__.strip("_"),
)
def test_next_tenant_reads_nothing_of_a_unit_that_was_not_cleaned(
    site: Site, way: Callable[[Site], None]
) -> None:
    with row_paths.recorded() as paths:
        way(site)
        site.next_tenant()
    assert paths == WAYS[way]


def test_each_path_that_removes_or_renumbers_units_has_a_way() -> None:
    assert row_paths.paths_of_code() == set().union(*WAYS.values())
    # Else units go without a statement that names them.
    assert {key.ondelete for key in AttachHandle.__table__.foreign_keys} <= {None, "SET NULL"}


REMOVALS: dict[str, Callable[[Site, bool | None], Write[Any]]] = {
    "driver": lambda site, force: UninstallDriver(
        *(NOVA, str(uuid4()), DRIVER, False, False, force)
    ),
    "device": lambda site, force: DeleteDevice(NOVA, str(uuid4()), site.devices()[0], force),
    "host": lambda site, force: RemoveService(NOVA, str(uuid4()), site.service(), force),
}


@pytest.mark.parametrize("noun", REMOVALS)
def test_removal_with_a_dirty_unit_is_refused_unless_it_is_forced(site: Site, noun: str) -> None:
    site.used(stuck=True)
    if noun == "device":
        del site.driver.slots[FIRST]
        site.settle(3)
    if noun == "host":
        site.stop_agent()
        site.environment.clock.advance(DOWN_AFTER + 1)
        site.conductor.renew()
    with pytest.raises(exception.Conflict, match=f"not cleaned.*: {FIRST} of {site.name}"):
        site.ask(REMOVALS[noun](site, None))
    site.ask(REMOVALS[noun](site, True))
    assert (
        site.environment.count(Event, Event.action == "overridden", Event.hostname == site.name)
        == 1
    )
    site.settle()
    assert site.environment.count(AttachHandle) == 0
    assert site.environment.count(DirtyUnit) == 1


def test_units_are_neither_offered_nor_reset_until_the_audit_has_looked(site: Site) -> None:
    site.driver.slots[SECOND] = Card()
    site.settle()
    before = site.environment.dump()
    living = site.boot()
    assert living is not None
    site.environment.restore(before)
    site.settle()
    assert site.driver.cleanings == 0
    assert site.boot() is None
    assert site.audit_after_restore() == ["repaired"]
    site.settle()
    assert site.driver.slots[FIRST].data == [living]
    assert dict(site.present()) == {FIRST: "quarantined", SECOND: "free"}
    assert site.cleanings() == {FIRST: "failed", SECOND: "cleaned"}
    assert site.boot() is not None
    # The server is deleted, and the operator cleans its card.
    site.delete(living)
    site.driver.slots[FIRST].data.clear()
    site.free(FIRST)
    assert site.boot() is not None


def test_host_of_a_restored_database_is_audited_once(site: Site) -> None:
    before = site.environment.dump()
    site.used(stuck=False)
    site.settle()
    site.environment.restore(before)
    assert site.audit_after_restore() == []
    site.settle()
    assert site.environment.count(Event, Event.action == "unchecked") == 0
    assert site.boot() is not None


def test_empty_database_resets_no_unit_of_a_living_guest(site: Site) -> None:
    living = site.boot()
    site.environment.clear()
    site.settle()
    assert site.environment.count(Host, Host.unchecked.is_(True)) == 1
    assert site.driver.cleanings == 0
    assert site.driver.slots[FIRST].data == [living]


def test_history_that_was_purged_holds_no_units(site: Site) -> None:
    site.used(stuck=False)
    site.settle()
    with site.environment.watch.writer() as tx:
        tx.execute(sa.delete(Event))
    site.settle()
    assert site.environment.count(Host, Host.unchecked.is_(True)) == 0
    assert site.boot() is not None


def test_unit_that_an_operator_frees_is_clean(site: Site) -> None:
    site.used(stuck=True)
    site.driver.slots[FIRST].data.clear()
    site.free(FIRST)
    assert site.environment.count(DirtyUnit) == 0
    # Its rows are removed, and it is as if the unit had never had a guest that left something.
    assert site.boot() is not None


@pytest.mark.parametrize("used", [True, False])
def test_unit_without_a_row_is_cleaned_first_on_a_host_that_had_guests(
    site: Site, *, used: bool
) -> None:
    if used:
        site.used(stuck=False)
        site.settle()
    before = site.driver.cleanings
    site.driver.slots[SECOND] = Card("n-2", data=["someone"] if used else [])
    site.settle()
    assert site.driver.cleanings - before == used
    assert site.states() == ["free", "free"]


def test_unit_of_a_device_that_was_never_enabled_keeps_its_data(site: Site) -> None:
    site.used(stuck=False)
    site.settle()
    site.restart_conductor(auto_enable=frozenset())
    before = site.driver.cleanings
    site.driver.slots[SECOND] = Card("n-2", data=["the operator"])
    site.settle()
    assert (site.driver.cleanings, site.driver.slots[SECOND].data) == (before, ["the operator"])
    site.enable(site.devices()[-1])
    site.settle()
    assert site.driver.slots[SECOND].data == []
    assert site.states() == ["free", "free"]


@pytest.mark.parametrize("clean", [True, False])
def test_free_units_of_the_existing_service_are_cleaned_where_configured(
    site: Site, *, clean: bool
) -> None:
    site.restart_conductor(clean_existing_units=clean)
    site.stop_agent()
    # A host of the existing service has devices, and this service has no report of it.
    with site.environment.watch.writer() as tx:
        tx.execute(sa.update(Host).values(digest=None))
    site.start_agent()
    assert site.driver.cleanings == clean
    assert site.states() == ["free"]

# SPDX-License-Identifier: Apache-2.0
"""Attach accelerators to existing servers and detach them, with all effects or none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Allocations, Consumer, Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.operations import attach_tasks
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Device, Driver, Event, Service
from cyborg.model.audit_findings import Ages, Severity
from cyborg.model.caller import Caller
from cyborg.model.process import AGENT
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import Attach, Detach
from cyborg.tests.fixtures.compute import ComputeWalk, Server
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    eventually_offered,
    everything,
    handle_states,
    hasten,
    meddle,
    of_instance,
    work_left,
)

Racks = Callable[..., RackedCompute]
Profiles = Callable[..., str]


@dataclass(frozen=True)
class Scenario:
    """A server with one unit of its flavor's; ``operator`` may attach to it."""

    server: Server
    guest: Guest
    rack: RackedCompute
    user: ComputeWalk
    member: Client
    operator: Client
    database: Database
    placement: PlacementService

    @property
    def path(self) -> str:
        return f"/instances/{self.server.uuid}/accelerators"

    @property
    def listed(self) -> list[str]:
        """The ARQs that Nova would be handed."""
        return [one["uuid"] for one in of_instance(self.member, self.server.uuid)]

    @property
    def attached(self) -> set[str]:
        """Those that are listed and not the flavor's."""
        return set(self.listed) - {one["uuid"] for one in self.server.arqs}

    @property
    def allocated(self) -> dict[str, int]:
        """The units by provider that Placement counts for the server, its host's left out."""
        found = self.placement.call("GET", f"/allocations/{self.server.uuid}")["allocations"]
        return {
            rp: sum(one["resources"].values())
            for rp, one in found.items()
            if "VCPU" not in one["resources"]
        }

    def settle(self) -> None:
        """Wait until nothing is left to be done."""

        def over() -> bool:
            hasten(self.database)
            return work_left(self.database) == []

        eventually(over)

    def attach(self, profile: str | None = None) -> Any:
        """Attach, wait until it is over, and give the operation."""
        body = {} if profile is None else {"device_profile": profile}
        begun = self.operator.post(self.path, body, status=202)
        assert (begun["verb"], begun["state"]) == ("attach", "running")
        self.settle()
        return self.operator.get(f"/operations/{begun['uuid']}")

    def detach(self, arq: str = "") -> Any:
        """Detach, wait until it is over, and give the operation."""
        begun = self.operator.delete(f"{self.path}/{arq}".rstrip("/"), status=202)
        self.settle()
        return self.operator.get(f"/operations/{begun['uuid']}")

    def history(self) -> list[tuple[str, str | None]]:
        """What has been written down about the server, with reasons."""
        with self.database.reader() as tx:
            rows = tx.execute(
                sa.select(Event.action, Event.reason)
                .where(Event.noun == "instance", Event.subject_uuid == self.server.uuid)
                .order_by(Event.id)
            )
            return [(row.action, row.reason) for row in rows]


@pytest.fixture
def one(profile: Profiles, resource_class: str) -> str:
    """A profile for one unit of this test's cards."""
    return profile({f"resources:{resource_class}": "1"})


@pytest.fixture
def make_scenario(
    racked: Racks,
    member: Client,
    operator: Client,
    walk: Callable[..., ComputeWalk],
    nova_api: SimulatedNova,
    *,
    database: Database,
    placement: PlacementService,
) -> Iterator[Callable[..., Scenario]]:
    """Boot a server on a compute of its own."""

    def make(profile: str, *, units: int = 3, traits: Traits | None = None) -> Scenario:
        slices = traits.slices if traits else None
        rack = racked(traits, cards={CARD: units}, started=not slices)
        if slices:
            rack.start()
            for name, size in slices.items():
                eventually_offered(placement, rack.provider(f"{CARD}_{name}"), units // size)
        user = walk("member", member.project)
        server = user.boot(profile)
        guest = nova_api.own(server.uuid, member.project, server.host, profile)
        guest.has = [one["uuid"] for one in server.arqs]
        scenario = Scenario(server, guest, rack, user, member, operator, database, placement)
        scenario.settle()
        return scenario

    service = member.with_service_token()
    nova_api.guests.listed = lambda uuid: [
        one["uuid"] for one in service.get(ARQS, instance=uuid)["arqs"]
    ]
    yield make
    nova_api.guests.listed = lambda _uuid: []


@pytest.fixture
def scenario(make_scenario: Callable[..., Scenario], one: str) -> Scenario:
    return make_scenario(one)


def refused(answer: Any) -> str:
    return str(answer["error_message"])


def test_accelerators_are_attached_and_detached(scenario: Scenario, profile: Profiles) -> None:
    flavors = scenario.listed
    done = scenario.attach()
    assert len(scenario.attached) == 1
    assert (done["state"], done["error"]) == ("succeeded", None)
    assert done["results"] == [
        {
            "host": scenario.rack.compute,
            "state": "succeeded",
            "result": {"arqs": list(scenario.attached)},
            "error": None,
        }
    ]
    steps = [step["name"] for step in done["steps"]]
    assert steps == ["begun", "allocate", "reboot", "watch", "succeeded"]
    assert scenario.guest.has == scenario.listed
    assert scenario.guest.reboots == 1
    assert scenario.allocated == {scenario.rack.provider(): 2}
    (arq,) = scenario.attached
    assert scenario.member.get(f"{ARQS}/{arq}")["state"] == "Bound"
    done = scenario.detach()
    assert (done["verb"], done["state"]) == ("detach", "succeeded")
    steps = [step["name"] for step in done["steps"]]
    assert steps == ["begun", "watch", "release", "shrink", "succeeded"]
    assert scenario.listed == scenario.guest.has == flavors
    assert scenario.guest.reboots == 2
    assert scenario.allocated == {scenario.rack.provider(): 1}
    assert sorted(handle_states(scenario.database).values()) == ["free", "free", "held"]
    assert [action for action, _ in scenario.history()] == [
        "attach",
        "attached",
        "detach",
        "detached",
    ]
    scenario.attach(profile({f"resources:{scenario.rack.resource_class}": "2"}))
    assert scenario.allocated == {scenario.rack.provider(): 3}
    first, second = sorted(scenario.attached)
    scenario.detach(first)
    assert scenario.attached == {second}
    assert scenario.allocated == {scenario.rack.provider(): 2}
    assert scenario.guest.has == scenario.listed


def test_attach_books_the_shared_capacity_of_its_card(
    make_scenario: Callable[..., Scenario], one: str, resource_class: str
) -> None:
    """Whatever the boot got: one more slice fits, then none, and after the detach one again."""
    slices = {"big": 5, "small": 3}
    traits = Traits(resource_class, prepare=True, slices=slices)
    scenario = make_scenario(one, units=sum(slices.values()), traits=traits)
    viewer = Client(scenario.operator.app, role="operator", version="2.100")

    def used() -> int:
        (device,) = viewer.get("/devices", hostname=scenario.rack.compute)["devices"]
        return int(device["pools"]["memory"]["used"])

    booted = used()
    assert booted in slices.values()
    for _ in range(2):
        assert scenario.attach(one)["state"] == "succeeded"
        assert booted < used() <= sum(slices.values())
        body = {"device_profile": one}
        answer = scenario.operator.post(scenario.path, body, status=409)
        assert "no free accelerators" in refused(answer)
        assert scenario.detach()["state"] == "succeeded"
        assert used() == booted


def test_attached_arq_is_listed_after_preparation(
    make_scenario: Callable[..., Scenario], one: str, resource_class: str
) -> None:
    scenario = make_scenario(one, traits=Traits(resource_class, prepare=True))
    gate = scenario.rack.driver.behaviour.preparing
    before = scenario.listed
    gate.clear()
    scenario.operator.post(scenario.path, {}, status=202)
    eventually(lambda: len(scenario.rack.driver.tasks) == 2)
    assert scenario.listed == before
    assert scenario.allocated == {scenario.rack.provider(): 1}
    hidden = [arq for arq in scenario.member.get(ARQS)["arqs"] if arq["uuid"] not in before]
    assert [(arq["state"], arq["instance_uuid"]) for arq in hidden] == [("BindStarted", None)]
    gate.set()
    scenario.settle()
    assert scenario.guest.has == scenario.listed != before
    assert len(scenario.rack.driver.ready) == 2
    scenario.detach()
    assert len(scenario.rack.driver.ready) == 1


@pytest.mark.parametrize("prepare", [True, False])
def test_attach_fails_when_agent_must_prepare_and_is_down(
    make_scenario: Callable[..., Scenario], one: str, resource_class: str, prepare: bool
) -> None:
    scenario = make_scenario(one, traits=Traits(resource_class, prepare=prepare))
    scenario.rack.kill(scenario.database)
    before = untouched(scenario)
    if not prepare:
        assert scenario.attach()["state"] == "succeeded"
        return
    said = refused(scenario.operator.post(scenario.path, {}, status=503))
    assert f"The agent of {scenario.rack.compute} is not available" in said
    assert untouched(scenario) == before
    assert scenario.operator.get("/operations")["operations"] == []
    scenario.rack.start()
    eventually(lambda: scenario.operator.answer("POST", scenario.path, {}) == 202)
    scenario.settle()
    assert len(scenario.attached) == 1


def untouched(scenario: Scenario) -> Any:
    """All that must be the same after what was refused, or taken back."""
    # Handles tell when they were last moved; who has them now is what counts.
    # A use of a unit is recorded even if it was short, and so is its history.
    left_out = ("events", "usage_records", "attach_handles", "operations", "operation_results")
    rows = everything(scenario.database, but=left_out)
    return rows, handle_states(scenario.database), scenario.allocated, scenario.listed


def test_refused_attach_and_detach_change_nothing(
    scenario: Scenario, one: str, conductor: ConductorClient
) -> None:
    guest, (flavors,) = scenario.guest, scenario.listed

    def attaching(body: Any = None, status: int = 409) -> str:
        return refused(scenario.operator.post(scenario.path, body or {}, status=status))

    def detaching(arq: str = "", status: int = 409) -> str:
        path = f"{scenario.path}/{arq}".rstrip("/")
        return refused(scenario.operator.delete(path, status=status))

    done = scenario.detach()
    assert (done["state"], done["results"][0]["result"]) == ("succeeded", {"arqs": []})
    assert scenario.history()[-1] == ("nothing to detach", None)
    scenario.attach()
    before = untouched(scenario)
    assert "only an attached accelerator can be detached" in detaching(flavors)
    detaching(str(uuid4()), status=404)
    attaching({"device_profile": "none"}, status=404)
    for status in ("PAUSED", "SUSPENDED", "ERROR", "SHELVED_OFFLOADED", "BUILD"):
        guest.status = status
        assert status in attaching()
        assert status in detaching()
    guest.status, guest.task, guest._looks = "ACTIVE", "image_snapshot", 10
    assert "image_snapshot" in attaching()
    guest.task, guest.profile = None, None
    said = attaching({"device_profile": one})
    assert "its flavor names no device profile (accel:device_profile)" in said
    # Policy may let owners attach: a conductor then finds the servers of their project only.
    stranger = Caller("strangers", "stranger", "req-attach")
    for command in (Attach, Detach):
        with pytest.raises(exception.NotFound, match=f"Instance {scenario.server.uuid}"):
            conductor.write(command(stranger, str(uuid4()), scenario.server.uuid, None))
    assert untouched(scenario) == before
    assert guest.reboots == 1
    guest.profile = one
    owner = Caller(scenario.member.project, "owner", "req-attach")
    conductor.write(Attach(owner, str(uuid4()), scenario.server.uuid, None))
    scenario.settle()
    assert len(scenario.attached) == 2
    # No unit is left.
    assert "no free accelerators" in attaching()


def test_unit_out_of_service_is_not_attached(scenario: Scenario) -> None:
    """Placement may still offer it: its agent has not heard of the fault yet."""
    agents = sa.update(Service).where(Service.binary == AGENT)
    free = sa.update(AttachHandle).where(UNIT == "free")
    device, driver = sa.update(Device), sa.update(Driver)
    enabled = agents.values(host_status="enabled")
    none = "no free accelerators"
    for fault, repair, reason in (
        (device.values(health="drain"), device.values(health="ok"), none),
        (device.values(status="maintaining"), device.values(status="enabled"), none),
        (driver.values(state="FAILED"), driver.values(state="READY"), none),
        (agents.values(host_status="disabled"), enabled, none),
        (agents.values(host_status="draining"), enabled, none),
        (
            free.values(attach_type="TEST_PCI"),
            free.values(attach_type="PCI"),
            "attach types must not be mixed: it has PCI",
        ),
    ):
        meddle(scenario.database, fault)
        try:
            before = untouched(scenario)
            assert reason in refused(scenario.operator.post(scenario.path, {}, status=409))
            assert untouched(scenario) == before
        finally:
            meddle(scenario.database, repair)
    # Units of one type that is not PCI are as good.
    meddle(scenario.database, sa.update(AttachHandle).values(attach_type="TEST_PCI"))
    assert scenario.attach()["state"] == "succeeded"


def test_failed_reboot_is_repeated_or_rolls_back(scenario: Scenario) -> None:
    guest, before = scenario.guest, untouched(scenario)
    guest.fails = 1
    done = scenario.attach()
    assert (done["state"], done["results"][0]["error"]) == ("failed", "the reboot failed")
    assert untouched(scenario) == before
    assert (guest.status, guest.reboots, guest.has) == ("ACTIVE", 2, scenario.listed)
    assert scenario.history()[-1] == ("not attached", "the reboot failed")
    scenario.attach()
    guest.fails = 1
    scenario.detach()
    assert (guest.status, guest.reboots) == ("ACTIVE", 5)
    assert untouched(scenario) == before
    assert scenario.history()[-1] == ("detached", None)
    # When the server cannot be rebooted at all, it keeps the device.
    guest.fails = 2
    scenario.operator.post(scenario.path, {}, status=202)

    def told() -> bool:
        hasten(scenario.database)
        return scenario.history()[-1][0] == "not attached"

    eventually(told)
    assert scenario.attached == set()
    assert sorted(handle_states(scenario.database).values()) == ["free", "held", "held"]
    assert guest.reboots == 7
    # Its operator repairs it; what is left is tidied up then.
    guest.begin()
    scenario.settle()
    assert untouched(scenario) == before
    assert [action for action, _ in scenario.history()].count("not attached") == 2


def test_second_attach_is_refused_while_one_is_in_progress(scenario: Scenario) -> None:
    scenario.guest.lasts = 10_000
    scenario.operator.post(scenario.path, {}, status=202)
    eventually(lambda: scenario.guest.reboots == 1)
    assert "is in progress" in refused(scenario.operator.post(scenario.path, {}, status=409))
    assert "(attach)" in refused(scenario.operator.delete(scenario.path, status=409))
    scenario.guest._looks = 0
    scenario.settle()
    assert len(scenario.attached) == 1


def test_delete_of_instance_during_attach_releases_everything(
    scenario: Scenario, nova_api: SimulatedNova
) -> None:
    scenario.guest.lasts = 10_000
    scenario.operator.post(scenario.path, {}, status=202)
    eventually(lambda: scenario.guest.reboots == 1)
    scenario.user.delete(scenario.server)
    nova_api.disown(scenario.server.uuid)
    scenario.settle()
    assert set(handle_states(scenario.database).values()) == {"free"}
    assert scenario.member.get(ARQS)["arqs"] == []
    assert [action for action, _ in scenario.history()][1:] == [
        "attached ones deleted",
        "not attached",
    ]


def test_evacuation_releases_attached_accelerators(
    scenario: Scenario, racked: Racks, one: str, nova_api: SimulatedNova
) -> None:
    scenario.attach()
    racked(cards={OTHER: 1})
    scenario.rack.stop()
    scenario.user.evacuate(scenario.server)
    assert scenario.listed == [arq["uuid"] for arq in scenario.server.arqs]
    assert scenario.history()[-1][0] == "attached ones deleted"


@pytest.fixture
def preparing(
    make_scenario: Callable[..., Scenario], one: str, resource_class: str
) -> Iterator[Scenario]:
    """A server to which something is being attached that its host is still preparing."""
    scenario = make_scenario(one, units=2, traits=Traits(resource_class, prepare=True))
    begin(scenario)
    yield scenario
    scenario.rack.driver.behaviour.open()


def begin(scenario: Scenario) -> None:
    """Attach, until the host is asked to prepare the unit."""
    scenario.rack.driver.behaviour.preparing.clear()
    asked = len(scenario.rack.driver.tasks)
    scenario.operator.post(scenario.path, {}, status=202)
    eventually(lambda: len(scenario.rack.driver.tasks) > asked)


def go_on(scenario: Scenario) -> None:
    """The host is done."""
    scenario.rack.driver.behaviour.open()
    scenario.settle()


def is_taken_back(scenario: Scenario) -> str:
    """Whether nothing of an attach is left; answers why it was taken back."""
    assert scenario.listed == [one["uuid"] for one in scenario.server.arqs]
    assert sorted(handle_states(scenario.database).values()) == ["free", "held"]
    assert len(scenario.rack.driver.ready) == 1
    assert scenario.guest.reboots == 0
    action, reason = scenario.history()[-1]
    assert action == "not attached"
    return str(reason)


def test_attach_is_rolled_back_when_the_world_changes(preparing: Scenario) -> None:
    guest, provider = preparing.guest, preparing.rack.provider()
    preparing.rack.driver.behaviour.fault = RuntimeError("no power")
    go_on(preparing)
    assert "no power" in is_taken_back(preparing)
    preparing.rack.driver.behaviour.fault = None
    changes: list[tuple[dict[str, Any], str]] = [
        ({"status": "PAUSED"}, "has become PAUSED"),
        ({"task": "image_snapshot", "_looks": 1000}, "(image_snapshot)"),
        ({"node": "elsewhere.example.org"}, "not there any more"),
    ]
    # Meanwhile Placement gives the unit to somebody else.
    begin(preparing)
    body = {
        "allocations": {provider: {"resources": {preparing.rack.resource_class: 1}}},
        "project_id": "others",
        "user_id": "others",
        "consumer_generation": None,
    }
    consumer = f"/allocations/{uuid4()}"
    preparing.placement.call("PUT", consumer, body)
    go_on(preparing)
    assert "Placement refuses it" in is_taken_back(preparing)
    assert preparing.allocated == {provider: 1}
    preparing.placement.call("DELETE", consumer)
    for change, reason in changes:
        before = vars(guest).copy()
        begin(preparing)
        vars(guest).update(change)
        go_on(preparing)
        assert reason in is_taken_back(preparing)
        vars(guest).update(before)


def test_server_that_is_off_is_not_rebooted(preparing: Scenario) -> None:
    preparing.guest.status = "SHUTOFF"
    go_on(preparing)
    assert len(preparing.attached) == 1
    preparing.detach()
    assert preparing.attached == set()
    assert preparing.guest.reboots == 0
    assert preparing.allocated == {preparing.rack.provider(): 1}


def test_attach_releases_units_when_server_is_deleted(
    preparing: Scenario, nova_api: SimulatedNova
) -> None:
    preparing.user.delete(preparing.server)
    nova_api.disown(preparing.server.uuid)
    go_on(preparing)
    assert set(handle_states(preparing.database).values()) == {"free"}
    assert preparing.rack.driver.ready == set()
    assert preparing.placement.call("GET", f"/allocations/{preparing.server.uuid}") == {
        "allocations": {}
    }


def test_audit_has_no_findings_during_an_attach(
    preparing: Scenario, placement: PlacementService, nova_api: SimulatedNova
) -> None:
    auditor = Auditor(
        db=preparing.database,
        placement=Placement(placement.adapter()),
        servers=Servers(nova_api.adapter()),
        ages=Ages(),
    )

    def wrong() -> list[str]:
        found = auditor.look(preparing.rack.compute).findings
        return [one.cause for one in found if one.severity > Severity.INFO]

    assert wrong() == []
    go_on(preparing)
    assert wrong() == []
    preparing.guest.lasts = 10_000
    preparing.operator.delete(preparing.path, status=202)
    eventually(lambda: preparing.guest.reboots == 2)
    assert wrong() == []
    preparing.guest._looks = 0
    preparing.settle()
    assert wrong() == []


def test_repeated_attach_and_detach_run_once(scenario: Scenario) -> None:
    first, later = (replace(scenario.operator, key=str(uuid4())) for _ in range(2))
    for _ in range(2):
        assert first.post(scenario.path, {}, status=202)["uuid"] == first.key
    scenario.settle()
    assert first.post(scenario.path, {}, status=202)["state"] == "succeeded"
    scenario.settle()
    assert (len(scenario.attached), scenario.guest.reboots) == (1, 1)
    assert "another request" in refused(first.delete(scenario.path, status=409))
    for _ in range(2):
        later.delete(scenario.path, status=202)
    scenario.settle()
    scenario.attach()
    later.delete(scenario.path, status=202)
    scenario.settle()
    # What was attached since is not this operation's any more.
    assert (len(scenario.attached), scenario.guest.reboots) == (1, 3)


class Meddled(Allocations):
    """Somebody changes the allocation between our look and our write, so many times."""

    times = 1

    def consumer(self, uuid: str) -> Consumer | None:
        """See Allocations."""
        found = super().consumer(uuid)
        if found is not None and self.times:
            self.times -= 1
            self.set_consumer(uuid, found)
        return found


def test_allocation_is_read_again_after_a_conflict(scenario: Scenario) -> None:
    scenario.attach()
    provider, uuid = scenario.rack.provider(), scenario.server.uuid
    providers = {provider: scenario.rack.resource_class}
    meddled = Meddled(scenario.placement.adapter())
    ctx = context(scenario.database, placement=meddled)
    found = meddled.consumer(uuid)
    assert found is not None
    current = Allocations(scenario.placement.adapter()).consumer(uuid)
    assert current is not None
    less = {**current.allocations, provider: {scenario.rack.resource_class: 1}}
    meddled.set_consumer(uuid, replace(current, allocations=less))
    meddled.times = 2
    attach_tasks.grow(ctx, uuid, providers)
    assert scenario.allocated == {provider: 2}
    meddled.times = 1000
    more = {**current.allocations, provider: {scenario.rack.resource_class: 3}}
    fresh = Allocations(scenario.placement.adapter()).consumer(uuid)
    assert fresh is not None
    meddled.set_consumer(uuid, replace(fresh, allocations=more))
    with pytest.raises(exception.Unavailable, match="keeps changing"):
        attach_tasks.shrink(ctx, uuid, providers)
    meddled.times = 1
    attach_tasks.shrink(ctx, uuid, providers)
    assert scenario.allocated == {provider: 2}
    # What Nova has removed does not come back.
    scenario.placement.free(uuid)
    attach_tasks.shrink(ctx, uuid, providers)
    with pytest.raises(exception.NotFound):
        attach_tasks.grow(ctx, uuid, providers)
    assert scenario.allocated == {}


def test_private_profile_is_attached_only_to_instances_of_its_projects(
    scenario: Scenario, one: str, conductor: ConductorClient
) -> None:
    """The project of the instance counts, also for administrators."""
    app, project = scenario.operator.app, scenario.member.project
    admin = Client(app, role="admin", version="2.100")
    # Operators can allow attach to users of a project.
    user = Caller(project, "user", "req-attach")
    admin.patch(f"/device_profiles/{one}", {"projects": ["another"]}, status=200)
    before = untouched(scenario)
    for body in ({}, {"device_profile": one}):
        for client in (admin, scenario.operator):
            answer = refused(client.post(scenario.path, body, status=409))
            assert f"device profile {one} is private, and project {project} may not use" in answer
        with pytest.raises(exception.NotFound, match=one):
            conductor.write(
                Attach(user, str(uuid4()), scenario.server.uuid, body.get("device_profile"))
            )
    assert untouched(scenario) == before
    admin.patch(f"/device_profiles/{one}", {"projects": [project]}, status=200)
    assert scenario.attach()["state"] == "succeeded"
    assert len(scenario.attached) == 1

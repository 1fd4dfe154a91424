# SPDX-License-Identifier: Apache-2.0
"""Accelerators attached to servers that exist, and detached: through every door, all or nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.allocations import Allocations, Consumer
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.operations.attach_tasks import InstanceAllocation
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Device, Event, Service
from cyborg.model.audit_findings import Severity
from cyborg.model.audit_rules import Ages
from cyborg.model.caller import Caller
from cyborg.model.names import AGENT
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.compute import ComputeWalk, Server
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    eventually,
    everything,
    handle_states,
    hasten,
    meddle,
    of_instance,
    work_left,
)
from cyborg.tests.functional.life.test_operations import kill

Racks = Callable[..., RackedCompute]
Profiles = Callable[..., str]


@dataclass(frozen=True)
class Scene:
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
def operator(app: Any) -> Client:
    return Client(app, role="operator", version="2.4")


@pytest.fixture
def make_scene(
    racked: Racks,
    member: Client,
    operator: Client,
    walk: Callable[..., ComputeWalk],
    nova_api: SimulatedNova,
    *,
    database: Database,
    placement: PlacementService,
) -> Iterator[Callable[..., Scene]]:
    """Boot a server on a compute of its own."""

    def make(profile: str, *, units: int = 3, traits: Traits | None = None) -> Scene:
        rack = racked(traits, cards={CARD: units})
        user = walk("member", member.project)
        server = user.boot(profile)
        guest = nova_api.own(server.uuid, member.project, server.host, profile)
        guest.has = [one["uuid"] for one in server.arqs]
        scene = Scene(server, guest, rack, user, member, operator, database, placement)
        scene.settle()
        return scene

    service = member.with_service_token()
    nova_api.guests.listed = lambda uuid: [
        one["uuid"] for one in service.get(ARQS, instance=uuid)["arqs"]
    ]
    yield make
    nova_api.guests.listed = lambda _uuid: []


@pytest.fixture
def scene(make_scene: Callable[..., Scene], one: str) -> Scene:
    return make_scene(one)


def refused(answer: Any) -> str:
    return str(answer["error_message"])


def test_attach_and_detach(scene: Scene) -> None:
    flavors = scene.listed
    done = scene.attach()
    assert len(scene.attached) == 1
    assert (done["state"], done["error"]) == ("succeeded", None)
    assert done["results"] == [
        {
            "host": scene.rack.compute,
            "state": "succeeded",
            "result": {"arqs": list(scene.attached)},
            "error": None,
        }
    ]
    steps = [step["name"] for step in done["steps"]]
    assert steps == ["begun", "allocate", "reboot", "watch", "succeeded"]
    assert scene.guest.has == scene.listed
    assert scene.guest.reboots == 1
    assert scene.allocated == {scene.rack.provider(): 2}
    (arq,) = scene.attached
    assert scene.member.get(f"{ARQS}/{arq}")["state"] == "Bound"
    done = scene.detach()
    assert (done["verb"], done["state"]) == ("detach", "succeeded")
    steps = [step["name"] for step in done["steps"]]
    assert steps == ["begun", "watch", "release", "shrink", "succeeded"]
    assert scene.listed == scene.guest.has == flavors
    assert scene.guest.reboots == 2
    assert scene.allocated == {scene.rack.provider(): 1}
    assert sorted(handle_states(scene.database).values()) == ["free", "free", "held"]
    assert [action for action, _ in scene.history()] == [
        "attach",
        "attached",
        "detach",
        "detached",
    ]


def test_another_profile_and_one_of_several(scene: Scene, profile: Profiles) -> None:
    scene.attach(profile({f"resources:{scene.rack.resource_class}": "2"}))
    assert scene.allocated == {scene.rack.provider(): 3}
    first, second = sorted(scene.attached)
    scene.detach(first)
    assert scene.attached == {second}
    assert scene.allocated == {scene.rack.provider(): 2}
    assert scene.guest.has == scene.listed


def test_a_server_that_is_off_is_not_rebooted(scene: Scene) -> None:
    scene.guest.status = "SHUTOFF"
    scene.attach()
    assert len(scene.attached) == 1
    scene.detach()
    assert scene.attached == set()
    assert scene.guest.reboots == 0
    assert scene.allocated == {scene.rack.provider(): 1}


def test_what_is_prepared_is_listed_only_when_it_is_ready(
    make_scene: Callable[..., Scene], one: str, resource_class: str
) -> None:
    scene = make_scene(one, traits=Traits(resource_class, prepare=True))
    gate = scene.rack.driver.behaviour.preparing
    before = scene.listed
    gate.clear()
    scene.operator.post(scene.path, {}, status=202)
    eventually(lambda: len(scene.rack.driver.tasks) == 2)
    assert scene.listed == before
    assert scene.allocated == {scene.rack.provider(): 1}
    hidden = [arq for arq in scene.member.get(ARQS)["arqs"] if arq["uuid"] not in before]
    assert [(arq["state"], arq["instance_uuid"]) for arq in hidden] == [("BindStarted", None)]
    gate.set()
    scene.settle()
    assert scene.guest.has == scene.listed != before
    assert len(scene.rack.driver.ready) == 2
    scene.detach()
    assert len(scene.rack.driver.ready) == 1


def test_a_host_that_cannot_prepare_leaves_everything_as_it_was(
    make_scene: Callable[..., Scene], one: str, resource_class: str
) -> None:
    scene = make_scene(one, traits=Traits(resource_class, prepare=True))
    before = untouched(scene)
    scene.rack.driver.behaviour.fault = RuntimeError("no power")
    scene.attach()
    assert untouched(scene) == before
    assert scene.guest.reboots == 0
    action, reason = scene.history()[-1]
    assert action == "not attached"
    assert "no power" in str(reason)


@pytest.mark.parametrize("prepare", [True, False])
def test_an_agent_that_is_down_is_named_if_it_has_to_prepare(
    make_scene: Callable[..., Scene], one: str, resource_class: str, prepare: bool
) -> None:
    scene = make_scene(one, traits=Traits(resource_class, prepare=prepare))
    kill(scene.database, scene.rack)
    before = untouched(scene)
    if not prepare:
        assert scene.attach()["state"] == "succeeded"
        return
    said = refused(scene.operator.post(scene.path, {}, status=503))
    assert f"The agent of {scene.rack.compute} is not available" in said
    assert untouched(scene) == before
    assert scene.operator.get("/operations")["operations"] == []
    scene.rack.restart()
    eventually(lambda: scene.operator.answer("POST", scene.path, {}) == 202, timeout=60.0)
    scene.settle()
    assert len(scene.attached) == 1


def untouched(scene: Scene) -> Any:
    """All that must be the same after what was refused, or taken back."""
    # Handles tell when they were last moved; who has them now is what counts.
    left_out = ("events", "attach_handles", "operations", "operation_results")
    rows = everything(scene.database, but=left_out)
    return rows, handle_states(scene.database), scene.allocated, scene.listed


def test_a_failed_reboot_is_taken_back(scene: Scene) -> None:
    before = untouched(scene)
    scene.guest.fails = 1
    done = scene.attach()
    assert (done["state"], done["results"][0]["error"]) == ("failed", "the reboot failed")
    assert untouched(scene) == before
    assert (scene.guest.status, scene.guest.reboots) == ("ACTIVE", 2)
    assert scene.guest.has == scene.listed
    assert scene.history()[-1] == ("not attached", "the reboot failed")


def test_a_server_that_cannot_be_rebooted_keeps_the_device_from_others(scene: Scene) -> None:
    scene.guest.fails = 2
    scene.operator.post(scene.path, {}, status=202)

    def told() -> bool:
        hasten(scene.database)
        return scene.history()[-1][0] == "not attached"

    eventually(told)
    assert scene.attached == set()
    assert sorted(handle_states(scene.database).values()) == ["free", "held", "held"]
    assert scene.guest.reboots == 2
    # Its operator repairs it; what is left is tidied up then.
    scene.guest.begin()
    scene.settle()
    assert sorted(handle_states(scene.database).values()) == ["free", "free", "held"]
    assert scene.allocated == {scene.rack.provider(): 1}
    assert [action for action, _ in scene.history()].count("not attached") == 1


def test_a_detach_whose_reboot_fails_reboots_once_more(scene: Scene) -> None:
    scene.attach()
    scene.guest.fails = 1
    scene.detach()
    assert (scene.guest.status, scene.guest.reboots) == ("ACTIVE", 3)
    assert scene.attached == set()
    assert scene.history()[-1] == ("detached", None)


@pytest.mark.parametrize("status", ["PAUSED", "SUSPENDED", "ERROR", "SHELVED_OFFLOADED", "BUILD"])
def test_in_another_state_nothing_is_touched(scene: Scene, status: str) -> None:
    scene.attach()
    before = untouched(scene)
    scene.guest.status = status
    assert status in refused(scene.operator.post(scene.path, {}, status=409))
    assert status in refused(scene.operator.delete(scene.path, status=409))
    assert untouched(scene) == before


def test_while_nova_is_at_it_nothing_is_touched(scene: Scene) -> None:
    scene.guest.task, scene.guest._looks = "image_snapshot", 10
    assert "image_snapshot" in refused(scene.operator.post(scene.path, {}, status=409))


def test_a_flavor_without_a_profile_is_refused(scene: Scene, one: str) -> None:
    scene.guest.profile = None
    before = untouched(scene)
    said = refused(scene.operator.post(scene.path, {"device_profile": one}, status=409))
    assert "its flavor names no device profile (accel:device_profile)" in said
    assert untouched(scene) == before


def test_what_is_not_there(scene: Scene, nova_api: SimulatedNova) -> None:
    before = untouched(scene)
    scene.operator.post(scene.path, {"device_profile": "none"}, status=404)
    scene.operator.post(f"/instances/{uuid4()}/accelerators", {}, status=404)
    scene.operator.delete(f"/instances/{uuid4()}/accelerators", status=404)
    scene.operator.delete(f"{scene.path}/{uuid4()}", status=404)
    assert untouched(scene) == before


def test_no_room_on_its_host(make_scene: Callable[..., Scene], one: str) -> None:
    scene = make_scene(one, units=1)
    before = untouched(scene)
    assert "no free accelerators" in refused(scene.operator.post(scene.path, {}, status=409))
    assert untouched(scene) == before


def test_a_device_that_is_not_healthy_is_not_attached(scene: Scene) -> None:
    """Placement may still offer it: its agent has not heard of the fault yet."""
    mine = Device.hostname == scene.server.host
    meddle(scene.database, sa.update(Device).where(mine).values(health="drain"))
    before = untouched(scene)
    assert "no free accelerators" in refused(scene.operator.post(scene.path, {}, status=409))
    assert untouched(scene) == before
    meddle(scene.database, sa.update(Device).where(mine).values(health="ok"))
    assert scene.attach()["state"] == "succeeded"


def test_the_flavors_own_are_never_detached(scene: Scene) -> None:
    (flavors,) = scene.listed
    said = refused(scene.operator.delete(f"{scene.path}/{flavors}", status=409))
    assert "only an attached accelerator can be detached" in said
    done = scene.detach()
    assert (done["state"], done["results"][0]["result"]) == ("succeeded", {"arqs": []})
    assert scene.listed == [flavors]
    assert scene.guest.reboots == 0
    assert scene.history()[-1] == ("nothing to detach", None)


def test_one_at_a_time(scene: Scene) -> None:
    scene.guest.lasts = 10_000
    scene.operator.post(scene.path, {}, status=202)
    eventually(lambda: scene.guest.reboots == 1)
    assert "is in progress" in refused(scene.operator.post(scene.path, {}, status=409))
    assert "(attach)" in refused(scene.operator.delete(scene.path, status=409))
    scene.guest._looks = 0
    scene.settle()
    assert len(scene.attached) == 1


def test_deleting_the_instance_frees_everything(scene: Scene, nova_api: SimulatedNova) -> None:
    scene.guest.lasts = 10_000
    scene.operator.post(scene.path, {}, status=202)
    eventually(lambda: scene.guest.reboots == 1)
    scene.user.delete(scene.server)
    nova_api.disown(scene.server.uuid)
    scene.settle()
    assert set(handle_states(scene.database).values()) == {"free"}
    assert scene.member.get(ARQS)["arqs"] == []
    assert [action for action, _ in scene.history()][1:] == [
        "attached ones deleted",
        "not attached",
    ]


def test_evacuation_leaves_what_was_attached_behind_and_says_so(
    scene: Scene, racked: Racks, one: str, nova_api: SimulatedNova
) -> None:
    scene.attach()
    racked(cards={OTHER: 1})
    scene.rack.agent.stop()
    scene.user.evacuate(scene.server)
    assert scene.listed == [arq["uuid"] for arq in scene.server.arqs]
    assert scene.history()[-1][0] == "attached ones deleted"


def test_who_may(scene: Scene, app: Any) -> None:
    own = scene.member.project
    for role in ("member", "reader", "manager"):
        client = Client(app, role=role, project=own, version="2.4")
        client.post(scene.path, {}, status=403)
        client.delete(scene.path, status=403)
        client.delete(f"{scene.path}/{uuid4()}", status=403)
    Client(app, role="admin", version="2.4").delete(scene.path, status=202)
    replace(scene.operator, version="2.3").post(scene.path, {}, status=404)
    replace(scene.operator, version=None).delete(scene.path, status=404)


def test_odd_input(scene: Scene) -> None:
    odd: tuple[Any, ...] = (
        {"device_profile": ""},
        {"device_profile": 1},
        {"profile": "x"},
        [],
        "x",
    )
    for body in odd:
        scene.operator.post(scene.path, body, status=400)
    scene.operator.post("/instances/none/accelerators", {}, status=400)
    scene.operator.delete(f"{scene.path}/none", status=400)


@pytest.fixture
def preparing(make_scene: Callable[..., Scene], one: str, resource_class: str) -> Iterator[Scene]:
    """A server to which something is being attached that its host is still preparing."""
    scene = make_scene(one, units=2, traits=Traits(resource_class, prepare=True))
    scene.rack.driver.behaviour.preparing.clear()
    scene.operator.post(scene.path, {}, status=202)
    eventually(lambda: len(scene.rack.driver.tasks) == 2)
    yield scene
    scene.rack.driver.behaviour.open()


def go_on(scene: Scene) -> None:
    """The host is done."""
    scene.rack.driver.behaviour.open()
    scene.settle()


def is_taken_back(scene: Scene) -> str:
    """Whether nothing of an attach is left; answers why it was taken back."""
    assert scene.listed == [one["uuid"] for one in scene.server.arqs]
    assert sorted(handle_states(scene.database).values()) == ["free", "held"]
    assert len(scene.rack.driver.ready) == 1
    assert scene.guest.reboots == 0
    action, reason = scene.history()[-1]
    assert action == "not attached"
    return str(reason)


def test_placement_gives_the_unit_to_somebody_else_meanwhile(preparing: Scene) -> None:
    provider = preparing.rack.provider()
    body = {
        "allocations": {provider: {"resources": {preparing.rack.resource_class: 1}}},
        "project_id": "others",
        "user_id": "others",
        "consumer_generation": None,
    }
    preparing.placement.call("PUT", f"/allocations/{uuid4()}", body)
    go_on(preparing)
    assert "Placement refuses it" in is_taken_back(preparing)
    assert preparing.allocated == {provider: 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"node": "elsewhere.example.org"}, "not there any more"),
        ({"status": "PAUSED"}, "has become PAUSED"),
        ({"task": "image_snapshot", "_looks": 1000}, "(image_snapshot)"),
    ],
)
def test_the_server_changes_meanwhile(
    preparing: Scene, change: dict[str, Any], reason: str
) -> None:
    for name, value in change.items():
        setattr(preparing.guest, name, value)
    go_on(preparing)
    assert reason in is_taken_back(preparing)


def test_the_server_is_stopped_meanwhile(preparing: Scene) -> None:
    preparing.guest.status = "SHUTOFF"
    go_on(preparing)
    assert len(preparing.attached) == 1
    assert preparing.guest.reboots == 0


def test_the_server_is_deleted_while_its_host_prepares(
    preparing: Scene, nova_api: SimulatedNova
) -> None:
    preparing.user.delete(preparing.server)
    nova_api.disown(preparing.server.uuid)
    go_on(preparing)
    assert set(handle_states(preparing.database).values()) == {"free"}
    assert preparing.rack.driver.ready == set()
    assert preparing.placement.call("GET", f"/allocations/{preparing.server.uuid}") == {
        "allocations": {}
    }


def test_an_audit_finds_nothing_wrong_in_between(
    preparing: Scene, placement: PlacementService, nova_api: SimulatedNova
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


def test_what_is_mixed_is_refused(scene: Scene) -> None:
    with scene.database.writer() as tx:
        free = sa.update(AttachHandle).where(AttachHandle.state == "free")
        tx.execute(free.values(attach_type="TEST_PCI"))
    before = untouched(scene)
    said = refused(scene.operator.post(scene.path, {}, status=409))
    assert "attach types must not be mixed: it has PCI" in said
    assert untouched(scene) == before
    with scene.database.writer() as tx:
        tx.execute(sa.update(AttachHandle).values(attach_type="TEST_PCI"))
    scene.attach()
    assert len(scene.attached) == 1


def test_a_device_out_of_service_is_not_attached(scene: Scene) -> None:
    with scene.database.writer() as tx:
        tx.execute(sa.update(Device).values(status="maintaining"))
    assert "no free accelerators" in refused(scene.operator.post(scene.path, {}, status=409))


def test_a_host_out_of_service_gives_no_more(scene: Scene) -> None:
    agents = Service.binary == AGENT
    meddle(scene.database, sa.update(Service).where(agents).values(disabled=True))
    try:
        assert "no free accelerators" in refused(scene.operator.post(scene.path, {}, status=409))
    finally:
        meddle(scene.database, sa.update(Service).where(agents).values(disabled=False))


def test_repeated_operations(scene: Scene, conductor: ConductorClient) -> None:
    caller = Caller("operators", "operator", "req-attach", all_projects=True)
    request_key, instance = str(uuid4()), scene.server.uuid
    for _ in range(2):
        conductor.attach(caller, request_key, instance, None)
    scene.settle()
    conductor.attach(caller, request_key, instance, None)
    scene.settle()
    assert (len(scene.attached), scene.guest.reboots) == (1, 1)
    later = str(uuid4())
    for _ in range(2):
        conductor.detach(caller, later, instance, None)
    scene.settle()
    scene.attach()
    conductor.detach(caller, later, instance, None)
    scene.settle()
    # What was attached since is not this operation's any more.
    assert (len(scene.attached), scene.guest.reboots) == (1, 3)


def test_the_client_may_choose_the_operations_id(scene: Scene) -> None:
    chosen = replace(scene.operator, key=str(uuid4()))
    first = chosen.post(scene.path, {}, status=202)
    assert first["uuid"] == chosen.key
    scene.settle()
    again = chosen.post(scene.path, {}, status=202)
    assert (again["uuid"], again["state"]) == (chosen.key, "succeeded")
    scene.settle()
    assert len(scene.attached) == 1
    assert "another request" in refused(chosen.delete(scene.path, status=409))
    assert len(scene.attached) == 1


def test_a_policy_for_owners_reaches_their_own_servers_only(
    scene: Scene, conductor: ConductorClient
) -> None:
    stranger = Caller("strangers", "stranger", "req-attach")
    for verb in (conductor.attach, conductor.detach):
        with pytest.raises(exception.NotFound, match=f"Instance {scene.server.uuid}"):
            verb(stranger, str(uuid4()), scene.server.uuid, None)
    owner = Caller(scene.member.project, "owner", "req-attach")
    conductor.attach(owner, str(uuid4()), scene.server.uuid, None)
    scene.settle()
    assert len(scene.attached) == 1


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


def test_an_allocation_that_others_change_is_read_again(scene: Scene) -> None:
    scene.attach()
    provider, uuid = scene.rack.provider(), scene.server.uuid
    providers = {provider: scene.rack.resource_class}
    meddled = Meddled(scene.placement.adapter())
    allocation = InstanceAllocation(db=scene.database, placement=meddled)
    found = meddled.consumer(uuid)
    assert found is not None
    current = Allocations(scene.placement.adapter()).consumer(uuid)
    assert current is not None
    less = {**current.allocations, provider: {scene.rack.resource_class: 1}}
    meddled.set_consumer(uuid, replace(current, allocations=less))
    meddled.times = 2
    allocation.grow(uuid, providers)
    assert scene.allocated == {provider: 2}
    meddled.times = 1000
    more = {**current.allocations, provider: {scene.rack.resource_class: 3}}
    fresh = Allocations(scene.placement.adapter()).consumer(uuid)
    assert fresh is not None
    meddled.set_consumer(uuid, replace(fresh, allocations=more))
    with pytest.raises(exception.Unavailable, match="keeps changing"):
        allocation.shrink(uuid, providers)
    meddled.times = 1
    allocation.shrink(uuid, providers)
    assert scene.allocated == {provider: 2}
    # What Nova has removed does not come back.
    scene.placement.free(uuid)
    allocation.shrink(uuid, providers)
    with pytest.raises(exception.NotFound):
        allocation.grow(uuid, providers)
    assert scene.allocated == {}

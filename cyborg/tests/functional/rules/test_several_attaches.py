# SPDX-License-Identifier: Apache-2.0
"""Attach and detach: of two instances, two ARQs and two providers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.clients.nova import Nova, Server
from cyborg.clients.placement import Allocations, Consumer
from cyborg.conductor.operations.attach import Attacher
from cyborg.conductor.operations.attach_tasks import AttachWork, InstanceAllocation
from cyborg.conductor.operations.operations import Operations
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import operations
from cyborg.db.models import Arq, AttachHandle, Deployable, Instance, Work
from cyborg.model.arq import State
from cyborg.model.operation import OperationState
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.functional.races.arena import NOVA, sound
from cyborg.tests.functional.rules.pair import DOWN_AFTER, FIRST, Pair

A, B = (provider_of(FIRST, index) for index in range(2))
ONE, TWO = {"resources:FPGA": "1"}, {"resources:FPGA": "2"}


@dataclass
class Peers:
    """Nova and Placement: the servers, what is allocated to them, and the possible placements."""

    servers: dict[str, Server] = field(default_factory=dict)
    allocations: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    placements: list[Mapping[int, str]] = field(default_factory=list)

    def server(self, uuid: str) -> Server | None:
        return self.servers.get(uuid)

    def reboot(self, uuid: str) -> bool:
        return True

    def find_by_name(self, name: str) -> Any:
        return SimpleNamespace(uuid=name)

    def candidates(self, root: str, groups: Sequence[Any]) -> list[Mapping[int, str]]:
        return self.placements

    def consumer(self, instance: str) -> Consumer:
        return Consumer(1, "project", "nova", self.allocations[instance])

    def set_consumer(self, instance: str, consumer: Consumer) -> None:
        self.allocations[instance] = consumer.allocations


@dataclass
class Site:
    """A host with two devices of three units each, and servers that are off."""

    pair: Pair
    peers: Peers = field(default_factory=Peers)

    @property
    def attacher(self) -> Attacher:
        return Attacher(
            db=self.pair.db,
            nova=cast(Nova, self.peers),
            placement=cast(Allocations, self.peers),
            operations=Operations(db=self.pair.db, wake=lambda: None, down_after=DOWN_AFTER),
            agents=self.pair.agent_client,
            bind_timeout=60_000,
            down_after=DOWN_AFTER,
        )

    def server(self, flavor: str) -> str:
        """A server with one unit of the first device, as its flavor says; its uuid."""
        _, uuid = self.pair.boot(A)
        extra_specs = {"accel:device_profile": flavor}
        server = Server(uuid, str(NOVA.project_id), "SHUTOFF", None, FIRST, extra_specs)
        self.peers.servers[uuid] = server
        self.peers.allocations[uuid] = {A: {RESOURCE_CLASS: 1}}
        return uuid

    def attach(self, instance: str, profile: str, *placements: Mapping[int, str]) -> str:
        """Begin to attach a profile in one of these placements; the operation."""
        self.peers.placements = list(placements)
        return self.attacher.attach(NOVA, str(uuid4()), instance, profile).uuid

    def detach(self, instance: str) -> str:
        return self.attacher.detach(NOVA, str(uuid4()), instance, None).uuid

    def run(self) -> None:
        """Do the work of attach and detach."""
        queue = WorkQueue(db=self.pair.db)
        allocation = InstanceAllocation(db=self.pair.db, placement=cast(Allocations, self.peers))
        handler = AttachWork(
            queue=queue, nova=cast(Nova, self.peers), allocation=allocation, wake=lambda: None
        )
        for row in self.pair.claim(WorkKind.ATTACH, WorkKind.DETACH):
            handler.run([row])

    def operation(self, uuid: str) -> Any:
        with self.pair.db.reader() as tx:
            return operations.show(tx, uuid, EVERYWHERE)

    def arqs_of(self, instance: str) -> list[Any]:
        return self.pair.rows(Arq, Arq.instance_uuid == instance)


@pytest.fixture
def site(pair: Pair) -> Site:
    pair.report(FIRST, report_of(FIRST, 2, handles=3))
    return Site(pair)


def test_attach_takes_all_units_of_a_placement_whose_devices_are_all_in_service(
    site: Site,
) -> None:
    """Placement still offers a device that has just been taken out of service."""
    profile = site.pair.profile(ONE, TWO)
    instance = site.server(profile)
    site.pair.change(Deployable, Deployable.rp_uuid == B, lost_ms=1)
    with pytest.raises(exception.CannotAttach, match="no free accelerators"):
        site.attach(instance, profile, {0: A, 1: B})
    site.pair.change(Deployable, Deployable.rp_uuid == B, lost_ms=None)
    site.pair.change(Deployable, Deployable.rp_uuid == A, lost_ms=1)
    site.attach(instance, profile, {0: A, 1: B}, {0: B, 1: B})
    attached = [arq.device_rp_uuid for arq in site.arqs_of(instance) if arq.origin]
    assert attached == [B, B, B]


def test_attach_and_detach_change_the_allocation_of_each_provider(site: Site) -> None:
    """The units of the flavor stay, and those of another server are its own."""
    profile = site.pair.profile(ONE, ONE)
    instance, other = site.server(profile), site.server(profile)
    operation = site.attach(instance, profile, {0: A, 1: B})
    site.run()
    assert site.operation(operation).state is OperationState.SUCCEEDED
    assert site.peers.allocations == {
        instance: {A: {RESOURCE_CLASS: 2}, B: {RESOURCE_CLASS: 1}},
        other: {A: {RESOURCE_CLASS: 1}},
    }
    operation = site.detach(instance)
    site.run()
    assert site.operation(operation).state is OperationState.SUCCEEDED
    assert site.peers.allocations == {
        instance: {A: {RESOURCE_CLASS: 1}},
        other: {A: {RESOURCE_CLASS: 1}},
    }
    (of_flavor,) = site.arqs_of(instance)
    assert (of_flavor.origin, of_flavor.state) == (None, State.BOUND)
    assert all(row.bound for row in instances(site))
    sound(site.pair.db)


def instances(site: Site) -> list[Any]:
    with site.pair.db.reader() as tx:
        return list(tx.execute(Instance.__table__.select()))


def test_attach_of_one_instance_does_not_hold_up_another(site: Site) -> None:
    profile = site.pair.profile(ONE)
    first, second = site.server(profile), site.server(profile)
    site.attach(first, profile, {0: B})
    site.attach(second, profile, {0: B})
    with pytest.raises(exception.CannotAttach, match="is in progress"):
        site.attach(first, profile, {0: B})
    assert len(site.pair.rows(Work, Work.kind == WorkKind.ATTACH.value)) == 2


def test_attach_types_of_another_instance_are_not_mixed_in(site: Site) -> None:
    profile = site.pair.profile(ONE)
    other, instance = site.server(profile), site.server(profile)
    mine = site.pair.row(Arq, Arq.instance_uuid == instance).attach_handle_id
    of_b = [unit.id for unit in site.pair.units(f"{FIRST}_1")]
    site.pair.change(AttachHandle, AttachHandle.id.in_([mine, *of_b]), attach_type="MDEV")
    site.attach(instance, profile, {0: B})
    with pytest.raises(exception.CannotAttach, match="must not be mixed"):
        site.attach(other, profile, {0: B})


def test_attach_is_rolled_back_when_one_of_its_preparations_fails(site: Site) -> None:
    """The instance keeps what it had; the reasons of all ARQs are told."""
    site.pair.change(Deployable, Deployable.rp_uuid == B, prepare=True)
    profile = site.pair.profile(ONE, ONE, ONE)
    instance = site.server(profile)
    operation = site.attach(instance, profile, {0: B, 1: B, 2: B})
    failing = [arq.uuid for arq in site.arqs_of(instance) if arq.origin][1:]
    for number, arq in enumerate(failing):
        fault = {"fault": f"fault {number}"}
        site.pair.agents.answers[site.pair.handle(arq).handle_key] = fault
    site.pair.do(WorkKind.PREPARE)
    site.run()
    ended = site.operation(operation)
    assert ended.state is OperationState.FAILED
    assert "fault 0: fault 1" in str(ended.results[0].error)
    assert [arq.origin for arq in site.arqs_of(instance)] == [None]
    assert site.peers.allocations[instance] == {A: {RESOURCE_CLASS: 1}}
    assert all(row.bound for row in instances(site))

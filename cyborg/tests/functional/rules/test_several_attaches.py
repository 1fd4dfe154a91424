# SPDX-License-Identifier: Apache-2.0
"""Attach and detach: of two instances, two ARQs and two providers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Nova, Server
from cyborg.clients.placement import Allocations, Consumer
from cyborg.db.models import Arq, AttachHandle, Deployable, Instance, Work
from cyborg.model.arq import State
from cyborg.model.operation import OperationState
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import Attach, Detach
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.races.arena import sound
from cyborg.tests.functional.rules.pair import FIRST

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


@pytest.fixture
def peers(pair: UseCases) -> Peers:
    """A host with two devices of three units each, and servers that are off."""
    pair.report(FIRST, report_of(FIRST, 2, handles=3))
    made = Peers()
    nova, placement = cast(Nova, made), cast(Allocations, made)
    pair.ctx = replace(changed(pair.ctx, bind_timeout=60.0), nova=nova, placement=placement)
    return made


def server(pair: UseCases, peers: Peers, flavor: str) -> str:
    """A server with one unit of the first device, as its flavor says; its uuid."""
    _, uuid = pair.boot(A)
    extra_specs = {"accel:device_profile": flavor}
    peers.servers[uuid] = Server(uuid, str(NOVA.project_id), "SHUTOFF", None, FIRST, extra_specs)
    peers.allocations[uuid] = {A: {RESOURCE_CLASS: 1}}
    return uuid


def attach(pair: UseCases, instance: str, profile: str) -> str:
    """Begin to attach a profile; the operation."""
    return pair.ask(Attach(NOVA, str(uuid4()), instance, profile)).uuid


def run(pair: UseCases) -> None:
    """Do the work of attach and detach."""
    pair.do(WorkKind.ATTACH, WorkKind.DETACH)


def arqs_of(pair: UseCases, instance: str) -> list[Any]:
    return pair.rows(Arq, Arq.instance_uuid == instance)


def test_attach_takes_all_units_of_a_placement_whose_devices_are_all_in_service(
    pair: UseCases, peers: Peers
) -> None:
    """Placement still offers a device that has just been taken out of service."""
    profile = pair.profile(ONE, TWO)
    instance = server(pair, peers, profile)
    pair.change(Deployable, Deployable.rp_uuid == B, lost_ms=1)
    peers.placements = [{0: A, 1: B}]
    with pytest.raises(exception.CannotAttach, match="no free accelerators"):
        attach(pair, instance, profile)
    pair.change(Deployable, Deployable.rp_uuid == B, lost_ms=None)
    pair.change(Deployable, Deployable.rp_uuid == A, lost_ms=1)
    peers.placements = [{0: A, 1: B}, {0: B, 1: B}]
    attach(pair, instance, profile)
    attached = [arq.device_rp_uuid for arq in arqs_of(pair, instance) if arq.origin]
    assert attached == [B, B, B]


def test_attach_and_detach_change_the_allocation_of_each_provider(
    pair: UseCases, peers: Peers
) -> None:
    """The units of the flavor stay, and those of another server are its own."""
    profile = pair.profile(ONE, ONE)
    instance, other = server(pair, peers, profile), server(pair, peers, profile)
    peers.placements = [{0: A, 1: B}]
    operation = attach(pair, instance, profile)
    run(pair)
    assert pair.operation(operation).state is OperationState.SUCCEEDED
    assert peers.allocations == {
        instance: {A: {RESOURCE_CLASS: 2}, B: {RESOURCE_CLASS: 1}},
        other: {A: {RESOURCE_CLASS: 1}},
    }
    operation = pair.ask(Detach(NOVA, str(uuid4()), instance, None)).uuid
    run(pair)
    assert pair.operation(operation).state is OperationState.SUCCEEDED
    assert peers.allocations == {
        instance: {A: {RESOURCE_CLASS: 1}},
        other: {A: {RESOURCE_CLASS: 1}},
    }
    (of_flavor,) = arqs_of(pair, instance)
    assert (of_flavor.origin, of_flavor.state) == (None, State.BOUND)
    assert unbound(pair) == []
    sound(pair.db)


def unbound(pair: UseCases) -> list[str]:
    """The instances that no ARQ has."""
    held = sa.exists().where(Arq.instance_uuid == Instance.uuid)
    with pair.db.reader() as tx:
        return list(tx.execute(sa.select(Instance.uuid).where(~held)).scalars())


def test_attach_of_one_instance_does_not_hold_up_another(pair: UseCases, peers: Peers) -> None:
    profile = pair.profile(ONE)
    first, second = server(pair, peers, profile), server(pair, peers, profile)
    peers.placements = [{0: B}]
    attach(pair, first, profile)
    peers.placements = [{0: B}]
    attach(pair, second, profile)
    peers.placements = [{0: B}]
    with pytest.raises(exception.CannotAttach, match="is in progress"):
        attach(pair, first, profile)
    assert len(pair.rows(Work, Work.kind == WorkKind.ATTACH.value)) == 2


def test_attach_types_of_another_instance_are_not_mixed_in(pair: UseCases, peers: Peers) -> None:
    profile = pair.profile(ONE)
    other, instance = server(pair, peers, profile), server(pair, peers, profile)
    mine = pair.handle(pair.row(Arq, Arq.instance_uuid == instance).uuid).id
    of_b = [unit.id for unit in pair.units(f"{FIRST}_1")]
    pair.change(AttachHandle, AttachHandle.id.in_([mine, *of_b]), attach_type="MDEV")
    peers.placements = [{0: B}]
    attach(pair, instance, profile)
    peers.placements = [{0: B}]
    with pytest.raises(exception.CannotAttach, match="must not be mixed"):
        attach(pair, other, profile)


def test_attach_is_rolled_back_when_one_of_its_preparations_fails(
    pair: UseCases, peers: Peers
) -> None:
    """The instance keeps what it had; the reasons of all ARQs are told."""
    pair.change(Deployable, Deployable.rp_uuid == B, prepare=True)
    profile = pair.profile(ONE, ONE, ONE)
    instance = server(pair, peers, profile)
    peers.placements = [{0: B, 1: B, 2: B}]
    operation = attach(pair, instance, profile)
    failing = [arq.uuid for arq in arqs_of(pair, instance) if arq.origin][1:]
    for number, arq in enumerate(failing):
        fault = {"fault": f"fault {number}"}
        pair.agents.answers[pair.handle(arq).handle_key] = fault
    pair.do(WorkKind.PREPARE)
    run(pair)
    ended = pair.operation(operation)
    assert ended.state is OperationState.FAILED
    assert "fault 0: fault 1" in str(ended.results[0].error)
    assert [arq.origin for arq in arqs_of(pair, instance)] == [None]
    assert peers.allocations[instance] == {A: {RESOURCE_CLASS: 1}}
    assert unbound(pair) == []

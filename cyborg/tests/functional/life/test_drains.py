# SPDX-License-Identifier: Apache-2.0
"""Hosts and devices that are emptied: through HTTP, with the real Placement."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from cyborg.conductor.hosts import removal
from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.model.process import HostStatus
from cyborg.rpc.verbs import SetServiceStatus
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    create_many,
    delete_arqs,
    eventually_offered,
    eventually_published,
    of_instance,
)
from cyborg.tests.functional.races.arena import at_once, sound

Racks = Callable[..., RackedCompute]
Profiles = Callable[..., str]
DRAIN = {"status": "draining", "disabled_reason": "its power supply is replaced"}
RESUME = {"status": "enabled"}
CALLER = Caller("project", "user", "req-drain", all_projects=True)


def service_of(operator: Client, host: RackedCompute) -> str:
    """The path of the agent of a host."""
    (agent,) = operator.get("/services", kind="process", host=host.compute)["services"]
    return f"/services/{agent['uuid']}"


def device_of(operator: Client, host: RackedCompute, address: str = CARD) -> str:
    """The path of a card of a host."""
    (device,) = (
        device
        for device in operator.get("/devices", hostname=host.compute)["devices"]
        if device["address"] == address
    )
    return f"/devices/{device['uuid']}"


def drain_of(operator: Client, path: str) -> dict[str, Any]:
    """What a drain waits for."""
    drain: dict[str, Any] = operator.get(f"{path}/drain")["drain"]
    return drain


@pytest.fixture
def host(racked: Racks, operator: Client) -> RackedCompute:
    host = racked(cards={CARD: 2, OTHER: 2})
    eventually_published(operator)
    return host


def test_host_is_drained_and_resumed(
    host: RackedCompute,
    operator: Client,
    nova: Client,
    placement: PlacementService,
    profile: Profiles,
    *,
    resource_class: str,
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    arqs, late = create(nova, name), create(nova, name)
    instance = bind(nova, arqs, host.provider(), host=host.compute)
    path = service_of(operator, host)
    shown = operator.patch(path, DRAIN, status=200)
    assert (shown["status"], shown["disabled_reason"]) == ("draining", DRAIN["disabled_reason"])
    refused = nova.patch(
        ARQS, bind_body(late, host.compute, host.provider(OTHER), str(uuid4())), status=409
    )
    assert "it is out of service (host_draining)" in str(refused)
    for address in (CARD, OTHER):
        eventually_offered(placement, host.provider(address), 0)
    assert [arq["state"] for arq in of_instance(nova, instance)] == ["Bound"]
    drain = drain_of(operator, path)
    assert (drain["host"], drain["device"], drain["status"]) == (host.compute, None, "draining")
    (server,) = drain["servers"]
    assert (server["uuid"], server["project_id"]) == (instance, nova.project)
    assert (server["device_profiles"], server["arqs"]) == ([name], [arqs[0]["uuid"]])
    assert server["movable"] is False
    (usage,) = operator.get("/usage")["usage"]
    assert (usage["used"], usage["free"], usage["reasons"]) == (1, 0, {"host_draining": 3})
    explanation = operator.get(f"/device_profiles/{name}/explain")["explanation"]
    assert "cyborg host-resume offers them again" in explanation["summary"]
    device = operator.get(device_of(operator, host))
    assert device["units"]["reasons"] == {"host_draining": 1}
    assert device["status"] == "enabled"

    delete_arqs(nova, instance)
    assert operator.get(path)["status"] == "drained"
    assert drain_of(operator, path)["servers"] == []
    assert offered(placement, host.provider()) == 0
    shown = operator.patch(path, RESUME, status=200)
    assert (shown["status"], shown["disabled_reason"]) == ("enabled", None)
    for address in (CARD, OTHER):
        eventually_offered(placement, host.provider(address), 2)
    bind(nova, late, host.provider(OTHER), host=host.compute)
    history = operator.get("/events", host=host.compute)["events"]
    told = [event for event in history if event["noun"] == "service"]
    assert [event["action"] for event in reversed(told)][-2:] == ["draining", "enabled"]
    assert told[1]["reason"] == DRAIN["disabled_reason"]
    assert told[1]["project_id"] == operator.project


def test_device_is_drained_and_resumed(
    host: RackedCompute,
    operator: Client,
    nova: Client,
    placement: PlacementService,
    profile: Profiles,
    *,
    resource_class: str,
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    arqs, late = create(nova, name), create(nova, name)
    instance = bind(nova, arqs, host.provider(), host=host.compute)
    path = device_of(operator, host)
    change = {"status": "draining", "status_reason": "its fan is noisy"}
    shown = operator.patch(path, change, status=200)
    assert (shown["status"], shown["status_reason"]) == ("draining", "its fan is noisy")
    assert (shown["units"]["used"], shown["units"]["free"]) == (1, 0)
    assert shown["units"]["reasons"] == {"draining": 1}
    assert replace(operator, version="2.3").get(path)["status"] == "maintaining"
    eventually_offered(placement, host.provider(), 0)
    assert offered(placement, host.provider(OTHER)) == 2
    refused = nova.patch(
        ARQS, bind_body(late, host.compute, host.provider(), str(uuid4())), status=409
    )
    assert "it is out of service (draining)" in str(refused)
    (server,) = drain_of(operator, path)["servers"]
    # The other card of the host has room.
    assert (server["uuid"], server["movable"], server["target"]) == (instance, True, host.compute)

    delete_arqs(nova, instance)
    assert operator.get(path)["status"] == "drained"
    listed = operator.get("/devices?status=drained")["devices"]
    assert [f"/devices/{device['uuid']}" for device in listed] == [path]
    assert operator.get("/devices?status=draining")["devices"] == []
    shown = operator.patch(path, {"status": "ready"}, status=200)
    assert (shown["status"], shown["status_reason"]) == ("enabled", None)
    eventually_offered(placement, host.provider(), 2)
    bind(nova, late, host.provider(), host=host.compute)


def test_servers_that_cannot_move_are_named_before_a_drain(
    racked: Racks, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    host, other = racked(cards={CARD: 4}), racked(cards={CARD: 2, OTHER: 1})
    eventually_published(operator)
    pair = {f"resources:{resource_class}": "2"}
    single = {f"resources:{resource_class}": "1"}
    large = bind(nova, create(nova, profile(pair)), host.provider(), host=host.compute)
    small = [
        bind(nova, create(nova, profile(single)), host.provider(), host=host.compute)
        for _ in range(2)
    ]
    path = service_of(operator, host)
    drain = drain_of(operator, path)
    assert (drain["status"], drain["reason"]) == ("enabled", None)
    assert any("Nova's filters" in note for note in drain["notes"])
    servers = {server["uuid"]: server for server in drain["servers"]}
    assert (servers[large]["movable"], servers[large]["target"]) == (True, other.compute)
    moves = sorted(servers[uuid]["movable"] for uuid in small)
    assert moves == [False, True]
    (blocked,) = (servers[uuid] for uuid in small if not servers[uuid]["movable"])
    assert blocked["reason"] == (
        f"Other servers of this drain need the free units of {other.compute}: move this one "
        "instead of them, or free more units there."
    )
    bind(nova, create(nova, profile(single)), other.provider(), host=other.compute)
    servers = {server["uuid"]: server for server in drain_of(operator, path)["servers"]}
    assert servers[large]["movable"] is False
    assert servers[large]["reason"].startswith("No other host has room for it. 1 of ")
    assert f"host {other.compute} are in use" in servers[large]["reason"]
    assert {servers[uuid]["target"] for uuid in small} == {other.compute}
    # The request has changed nothing.
    assert operator.get(path)["status"] == "enabled"


def test_request_for_a_drain_is_checked(
    host: RackedCompute, operator: Client, nova: Client
) -> None:
    path, device = service_of(operator, host), device_of(operator, host)
    member = replace(nova, service=False, version="2.100")
    for each in (path, device):
        member.get(f"{each}/drain", status=403)
    member.patch(path, DRAIN, status=403)
    assert member.answer("PATCH", device, {"status": "draining"}) in (403, 404)
    refused = operator.patch(path, {"status": "drained"}, status=400)
    assert "status" in str(refused)
    operator.patch(device, {"status": "drained"}, status=400)
    refused = operator.patch(path, {"status": "enabled", "disabled_reason": "fan"}, status=400)
    assert "disabled or draining" in str(refused)
    refused = operator.patch(device, {"status": "ready", "status_reason": "fan"}, status=400)
    assert "maintaining or draining" in str(refused)
    for noun in ("services", "devices"):
        operator.get(f"/{noun}/{uuid4()}/drain", status=404)
    replace(operator, version="2.3").get(f"{device}/drain", status=404)
    (conductor, *_) = (
        process
        for process in operator.get("/services", kind="process")["services"]
        if process["binary"] == "cyborg-conductor"
    )
    operator.get(f"/services/{conductor['uuid']}/drain", status=409)
    operator.patch(f"/services/{conductor['uuid']}", DRAIN, status=409)


def test_nothing_is_bound_after_a_drain_was_answered(
    racked: Racks,
    operator: Client,
    nova: Client,
    database: Database,
    profile: Profiles,
    *,
    resource_class: str,
) -> None:
    """32 clients bind while the host begins to drain, again and again."""
    host = racked(cards={CARD: 32})
    path = service_of(operator, host)
    for begin, resume in (
        (partial(operator.patch, path, DRAIN, 200), partial(operator.patch, path, RESUME, 200)),
        (
            partial(operator.patch, device_of(operator, host), {"status": "draining"}, 200),
            partial(operator.patch, device_of(operator, host), {"status": "ready"}, 200),
        ),
    ):
        requests = create_many(nova, profile, resource_class, 32)
        servers = [str(uuid4()) for _ in requests]
        binds: list[Callable[[], Any]] = [
            partial(
                nova.answer,
                *("PATCH", ARQS, bind_body(arqs, host.compute, host.provider(), server)),
            )
            for arqs, server in zip(requests, servers, strict=True)
        ]
        verbs: list[Callable[[], Any]] = [*binds[:16], begin, *binds[16:]]
        answers = at_once(verbs)
        statuses = [answer for answer in answers if isinstance(answer, int)]
        assert set(statuses) <= {202, 409}
        events = operator.get("/events", host=host.compute, limit=1000)["events"]
        drained = max(event["id"] for event in events if event["action"] == "draining")
        bound = [event["id"] for event in events if event["action"] == "Bound"]
        assert max(bound, default=0) < drained
        held = {arq["instance_uuid"] for arq in nova.get(ARQS)["arqs"]} & set(servers)
        assert len(held) == statuses.count(202)
        sound(database)
        for server in held:
            delete_arqs(nova, server)
        resume()


def test_drain_is_published_if_its_conductor_dies_after_the_commit(
    host: RackedCompute, operator: Client, placement: PlacementService, database: Database
) -> None:
    """The context has nobody to tell an agent; the next heartbeat of the agent finds the change."""
    uuid = service_of(operator, host).rpartition("/")[2]
    command = SetServiceStatus(CALLER, str(uuid4()), uuid, HostStatus.DRAINING, reason=None)
    removal.set_status(context(database), command)
    # Another conductor gets the request again, and changes nothing.
    removal.set_status(context(database), command)
    for address in (CARD, OTHER):
        eventually_offered(placement, host.provider(address), 0)
    events = operator.get("/events", host=host.compute)["events"]
    assert [event["action"] for event in events].count("draining") == 1


def test_drain_outlasts_agents_and_counts_for_new_devices(
    racked: Racks, operator: Client, placement: PlacementService, database: Database
) -> None:
    host = racked()
    host.kill(database)
    path = service_of(operator, host)
    assert operator.patch(path, DRAIN, status=200)["status"] == "drained"
    host.plug(OTHER, 3)
    host.start()
    eventually_offered(placement, host.provider(), 0)
    eventually_published(operator)
    shown = operator.get(device_of(operator, host, OTHER))
    assert shown["units"]["reasons"] == {"host_draining": 3}
    assert offered(placement, host.provider(OTHER)) == 0
    operator.patch(path, RESUME, status=200)
    eventually_offered(placement, host.provider(OTHER), 3)

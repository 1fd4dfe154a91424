# SPDX-License-Identifier: Apache-2.0
"""Discoveries on demand, and services: who there is, out of service and back, and gone for good."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import history, services
from cyborg.db.engine import Database
from cyborg.db.models import Device, Hardware, Host, Operation, OperationResult, Work
from cyborg.db.services import Process, ProcessStatus
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import ApiHeartbeat
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import Meeting, eventually, joined
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    ended,
    eventually_offered,
    hasten,
    of_instance,
    orphan,
)

DISCOVER = "/services/discover"
Racks = Callable[..., RackedCompute]
OFF = {"status": "disabled", "disabled_reason": "its fan is noisy"}
ON = {"status": "enabled"}
DOWN_AFTER = {AGENT: 30_000, API: 30_000, CONDUCTOR: 10_000}


@pytest.fixture
def quiet(beside: Callable[..., Stack]) -> Stack:
    """A stack whose agents look at their hardware only when somebody asks them to."""
    return beside(agent_heartbeat=0.2, scan=3600)


@pytest.fixture
def host(racked: Callable[..., RackedCompute], quiet: Stack) -> RackedCompute:
    return racked(on=quiet)


def discover(operator: Client, **body: Any) -> dict[str, Any]:
    """Have hosts look now, and wait for the end of it."""
    return ended(operator, operator.post(DISCOVER, body, status=202))


def numbers(result: dict[str, Any]) -> dict[str, int]:
    """What the card driver of a host found."""
    (one,) = result["result"]["drivers"]
    assert one["name"] == "card_driver"
    return {key: one[key] for key in ("found", "added", "changed", "lost", "failed")}


def test_discovery_reports_changes(operator: Client, admin: Client, host: RackedCompute) -> None:
    host.plug(OTHER, 3)
    over = discover(operator)
    assert (over["state"], over["verb"], over["error"]) == ("succeeded", "discover", None)
    (result,) = over["results"]
    assert (result["host"], result["state"]) == (host.compute, "succeeded")
    assert numbers(result) == {"found": 2, "added": 1, "changed": 0, "lost": 0, "failed": 0}
    assert [one["name"] for one in over["steps"]] == ["begun", "succeeded"]
    assert over["created_at"] <= over["finished_at"]
    assert len(admin.get("/devices")["devices"]) == 2

    host.plug(CARD, 1)
    host.pull(OTHER)
    (result,) = discover(operator, hosts=[host.compute], driver="card_driver")["results"]
    assert numbers(result) == {"found": 1, "added": 0, "changed": 1, "lost": 1, "failed": 0}
    (result,) = discover(operator)["results"]
    assert numbers(result) == {"found": 1, "added": 0, "changed": 0, "lost": 0, "failed": 0}


def test_discovery_fails_or_waits_when_agent_is_down(
    operator: Client, host: RackedCompute, database: Database
) -> None:
    host.kill(database)
    refused = operator.post(DISCOVER, {"hosts": [host.compute]}, status=503)
    assert host.compute in refused["error_message"]
    operator.post(DISCOVER, {}, status=409)
    assert operator.get("/operations")["operations"] == []

    begun = operator.post(f"{DISCOVER}?wait=true", {"hosts": [host.compute]}, status=202)
    path = f"/operations/{begun['uuid']}"
    eventually(lambda: operator.get(path)["results"][0]["state"] == "waiting")
    assert operator.get(path)["results"][0]["error"] == "its agent is down"
    # Whoever was at it has died; another conductor goes on when its lease is over.
    orphan(database)
    host.plug(OTHER, 1)
    host.start()
    over = ended(operator, begun)
    assert (over["state"], over["results"][0]["error"]) == ("succeeded", None)
    assert numbers(over["results"][0])["found"] == 2


def test_finished_operation_is_kept_for_its_retention(
    operator: Client, host: RackedCompute, database: Database
) -> None:
    over = discover(operator)
    with database.reader() as tx:
        ended_ms = int(tx.execute(sa.select(Operation.finished_ms)).scalar_one() or 0)
    assert history.purge(database, ended_ms)[history.Table.OPERATIONS] == 0
    assert operator.get("/operations")["operations"] == [over]
    assert history.purge(database, ended_ms + 1)[history.Table.OPERATIONS] == 1
    assert operator.get("/operations")["operations"] == []
    with database.reader() as tx:
        assert tx.execute(sa.select(OperationResult.id)).all() == []


def agent_of(operator: Client, host: str) -> dict[str, Any]:
    """The row of a host's agent, as operators see it."""
    listed = operator.get("/services", kind="process", host=host)["services"]
    found: dict[str, Any] = listed[0]
    return found


def forget(operator: Client, path: str) -> dict[str, Any]:
    """Begin to forget what this service is about."""
    begun: dict[str, Any] = operator.delete(path, status=202)
    assert (begun["verb"], len(begun["results"])) == ("forget", 1)
    return begun


def reason(operator: Client, begun: dict[str, Any]) -> str | None:
    """What the only host of an operation waits for, or why it failed."""
    (result,) = operator.get(f"/operations/{begun['uuid']}")["results"]
    told: str | None = result["error"]
    return told


def rows(database: Database, model: Any) -> int:
    with database.reader() as tx:
        return int(tx.execute(sa.select(sa.func.count()).select_from(model)).scalar_one())


def test_disabled_host_keeps_its_binds_and_is_enabled_again(
    racked: Racks,
    operator: Client,
    nova: Client,
    placement: PlacementService,
    profile: Callable[..., str],
    *,
    resource_class: str,
) -> None:
    host = racked()
    one, two = create(nova, profile({f"resources:{resource_class}": "2"}))
    instance = bind(nova, [one], host.provider(), host=host.compute)
    path = f"/services/{agent_of(operator, host.compute)['uuid']}"
    shown = operator.patch(path, OFF, status=200)
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "its fan is noisy")
    eventually_offered(placement, host.provider(), 0)
    bind(nova, [two], host.provider(), host=host.compute, status=409)
    assert [arq["state"] for arq in of_instance(nova, instance)] == ["Bound"]
    (usage,) = operator.get("/usage")["usage"]
    assert (usage["used"], usage["free"], usage["reasons"]) == (1, 0, {"host_disabled": 1})
    shown = operator.patch(path, ON, status=200)
    assert (shown["status"], shown["disabled_reason"]) == ("enabled", None)
    eventually_offered(placement, host.provider(), 2)
    bind(nova, [two], host.provider(), host=host.compute)


def test_down_host_is_removed(
    racked: Racks,
    operator: Client,
    nova: Client,
    placement: PlacementService,
    database: Database,
    profile: Callable[..., str],
    *,
    resource_class: str,
) -> None:
    host = racked()
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    instance = bind(nova, arqs, host.provider(), host=host.compute)
    host.kill(database)
    delete_arqs(nova, instance)
    path = f"/services/{agent_of(operator, host.compute)['uuid']}"
    asking = replace(operator, key=str(uuid4()))
    begun = forget(asking, path)
    assert begun["uuid"] == asking.key
    over = ended(operator, begun)
    assert (over["state"], over["error"]) == ("succeeded", None)
    (result,) = over["results"]
    assert (result["host"], result["result"]) == (host.compute, {"devices": 1})
    assert [one["name"] for one in over["steps"]] == ["begun", "unpublished", "succeeded"]
    assert operator.answer("GET", path) == 404
    assert [rows(database, model) for model in (Device, Hardware, Host)] == [0, 0, 0]
    assert placement.call("GET", f"/resource_providers?uuid={host.provider()}") == {
        "resource_providers": []
    }
    assert asking.delete(path, status=202) == over
    operator.delete(path, status=404)


def test_operations_of_a_removed_host_end(
    racked: Racks, operator: Client, database: Database
) -> None:
    host = racked()
    host.kill(database)
    body = {"hosts": [host.compute]}
    begun = operator.post("/services/discover?wait=true", body, status=202)
    path = f"/operations/{begun['uuid']}"
    eventually(lambda: operator.get(path)["results"][0]["state"] == "waiting")
    over = ended(operator, forget(operator, path_of(operator, host)))
    assert over["state"] == "succeeded"
    assert operator.get(path)["state"] == "failed"
    (result,) = operator.get(path)["results"]
    assert (result["state"], result["error"]) == ("failed", "the host was removed")
    assert rows(database, Host) == rows(database, Work) == 0


def test_removal_waits_for_allocations(
    racked: Racks, operator: Client, placement: PlacementService, database: Database
) -> None:
    host = racked()
    consumer = str(uuid4())
    allocate(placement, host, consumer)
    host.kill(database)
    path = path_of(operator, host)
    begun = forget(operator, path)
    # Another order does not begin it twice: it says where to look.
    assert begun["uuid"] in operator.delete(path, status=409)["error_message"]
    eventually(lambda: "in use" in str(reason(operator, begun)))
    assert operator.get(f"/operations/{begun['uuid']}")["state"] == "running"
    assert rows(database, Device) == 1
    placement.call("DELETE", f"/allocations/{consumer}")
    # Another conductor goes on with it.
    orphan(database)
    assert ended(operator, begun)["results"][0]["error"] is None
    assert operator.answer("GET", path) == 404
    assert [rows(database, model) for model in (Device, Host, Work)] == [0, 0, 0]


def test_removal_fails_when_agent_returns(
    racked: Racks, operator: Client, placement: PlacementService, database: Database
) -> None:
    host = racked()
    consumer = str(uuid4())
    allocate(placement, host, consumer)
    host.kill(database)
    begun = forget(operator, path_of(operator, host))
    eventually(lambda: reason(operator, begun) is not None)
    host.start()
    eventually(lambda: agent_of(operator, host.compute)["state"] == "up")
    hasten(database)
    over = ended(operator, begun)
    assert over["state"] == "failed"
    assert "its agent has come back" in over["results"][0]["error"]
    eventually(lambda: agent_of(operator, host.compute)["status"] == "enabled")
    assert rows(database, Device) == 1
    eventually_offered(placement, host.provider(), 2)


def test_role_decides_who_changes_services(app: Any) -> None:
    roles = {"admin": 404, "operator": 404, "manager": 403, "member": 403, "reader": 403}
    for role, status in roles.items():
        client = Client(app, role=role, version="2.100")
        assert client.answer("PATCH", f"/services/{uuid4()}", OFF) == status
        assert client.answer("DELETE", f"/services/{uuid4()}") == status
        assert replace(client, version="2.3").answer("DELETE", f"/services/{uuid4()}") == 404


def path_of(operator: Client, host: RackedCompute) -> str:
    """Where the agent of a host is."""
    return f"/services/{agent_of(operator, host.compute)['uuid']}"


def allocate(placement: PlacementService, host: RackedCompute, consumer: str) -> None:
    """Somebody whom no ARQ speaks for has a unit of the host's card in Placement."""
    (resource,) = placement.call("GET", f"/resource_providers/{host.provider()}/inventories")[
        "inventories"
    ]
    body = {
        "allocations": {host.provider(): {"resources": {resource: 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
    }
    placement.call("PUT", f"/allocations/{consumer}", body)
    assert offered(placement, host.provider()) == 2


def of(db: Database, binary: str, api_host: str | None = None) -> list[ProcessStatus]:
    """The processes of a binary, on all hosts or on one, as they are seen now."""
    with db.reader() as tx:
        seen = services.statuses(tx, DOWN_AFTER)
    return [
        one for one in seen if one.process.binary == binary and api_host in (None, one.process.host)
    ]


@pytest.fixture
def api_host() -> str:
    return f"api-{uuid4().hex[:12]}"


def test_every_process_has_a_complete_service_row(
    conductor: ConductorClient,
    compute: Callable[..., ComputeHost],
    database: Database,
    api_host: str,
) -> None:
    on = compute().compute
    conductor.request(ApiHeartbeat(api_host, version="18.0.0", endpoint="http://api.test"))
    (agent,), (api,) = of(database, AGENT, on), of(database, API, api_host)
    # Those that other tests have killed are down.
    first = next(one for one in of(database, CONDUCTOR) if one.up)
    assert (agent.process.version, agent.process.endpoint) == ("0", f"cyborg-agent@{on}")
    assert api.process == Process(api_host, API, "18.0.0", "http://api.test")
    assert first.process.version == "0"
    assert first.process.endpoint == f"cyborg-conductor@{first.process.host}"
    assert agent.up
    assert api.up
    assert min(one.epoch for one in (agent, api, first)) >= 1


def test_api_processes_share_the_row_of_their_host(
    conductor: ConductorClient, database: Database, api_host: str
) -> None:
    faults: list[Exception] = []
    together = Meeting(8)

    def worker() -> None:
        together.meet()
        try:
            for _ in range(3):
                conductor.request(ApiHeartbeat(api_host, version="1", endpoint="somewhere"))
        except Exception as fault:  # noqa: BLE001 - the test tells it
            faults.append(fault)

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    joined(*threads)
    assert faults == []
    (row,) = of(database, API, api_host)
    assert row.up
    conductor.request(ApiHeartbeat(api_host, version="2", endpoint="elsewhere"))
    assert [one.process for one in of(database, API, api_host)] == [
        Process(api_host, API, "2", "elsewhere")
    ]

# SPDX-License-Identifier: Apache-2.0
"""Hosts out of service and back, and hosts that are gone for good."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Device, Hardware, Host, Work
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    ended,
    eventually,
    eventually_offered,
    hasten,
    of_instance,
    orphan,
)

Racks = Callable[..., RackedCompute]
OFF = {"status": "disabled", "disabled_reason": "its fan is noisy"}
ON = {"status": "enabled"}


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
    (free, held) = operator.get("/usage")["usage"]
    assert (free["offered"], free["reserved"], held["bound"]) == (0, 1, 1)
    shown = operator.patch(path, ON, status=200)
    assert (shown["status"], shown["disabled_reason"]) == ("enabled", None)
    eventually_offered(placement, host.provider(), 2)
    bind(nova, [two], host.provider(), host=host.compute)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"status": "up"},
        {"status": None},
        {"status": "disabled", "disabled_reason": 7},
        {"status": "disabled", "disabled_reason": "x" * 256},
        {"status": "enabled", "disabled_reason": "why"},
        {"status": "disabled", "color": "red"},
    ],
)
def test_invalid_service_changes_are_refused(racked: Racks, operator: Client, body: Any) -> None:
    host = racked()
    agent = agent_of(operator, host.compute)
    operator.patch(f"/services/{agent['uuid']}", body, status=400)
    assert agent_of(operator, host.compute)["status"] == "enabled"


def test_host_that_is_up_or_in_use_is_not_removed(
    racked: Racks,
    operator: Client,
    nova: Client,
    database: Database,
    profile: Callable[..., str],
    *,
    resource_class: str,
) -> None:
    host = racked()
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    bind(nova, arqs, host.provider(), host=host.compute)
    path = f"/services/{agent_of(operator, host.compute)['uuid']}"
    assert "is up" in str(operator.delete(path, status=409))
    host.kill(database)
    assert arqs[0]["uuid"] in str(operator.delete(path, status=409))
    assert agent_of(operator, host.compute)["status"] == "enabled"
    assert rows(database, Device) == 1


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
    hasten(database)
    assert ended(operator, begun)["results"][0]["error"] is None
    assert operator.answer("GET", path) == 404


def test_removal_continues_on_another_conductor(
    racked: Racks, operator: Client, placement: PlacementService, database: Database
) -> None:
    host = racked()
    consumer = str(uuid4())
    allocate(placement, host, consumer)
    host.kill(database)
    begun = forget(operator, path_of(operator, host))
    eventually(lambda: reason(operator, begun) is not None)
    orphan(database)
    placement.call("DELETE", f"/allocations/{consumer}")
    assert ended(operator, begun)["state"] == "succeeded"
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


@pytest.mark.parametrize(
    ("role", "status"),
    [("admin", 404), ("operator", 404), ("manager", 403), ("member", 403), ("reader", 403)],
)
def test_role_decides_who_changes_services(app: Any, role: str, status: int) -> None:
    client = Client(app, role=role, version="2.4")
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

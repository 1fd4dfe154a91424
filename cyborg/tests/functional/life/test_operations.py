# SPDX-License-Identifier: Apache-2.0
"""Discovery on demand, from HTTP to the host and back, and what an operation survives."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import history
from cyborg.db.engine import Database
from cyborg.db.models import Operation, OperationResult
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ended, eventually, orphan

DISCOVER = "/services/discover"


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


def test_discovery_continues_after_a_failed_host(
    operator: Client, racked: Callable[..., RackedCompute], quiet: Stack
) -> None:
    good, bad = racked(on=quiet), racked(on=quiet)
    bad.driver.behaviour.broken = RuntimeError("no power")
    good.plug(OTHER, 1)
    over = discover(operator, hosts=[bad.compute, good.compute])
    results = {one["host"]: one for one in over["results"]}
    assert (over["state"], over["error"]) == ("failed", "1 of 2 host(s) failed")
    assert results[good.compute]["state"] == "succeeded"
    assert numbers(results[good.compute])["added"] == 1
    assert results[bad.compute]["state"] == "failed"
    assert "no power" in results[bad.compute]["error"]
    assert numbers(results[bad.compute])["lost"] == 0


def test_repeated_request_returns_the_same_operation(
    operator: Client, host: RackedCompute, database: Database
) -> None:
    asking = replace(operator, key=str(uuid4()))
    before = host.driver.scans
    begun = asking.post(DISCOVER, {}, status=202)
    assert begun["uuid"] == asking.key
    over = ended(operator, begun)
    assert asking.post(DISCOVER, {}, status=202) == over
    assert host.driver.scans == before + 1
    with database.writer() as tx:
        tx.execute(sa.update(Operation).values(verb="another"))
    asking.post(DISCOVER, {}, status=409)


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

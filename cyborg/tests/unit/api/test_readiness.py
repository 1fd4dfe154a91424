# SPDX-License-Identifier: Apache-2.0
"""What the API shows of the health of processes: the list of services, and the health check."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import schema, services
from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

REFUSED = "the message bus refuses the connection: 530 NOT_ALLOWED - vhost cyborg not found"
NEW = {"listening", "bus_error", "bus_error_since", "cause", "remedy"}
#: Milliseconds: longer than any limit of silence.
LONG = 600_000


def seen(db: Database, binary: str, host: str, *, error: str = "", ago: int = 0) -> None:
    """Write the row of a process whose last heartbeat is so many milliseconds old."""
    with db.writer() as tx:
        tx.execute(sa.delete(Service).where(Service.host == host))
        process = Process(host, binary, "18.0.0", f"{binary}@{host}")
        earlier = Transaction(tx.connection, db.now - ago)
        services.register(earlier, process, "READY", bus_error=error)


def listed(client: Client) -> dict[str, dict[str, Any]]:
    answer = client.send("GET", "/v2/services?kind=process", as_="operator", version="2.100")
    assert answer.status == 200
    return {service["host"]: service for service in answer.body["services"]}


def test_process_with_bus_error_is_shown(db: Database, client: Client) -> None:
    seen(db, CONDUCTOR, "control-1")
    seen(db, AGENT, "compute-1", error=REFUSED)
    seen(db, API, "api-1")
    shown = listed(client)
    assert [shown[host]["listening"] for host in ("control-1", "compute-1", "api-1")] == [
        True,
        False,
        None,
    ]
    agent = shown["compute-1"]
    assert agent["state"] == "up"
    assert agent["bus_error"] == REFUSED
    assert agent["bus_error_since"] is not None
    assert REFUSED in agent["cause"]
    assert "virtual host" in agent["remedy"]
    assert {shown["control-1"][name] for name in NEW - {"listening"}} == {None}
    uuid = agent["uuid"]
    service = client.send("GET", f"/v2/services/{uuid}", as_="operator", version="2.100")
    assert service.body == agent


def test_silent_agents_are_not_down_while_conductors_are_deaf(db: Database, client: Client) -> None:
    seen(db, CONDUCTOR, "control-1", error=REFUSED, ago=0)
    seen(db, AGENT, "compute-1", ago=LONG)
    with db.writer() as tx:
        tx.execute(
            sa.update(Service)
            .where(Service.binary == CONDUCTOR)
            .values(bus_error_ms=Service.last_seen_ms - LONG)
        )
    agent = listed(client)["compute-1"]
    assert (agent["state"], agent["listening"]) == ("down", None)
    assert f"the conductors receive nothing ({REFUSED})" in agent["cause"]
    assert "Start" not in agent["remedy"]
    seen(db, CONDUCTOR, "control-1")
    agent = listed(client)["compute-1"]
    assert "Start cyborg-agent on compute-1" in agent["remedy"]


@pytest.fixture
def detailed(make_client: Callable[..., Client], db: Database) -> Client:
    schema.stamp(db, "head")
    closed = "http://127.0.0.1:9"
    return make_client(
        "auth_url = http://127.0.0.1:9/v3\nusername = u\npassword = secret-4711\n"
        "[healthcheck]\ndetailed = true\n"
        f"[placement]\nauth_type = none\nendpoint = {closed}\n"
        f"[nova]\nauth_type = none\nendpoint = {closed}\n"
    )


def test_details_show_every_component_with_cause_and_remedy(
    detailed: Client, db: Database, conductor: RecordedConductor
) -> None:
    seen(db, CONDUCTOR, "control-1", error=REFUSED)
    conductor.up = False
    answer = detailed.send("GET", "/healthcheck", as_=None, headers={"Accept": "application/json"})
    assert answer.status == 503
    assert answer.body["detailed"] is True
    components = {component["name"]: component for component in answer.body["components"]}
    assert {name: component["state"] for name, component in components.items()} == {
        "Database": "up",
        "Keystone": "down",
        "Placement": "down",
        "Nova": "down",
        "Message bus": "down",
        "cyborg-conductor on control-1": "not receiving",
    }
    assert REFUSED in components["Message bus"]["cause"]
    assert "[keystone_authtoken]" in components["Keystone"]["cause"]
    assert "127.0.0.1:9" in components["Placement"]["cause"]
    assert all(
        component["remedy"] for component in components.values() if component["level"] != "ok"
    )
    assert b"secret-4711" not in answer.raw
    text = detailed.send("GET", "/healthcheck", as_=None)
    assert f"Message bus is down. {components['Message bus']['cause']}".encode() in text.raw


def test_answer_without_details_names_no_host_and_no_reason(
    client: Client, db: Database, conductor: RecordedConductor
) -> None:
    seen(db, CONDUCTOR, "control-1", error=REFUSED)
    conductor.up = False
    answer = client.send("GET", "/healthcheck", as_=None, headers={"Accept": "application/json"})
    assert answer.body == {
        "detailed": False,
        "reasons": ["The database answers.", "No conductor answers yet."],
    }

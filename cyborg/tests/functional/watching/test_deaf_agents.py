# SPDX-License-Identifier: Apache-2.0
"""Agents that send heartbeats and receive no requests: operations say so and end."""

from dataclasses import dataclass, replace

import pytest
import sqlalchemy as sa

from cyborg.db.models import Service
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import AGENT_TOPIC
from cyborg.rpc.verbs import Heartbeat, SendReport
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.watching.conftest import Watched, administrator, soon

REASON = "the message bus at 192.0.2.1:5672 refuses a request: 403 ACCESS_REFUSED"


@dataclass
class DeafAgent:
    """An agent without an RPC server."""

    host: str
    client: ConductorClient
    epoch: int | None = None

    def beat(self, bus_error: str = "") -> None:
        """Send a heartbeat."""
        endpoint = f"{AGENT_TOPIC}@{self.host}"
        heartbeat = AgentHeartbeat(
            self.host, (self.host,), "0", endpoint, self.epoch, bus_error=bus_error
        )
        self.epoch = self.client.request(Heartbeat(heartbeat)).epoch


@pytest.fixture
def agent(watched: Watched) -> DeafAgent:
    watched.stack.times = replace(watched.stack.times, agent=0.5)
    watched.stack.start_conductor()
    host = fresh_host("deaf")
    made = DeafAgent(host, watched.stack.conductor_client(f"{AGENT_TOPIC}@{host}"))
    made.beat()
    assert made.epoch is not None
    made.client.request(SendReport(host, made.epoch, report_of(host, 1)))
    return made


@pytest.fixture
def operator(watched: Watched) -> Client:
    return Client(administrator(watched).app, role="operator", version="2.100")


def discover(operator: Client, agent: DeafAgent, bus_error: str = "") -> dict[str, object]:
    """Ask for a discovery, and send heartbeats to its end; returns the result of the host."""
    begun = operator.post("/services/discover", {"hosts": [agent.host]}, status=202)

    def over() -> bool:
        agent.beat(bus_error)
        return bool(operator.get(f"/operations/{begun['uuid']}")["state"] != "running")

    soon(over)
    (result,) = operator.get(f"/operations/{begun['uuid']}")["results"]
    return dict(result)


def test_discovery_fails_with_bus_error_of_its_agent(agent: DeafAgent, operator: Client) -> None:
    agent.beat(REASON)
    result = discover(operator, agent, REASON)
    assert result["state"] == "failed"
    error = f"its agent sends heartbeats but receives no requests: {REASON}"
    assert result["error"] == error


def test_discovery_fails_when_agent_never_answers(agent: DeafAgent, operator: Client) -> None:
    result = discover(operator, agent)
    assert result["state"] == "failed"
    assert "receives no requests: it does not answer" in str(result["error"])


def test_row_keeps_time_of_the_first_bus_error(agent: DeafAgent, watched: Watched) -> None:
    def row() -> tuple[str | None, int | None]:
        columns = sa.select(Service.bus_error, Service.bus_error_ms)
        with watched.database.reader() as tx:
            found = tx.execute(columns.where(Service.host == agent.host)).one()
        return found.bus_error, found.bus_error_ms

    assert row() == (None, None)
    agent.beat("one reason")
    reason, since = row()
    assert reason == "one reason"
    assert since is not None
    agent.beat("another reason")
    assert row() == ("another reason", since)
    agent.beat()
    assert row() == (None, None)

# SPDX-License-Identifier: Apache-2.0
"""Hosts whose clocks are wrong: what is refused, what is shown, and what works again.

Every process has the clock of its host. The clock of control-1 is right.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.db import services
from cyborg.db.engine import Database
from cyborg.model import readiness
from cyborg.model.audit_findings import Kind
from cyborg.model.process import AGENT, API
from cyborg.model.readiness import State
from cyborg.model.report import Report
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import HandleTask
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import ApiHeartbeat, Heartbeat, Release, SendReport
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.bus.conftest import Attacker
from cyborg.tests.functional.bus.test_attacks import Machine, heartbeat, profile, refused
from cyborg.tests.functional.life.http import Client, open_client

#: The repository.
ROOT = Path(__file__).resolve().parents[4]
HOST = "compute-7"
AHEAD, BEHIND = 600.0, -600.0


@dataclass
class Clock:
    """The clock of one host; ``error`` is how much it is ahead, in seconds."""

    error: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.error


@dataclass
class SkewedHost:
    """A compute host with its own clock."""

    clock: Clock
    stack: Stack
    machine: Machine

    def agent(self) -> ConductorClient:
        """The line of its agent to the conductors."""
        sender = f"{AGENT_TOPIC}@{HOST}"
        return reach(ConductorClient(self.stack.bus(), timeout=PATIENCE, sender=sender))


@pytest.fixture
def skewed(secured: Stack) -> Iterator[Callable[[float], SkewedHost]]:
    """Start the RPC server of an agent on a host whose clock is wrong."""
    with ExitStack() as ending:

        def start(error: float) -> SkewedHost:
            clock, machine = Clock(error), Machine()
            stack = ending.enter_context(secured.beside(now=clock))
            server = stack.bus().server(AGENT_TOPIC, HOST, machine.endpoint())
            server.start()
            ending.callback(server.wait)
            ending.callback(server.stop)
            return SkewedHost(clock, stack, machine)

        yield start


@pytest.fixture
def operator(secured: Stack) -> Client:
    return open_client(secured, "admin", version="2.100")


def release() -> Release:
    return Release(HandleTask(str(uuid4()), "card_driver", "k", "h", "", ""))


def shown(operator: Client, host: str) -> dict[str, Any]:
    """The row of a host in the list of services."""
    (row,) = operator.get("/services", host=host)["services"]
    return dict(row)


def test_agent_that_started_with_a_wrong_clock_receives_after_the_correction(
    secured: Stack, skewed: Callable[[float], SkewedHost]
) -> None:
    host = skewed(AHEAD)
    host.clock.error = 0
    with closing(AgentClient(secured.bus(), timeout=PATIENCE)) as conductor:
        assert conductor.request(HOST, release()).done
    assert len(host.machine.released) == 1


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(AHEAD, "600 s ahead of control-1"), (BEHIND, "600 s behind control-1")],
)
def test_agent_with_a_wrong_clock_is_told_and_shown(
    secured: Stack,
    own_database: Database,
    skewed: Callable[[float], SkewedHost],
    operator: Client,
    error: float,
    sentence: str,
) -> None:
    """``cyborg-status check`` prints the health view."""
    host = skewed(0)
    with closing(host.agent()) as agent:
        epoch = agent.request(Heartbeat(heartbeat(HOST))).epoch
        agent.request(SendReport(HOST, epoch, Report(())))
        host.clock.error = error
        with pytest.raises(exception.Unavailable, match="control-1") as told:
            agent.request(Heartbeat(heartbeat(HOST)))
        assert f"the clock of this host is {sentence}" in str(told.value)
        row = shown(operator, HOST)
        assert f"its clock is {sentence}" in row["cause"]
        assert HOST in row["remedy"]
        assert not row["listening"]
        (finding,) = (
            one for one in secured.auditor().look().findings if one.kind is Kind.NOT_RECEIVING
        )
        assert f"its clock is {sentence}" in finding.cause
        with own_database.reader() as tx:
            rows = [services.readiness_of(one) for one in services.processes(tx, EVERYWHERE)]
        states = {one.name: one for one in readiness.view(rows, {AGENT: 30_000, API: 30_000})}
        agent_state = states[f"cyborg-agent on {HOST}"]
        assert (agent_state.state, agent_state.cause) == (State.NOT_HEARD, row["cause"])
        host.clock.error = 0
        agent.request(Heartbeat(heartbeat(HOST)))
        row = shown(operator, HOST)
        assert (row["cause"], row["listening"]) == (None, True)


def test_log_of_an_agent_with_a_wrong_clock_has_the_difference(
    secured: Stack, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING), secured.beside(now=Clock(AHEAD)) as stack:
        stack.start_agent(HOST, machine=FakeHost(), state_path=tmp_path)
        eventually(
            lambda: any(
                "clock of this host is 600 s ahead of control-1" in record.getMessage()
                for record in caplog.records
                if record.name == "cyborg.service"
            )
        )


def test_api_with_a_wrong_clock_is_told_and_shown(secured: Stack, operator: Client) -> None:
    clock = Clock()
    with secured.beside(now=clock) as stack:
        api = reach(ConductorClient(stack.bus(), timeout=PATIENCE, sender="cyborg-api@control-9"))
        with closing(api):
            beat = ApiHeartbeat("control-9", version="0", endpoint="http://control-9")
            api.request(beat)
            clock.error = AHEAD
            with pytest.raises(exception.Unavailable, match="600 s ahead of control-1"):
                api.write(profile())
            assert "its clock is 600 s ahead" in shown(operator, "control-9")["cause"]
            clock.error = 0
            api.request(beat)
            assert shown(operator, "control-9")["cause"] is None


@pytest.mark.parametrize("error", [AHEAD, BEHIND])
def test_conductor_is_told_that_an_agent_has_another_time(
    secured: Stack, skewed: Callable[[float], SkewedHost], error: float
) -> None:
    host = skewed(error)
    with closing(AgentClient(secured.bus(), timeout=PATIENCE)) as conductor:
        with pytest.raises(exception.Unavailable, match=f"600 s .* {HOST}") as told:
            conductor.request(HOST, release())
        assert not isinstance(told.value, exception.NoAnswer)
        assert host.machine.released == []
        host.clock.error = 0
        assert conductor.request(HOST, release()).done


@pytest.mark.parametrize("error", [-90.0, 90.0])
def test_process_with_a_small_error_works_while_its_peer_has_just_started(
    secured: Stack, skewed: Callable[[float], SkewedHost], error: float
) -> None:
    clock = Clock(error)
    host = skewed(0)
    with secured.beside(now=clock) as stack:
        with closing(AgentClient(stack.bus(), timeout=PATIENCE)) as conductor:
            assert conductor.request(HOST, release()).done
        with closing(reach(ConductorClient(stack.bus(), timeout=PATIENCE))) as api:
            assert api.write(profile()).name
    assert len(host.machine.released) == 1


def test_request_from_before_the_restart_of_a_conductor_is_refused(
    own_database: Database,
    signing: None,
    beside: Callable[..., Stack],
    master_file: Path,
) -> None:
    stack = beside(own_database)
    before = stack.start_conductor()
    stack.conductor_client()
    recorder = Attacker(stack.bus(), stack.exchange, master_file)
    arguments, verb = profile().dump(), profile().verb
    context = recorder.signed(CONDUCTOR_TOPIC, verb, arguments, sender="cyborg-api@control")
    send = partial(recorder.deliver, CONDUCTOR_TOPIC, verb, arguments)
    assert "ok" in send(dict(context))
    before.stop()
    stack.start_conductor()
    stack.conductor_client()
    assert refused(partial(send, dict(context)))


@pytest.mark.parametrize(
    "unit",
    [
        "etc/systemd/cyborg-api.service",
        "etc/systemd/cyborg-conductor.service",
        "etc/systemd/cyborg-agent.service",
        "containers/cyborg-agent.container",
    ],
)
def test_unit_of_a_process_on_the_bus_starts_after_the_clock_is_set(unit: str) -> None:
    after = re.search(r"^After=(.*)$", (ROOT / unit).read_text(), re.MULTILINE)
    assert after is not None
    assert "time-sync.target" in after[1].split()

# SPDX-License-Identifier: Apache-2.0
"""The faults under load; each leaves everything running that ran before.

The docstring of a fault is what the command line and the results call it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos.fault_run import FaultRun
from cyborg_tools.chaos.front import Front
from cyborg_tools.chaos.servers import Server
from cyborg_tools.chaos.world import CARDS, SPARE, SPARE_ADDRESS

_UNITS = CARDS[SPARE_ADDRESS][1]
#: Longer than the default ``[conductor] lease`` (3 s) and the conductors' heartbeat together.
_BEYOND_LEASE = 8.0
_API = f"{API}-1"


def conductor_kill(fault_run: FaultRun) -> None:
    """kill -9 of the conductor that is in the middle of a bind"""
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(one.conductor)
        fault_run.facts.append(f"{one.conductor} was at the preparation and killed")
        fault_run.time_to_resolve(one, killed)
    fault_run.world.begin(one.conductor, wait=True)
    fault_run.ends()


def conductors_kill(fault_run: FaultRun) -> None:
    """kill -9 of both conductors in mid-bind; only one comes back"""
    survivor, other = f"{CONDUCTOR}-1", f"{CONDUCTOR}-2"
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(survivor, other)
        fault_run.world.begin(survivor, wait=True)
        seconds = time.monotonic() - killed
        fault_run.facts.append(f"{survivor} alone runs again after {seconds:.1f} s")
        fault_run.time_to_resolve(one, killed)
    fault_run.world.begin(other, wait=True)
    fault_run.ends()


def conductor_stop(fault_run: FaultRun) -> None:
    """SIGSTOP of the conductor in mid-bind beyond its lease"""
    world = fault_run.world
    with fault_run.mid_bind() as one:
        world.freeze(one.conductor)
        frozen = time.monotonic()
        fault_run.facts.append(f"{one.conductor} was at the preparation and stopped")
        fault_run.time_to_resolve(one, frozen)
        fault_run.until("the end of the freeze", lambda: time.monotonic() - frozen > _BEYOND_LEASE)
        world.thaw(one.conductor)
        fault_run.ends()
        fault_run.facts.append(f"it stood still for {time.monotonic() - frozen:.1f} s")
        fault_run.until("a heartbeat", lambda: fault_run.is_alive(one.conductor))
        ends = fault_run.ends_of_bind(one)
        if ends != 1:
            fault_run.client_log.violation(
                f"a resumed conductor changed the bind: it ended {ends} times"
            )
        fault_run.facts.append(
            "after it resumed, it changed nothing: the history has one end of the bind"
        )


def agent_kill(fault_run: FaultRun) -> None:
    """kill -9 of the agent while it prepares a device"""
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(AGENT)
        fault_run.world.begin(AGENT, wait=True)
        fault_run.facts.append(f"the agent runs again after {time.monotonic() - killed:.1f} s")
        fault_run.ends()
        fault_run.time_to_resolve(one, killed)


def agent_stop(fault_run: FaultRun) -> None:
    """SIGSTOP of the agent while it prepares a device"""
    with fault_run.mid_bind() as one:
        fault_run.world.freeze(AGENT)
        frozen = time.monotonic()
        fault_run.last(8, 20)
        fault_run.world.thaw(AGENT)
        fault_run.ends()
        fault_run.time_to_resolve(one, frozen)


def api_kill(fault_run: FaultRun) -> None:
    """kill -9 of one of two APIs"""
    fault_run.kill(_API)
    fault_run.last(3, 5)
    fault_run.world.begin(_API, wait=True)
    fault_run.ends()


def api_stop(fault_run: FaultRun) -> None:
    """SIGSTOP of one of two APIs"""
    fault_run.world.freeze(_API)
    fault_run.last(5, 10)
    fault_run.world.thaw(_API)
    fault_run.ends()


def _again(fault_run: FaultRun, server: Server, end: Callable[[Server], None]) -> None:
    """Stop or kill a server and start it again: messages and open transactions are lost."""
    began = time.monotonic()
    end(server)
    server.begin()
    server.wait()
    fault_run.ends()
    fault_run.facts.append(f"{server.title} was away for {time.monotonic() - began:.1f} s")


def _without_placement(fault_run: FaultRun, status: int, *, writes_only: bool = False) -> None:
    """Meanwhile an operator takes a card out of service, which the agent is to publish."""
    world = fault_run.world
    front, before = world.placement_front, world.placement_front.met
    front.refuse(status, writes_only=writes_only)
    try:
        _set_spare(fault_run, "disable")
        fault_run.last(6, 15)
        if world.offered(SPARE_ADDRESS) != _UNITS:
            fault_run.client_log.violation("Placement has changed while it refused everything")
    finally:
        front.heal()
    fault_run.ends()
    fault_run.facts.append(f"{front.met - before} requests were refused")
    fault_run.until(
        "publishing what an operator disabled meanwhile",
        lambda: world.offered(SPARE_ADDRESS) == 0,
    )
    fault_run.figures["Placement right again"] = time.monotonic() - fault_run.over
    _set_spare(fault_run, "enable")
    fault_run.until("publishing it again", lambda: world.offered(SPARE_ADDRESS) == _UNITS)


def _set_spare(fault_run: FaultRun, verb: str) -> None:
    url = f"{fault_run.world.urls[0]}/v2/devices"
    devices = requests.get(url, timeout=PATIENCE).json()["devices"]
    (device,) = [one["uuid"] for one in devices if one["model"] == SPARE]
    answer = requests.post(f"{url}/{device}/{verb}", timeout=PATIENCE)
    if answer.status_code != 204:
        fault_run.client_log.violation(f"{verb} of a device was answered {answer.status_code}")
    fault_run.facts.append(f"an operator's {verb} of a device: {answer.status_code}")


def _without_nova(fault_run: FaultRun, disturb: Callable[[Front], Any], usual: float) -> None:
    """Only the sender of events may wait."""
    front, before = fault_run.world.nova_front, fault_run.world.nova_front.met
    disturb(front)
    try:
        fault_run.last(8, usual)
    finally:
        front.heal()
    fault_run.ends()
    fault_run.facts.append(f"{front.met - before} requests to Nova had no good answer")


def disk_full(fault_run: FaultRun) -> None:
    """the disk under the agent's state_path is full, and the agent is killed"""
    with fault_run.full_disk(), fault_run.mid_bind() as one:
        fault_run.time_to_resolve(one, time.monotonic())
    fault_run.ends()


def rabbit_restart(fault_run: FaultRun) -> None:
    """restart of RabbitMQ"""
    _again(fault_run, fault_run.world.rabbit, Server.stop)


def rabbit_kill(fault_run: FaultRun) -> None:
    """kill -9 and start of RabbitMQ"""
    _again(fault_run, fault_run.world.rabbit, Server.kill)


def mariadb_restart(fault_run: FaultRun) -> None:
    """restart of MariaDB"""
    _again(fault_run, fault_run.world.maria, Server.stop)


def mariadb_kill(fault_run: FaultRun) -> None:
    """kill -9 and start of MariaDB"""
    _again(fault_run, fault_run.world.maria, Server.kill)


def placement_500(fault_run: FaultRun) -> None:
    """Placement answers 500 to everything"""
    _without_placement(fault_run, 500)


def placement_409(fault_run: FaultRun) -> None:
    """Placement answers 409 to every write"""
    _without_placement(fault_run, 409, writes_only=True)


def nova_silent(fault_run: FaultRun) -> None:
    """nova-api takes requests and does not answer"""
    # Usually longer than the time-out with which Nova is asked.
    _without_nova(fault_run, Front.hold, usual=75)


def nova_503(fault_run: FaultRun) -> None:
    """nova-api answers 503 to everything"""
    _without_nova(fault_run, lambda front: front.refuse(503), usual=15)


@dataclass(frozen=True)
class Fault:
    """A fault: its name on the command line, a description, and what does it.

    ``short`` faults are those of ``--short``.
    """

    name: str
    title: str
    do: Callable[[FaultRun], None]
    short: bool


_SHORT = (
    *(conductor_kill, conductor_stop, agent_kill),
    *(rabbit_restart, mariadb_restart, placement_500, nova_silent),
)
#: In the order in which they are injected.
CATALOGUE = tuple(
    Fault(do.__name__.replace("_", "-"), str(do.__doc__), do, do in _SHORT)
    for do in (
        *(conductor_kill, conductors_kill, conductor_stop),
        *(agent_kill, agent_stop, api_kill, api_stop),
        *(rabbit_restart, rabbit_kill, mariadb_restart, mariadb_kill),
        *(placement_500, placement_409, nova_silent, nova_503, disk_full),
    )
)

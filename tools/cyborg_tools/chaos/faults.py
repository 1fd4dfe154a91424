# SPDX-License-Identifier: Apache-2.0
"""The faults under load; each leaves everything running that ran before."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import requests

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg_tools.chaos.fault_run import PATIENCE, FaultRun
from cyborg_tools.chaos.front import Front
from cyborg_tools.chaos.servers import Server
from cyborg_tools.chaos.world import CARDS, SPARE, SPARE_ADDRESS, World

_UNITS = CARDS[SPARE_ADDRESS][1]
#: Longer than the default ``[conductor] lease`` (3 s) and the conductors' heartbeat together.
_BEYOND_LEASE = 8.0
_API = f"{API}-1"
_RABBIT, _MARIA = attrgetter("rabbit"), attrgetter("maria")


def _conductor_kill(fault_run: FaultRun) -> None:
    """Kill the working conductor; the other takes over; start it again later."""
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(one.conductor)
        fault_run.facts.append(f"{one.conductor} was at the preparation and killed")
        fault_run.time_to_resolve(one, killed)
    fault_run.world.begin(one.conductor, wait=True)
    fault_run.ends()


def _conductors_kill(fault_run: FaultRun) -> None:
    """Kill both conductors; start one again, which finishes the work."""
    survivor, other = f"{CONDUCTOR}-1", f"{CONDUCTOR}-2"
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(survivor, other)
        fault_run.world.begin(survivor, wait=True)
        seconds = time.monotonic() - killed
        fault_run.facts.append(f"{survivor} alone runs again after {seconds:.1f} s")
        fault_run.time_to_resolve(one, killed)
    fault_run.world.begin(other, wait=True)
    fault_run.ends()


def _conductor_stop(fault_run: FaultRun) -> None:
    """Freeze the working conductor beyond its lease; it resumes when its work is done."""
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


def _agent_kill(fault_run: FaultRun) -> None:
    """Kill the agent during a preparation, and start it again at once."""
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(AGENT)
        fault_run.world.begin(AGENT, wait=True)
        fault_run.facts.append(f"the agent runs again after {time.monotonic() - killed:.1f} s")
        fault_run.ends()
        fault_run.time_to_resolve(one, killed)


def _agent_stop(fault_run: FaultRun) -> None:
    with fault_run.mid_bind() as one:
        fault_run.world.freeze(AGENT)
        frozen = time.monotonic()
        fault_run.last(8, 20)
        fault_run.world.thaw(AGENT)
        fault_run.ends()
        fault_run.time_to_resolve(one, frozen)


def _api_kill(fault_run: FaultRun) -> None:
    """Kill one of two APIs; the load balancer uses the other."""
    fault_run.kill(_API)
    fault_run.last(3, 5)
    fault_run.world.begin(_API, wait=True)
    fault_run.ends()


def _api_stop(fault_run: FaultRun) -> None:
    """Freeze one of two APIs; its clients wait."""
    fault_run.world.freeze(_API)
    fault_run.last(5, 10)
    fault_run.world.thaw(_API)
    fault_run.ends()


def _again(
    fault_run: FaultRun, of: Callable[[World], Server], end: Callable[[Server], None]
) -> None:
    """Stop or kill a server and start it again: messages and open transactions are lost."""
    server = of(fault_run.world)
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


def _disk_full(fault_run: FaultRun) -> None:
    with fault_run.full_disk(), fault_run.mid_bind() as one:
        fault_run.time_to_resolve(one, time.monotonic())
    fault_run.ends()


@dataclass(frozen=True)
class Fault:
    """A fault: its name on the command line, a description, and what does it.

    ``short`` faults are those of ``--short``.
    """

    name: str
    title: str
    do: Callable[[FaultRun], None]
    short: bool = False


#: In the order in which they are injected.
CATALOGUE = (
    Fault(
        "conductor-kill",
        "kill -9 of the conductor that is in the middle of a bind",
        _conductor_kill,
        short=True,
    ),
    Fault(
        "conductors-kill",
        "kill -9 of both conductors in mid-bind; only one comes back",
        _conductors_kill,
    ),
    Fault(
        "conductor-stop",
        "SIGSTOP of the conductor in mid-bind beyond its lease",
        _conductor_stop,
        short=True,
    ),
    Fault("agent-kill", "kill -9 of the agent while it prepares a device", _agent_kill, short=True),
    Fault("agent-stop", "SIGSTOP of the agent while it prepares a device", _agent_stop),
    Fault("api-kill", "kill -9 of one of two APIs", _api_kill),
    Fault("api-stop", "SIGSTOP of one of two APIs", _api_stop),
    Fault(
        "rabbit-restart",
        "restart of RabbitMQ",
        partial(_again, of=_RABBIT, end=Server.stop),
        short=True,
    ),
    Fault(
        "rabbit-kill", "kill -9 and start of RabbitMQ", partial(_again, of=_RABBIT, end=Server.kill)
    ),
    Fault(
        "mariadb-restart",
        "restart of MariaDB",
        partial(_again, of=_MARIA, end=Server.stop),
        short=True,
    ),
    Fault(
        "mariadb-kill", "kill -9 and start of MariaDB", partial(_again, of=_MARIA, end=Server.kill)
    ),
    Fault(
        "placement-500",
        "Placement answers 500 to everything",
        partial(_without_placement, status=500),
        short=True,
    ),
    Fault(
        "placement-409",
        "Placement answers 409 to every write",
        partial(_without_placement, status=409, writes_only=True),
    ),
    # Usually longer than the time-out with which Nova is asked.
    Fault(
        "nova-silent",
        "nova-api takes requests and does not answer",
        partial(_without_nova, disturb=Front.hold, usual=75),
        short=True,
    ),
    Fault(
        "nova-503",
        "nova-api answers 503 to everything",
        partial(_without_nova, disturb=lambda front: front.refuse(503), usual=15),
    ),
    Fault(
        "disk-full",
        "the disk under the agent's state_path is full, and the agent is killed",
        _disk_full,
    ),
)
NAMES = tuple(one.name for one in CATALOGUE)

# SPDX-License-Identifier: Apache-2.0
"""Implementations of the faults; each leaves everything running that ran before."""

import time
from collections.abc import Callable, Mapping

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg_tools.chaos.fault_run import FaultRun
from cyborg_tools.chaos.outages import (
    disk_full,
    mariadb_kill,
    mariadb_restart,
    nova_503,
    nova_silent,
    placement_409,
    placement_500,
    rabbit_kill,
    rabbit_restart,
)

#: Longer than the default ``[conductor] lease`` (3 s) and the conductors' heartbeat together.
_BEYOND_LEASE = 8.0


def conductor_kill(fault_run: FaultRun) -> None:
    """Kill the working conductor; the other takes over; start it again later."""
    world = fault_run.world
    with fault_run.mid_bind() as one:
        world.program(one.conductor).kill()
        killed = time.monotonic()
        fault_run.fact(f"{one.conductor} was at the preparation and killed")
        fault_run.time_to_resolve(one, killed)
    world.begin(one.conductor)
    world.wait(one.conductor)
    fault_run.ends()


def conductors_kill(fault_run: FaultRun) -> None:
    """Kill both conductors; start one again, which finishes the work."""
    world = fault_run.world
    with fault_run.mid_bind() as one:
        for number in (1, 2):
            world.program(f"{CONDUCTOR}-{number}").kill()
        killed = time.monotonic()
        survivor = f"{CONDUCTOR}-1"
        world.begin(survivor)
        world.wait(survivor)
        fault_run.fact(f"{survivor} alone runs again after {time.monotonic() - killed:.1f} s")
        fault_run.time_to_resolve(one, killed)
    world.begin(f"{CONDUCTOR}-2")
    world.wait(f"{CONDUCTOR}-2")
    fault_run.ends()


def conductor_stop(fault_run: FaultRun) -> None:
    """Freeze the working conductor beyond its lease; it resumes when its work is done."""
    world = fault_run.world
    with fault_run.mid_bind() as one:
        world.freeze(one.conductor)
        frozen = time.monotonic()
        fault_run.fact(f"{one.conductor} was at the preparation and stopped")
        fault_run.time_to_resolve(one, frozen)
        fault_run.until("the end of the freeze", lambda: time.monotonic() - frozen > _BEYOND_LEASE)
        world.thaw(one.conductor)
        fault_run.ends()
        fault_run.fact(f"it stood still for {time.monotonic() - frozen:.1f} s")
        fault_run.until("a heartbeat", lambda: fault_run.is_alive(one.conductor))
        ends = fault_run.ends_of_bind(one)
        if ends != 1:
            fault_run.client_log.violation(
                f"a resumed conductor changed the bind: it ended {ends} times"
            )
        fault_run.fact("after it resumed, it changed nothing: the history has one end of the bind")


def agent_kill(fault_run: FaultRun) -> None:
    """Kill the agent during a preparation, and start it again at once."""
    world = fault_run.world
    with fault_run.mid_bind() as one:
        world.program(AGENT).kill()
        killed = time.monotonic()
        world.begin(AGENT)
        world.wait(AGENT)
        fault_run.fact(f"the agent runs again after {time.monotonic() - killed:.1f} s")
        fault_run.ends()
        fault_run.time_to_resolve(one, killed)


def agent_stop(fault_run: FaultRun) -> None:
    """Freeze the agent during a preparation."""
    with fault_run.mid_bind() as one:
        fault_run.world.freeze(AGENT)
        frozen = time.monotonic()
        fault_run.last(8, 20)
        fault_run.world.thaw(AGENT)
        fault_run.ends()
        fault_run.time_to_resolve(one, frozen)


def api_kill(fault_run: FaultRun) -> None:
    """Kill one of two APIs; the load balancer uses the other."""
    name = f"{API}-1"
    fault_run.world.program(name).kill()
    fault_run.last(3, 5)
    fault_run.world.begin(name)
    fault_run.world.wait(name)
    fault_run.ends()


def api_stop(fault_run: FaultRun) -> None:
    """Freeze one of two APIs; its clients wait."""
    fault_run.world.freeze(f"{API}-1")
    fault_run.last(5, 10)
    fault_run.world.thaw(f"{API}-1")
    fault_run.ends()


#: The implementation of each fault by its name.
DONE: Mapping[str, Callable[[FaultRun], None]] = {
    "conductor-kill": conductor_kill,
    "conductors-kill": conductors_kill,
    "conductor-stop": conductor_stop,
    "agent-kill": agent_kill,
    "agent-stop": agent_stop,
    "api-kill": api_kill,
    "api-stop": api_stop,
    "rabbit-restart": rabbit_restart,
    "rabbit-kill": rabbit_kill,
    "mariadb-restart": mariadb_restart,
    "mariadb-kill": mariadb_kill,
    "placement-500": placement_500,
    "placement-409": placement_409,
    "nova-silent": nova_silent,
    "nova-503": nova_503,
    "disk-full": disk_full,
}

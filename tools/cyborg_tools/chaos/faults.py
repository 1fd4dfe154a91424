# SPDX-License-Identifier: Apache-2.0
"""What each fault does; all of them leave everything running that ran before."""

import time
from collections.abc import Callable, Mapping

from cyborg.model.process import AGENT, API, CONDUCTOR
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
from cyborg_tools.chaos.scene import Scene

#: Longer than the default ``[conductor] lease`` (3 s) and the conductors' heartbeat together.
_BEYOND_LEASE = 8.0


def conductor_kill(scene: Scene) -> None:
    """The one at work dies; the other takes over; later it is started again."""
    world = scene.world
    with scene.mid_bind() as one:
        world.program(one.conductor).kill()
        killed = time.monotonic()
        scene.fact(f"{one.conductor} was at the preparation and killed")
        scene.time_to_resolve(one, killed)
    world.begin(one.conductor)
    world.wait(one.conductor)
    scene.ends()


def conductors_kill(scene: Scene) -> None:
    """Both die at once; one is started again and finds everything."""
    world = scene.world
    with scene.mid_bind() as one:
        for number in (1, 2):
            world.program(f"{CONDUCTOR}-{number}").kill()
        killed = time.monotonic()
        survivor = f"{CONDUCTOR}-1"
        world.begin(survivor)
        world.wait(survivor)
        scene.fact(f"{survivor} alone runs again after {time.monotonic() - killed:.1f} s")
        scene.time_to_resolve(one, killed)
    world.begin(f"{CONDUCTOR}-2")
    world.wait(f"{CONDUCTOR}-2")
    scene.ends()


def conductor_stop(scene: Scene) -> None:
    """The one at work stands still beyond its lease, and wakes up when its work is done."""
    world = scene.world
    with scene.mid_bind() as one:
        world.freeze(one.conductor)
        frozen = time.monotonic()
        scene.fact(f"{one.conductor} was at the preparation and stopped")
        scene.time_to_resolve(one, frozen)
        scene.until("the end of the stop", lambda: time.monotonic() - frozen > _BEYOND_LEASE)
        world.thaw(one.conductor)
        scene.ends()
        scene.fact(f"it stood still for {time.monotonic() - frozen:.1f} s")
        scene.until("a heartbeat of the woken", lambda: scene.lives(one.conductor))
        ends = scene.ends_of_bind(one)
        if ends != 1:
            scene.witness.violation(f"a woken conductor had its way: the bind ended {ends} times")
        scene.fact("woken, it changed nothing: the history has one end of the bind")


def agent_kill(scene: Scene) -> None:
    """It dies in the middle of a preparation and is started again at once."""
    world = scene.world
    with scene.mid_bind() as one:
        world.program(AGENT).kill()
        killed = time.monotonic()
        world.begin(AGENT)
        world.wait(AGENT)
        scene.fact(f"the agent runs again after {time.monotonic() - killed:.1f} s")
        scene.ends()
        scene.time_to_resolve(one, killed)


def agent_stop(scene: Scene) -> None:
    """It stands still in the middle of a preparation."""
    with scene.mid_bind() as one:
        scene.world.freeze(AGENT)
        frozen = time.monotonic()
        scene.last(8, 20)
        scene.world.thaw(AGENT)
        scene.ends()
        scene.time_to_resolve(one, frozen)


def api_kill(scene: Scene) -> None:
    """One of two dies; the load balancer goes to the other."""
    name = f"{API}-1"
    scene.world.program(name).kill()
    scene.last(3, 5)
    scene.world.begin(name)
    scene.world.wait(name)
    scene.ends()


def api_stop(scene: Scene) -> None:
    """One of two stands still; its clients wait."""
    scene.world.freeze(f"{API}-1")
    scene.last(5, 10)
    scene.world.thaw(f"{API}-1")
    scene.ends()


#: What is done, by the name of the fault.
DONE: Mapping[str, Callable[[Scene], None]] = {
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

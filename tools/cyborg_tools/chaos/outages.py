# SPDX-License-Identifier: Apache-2.0
"""Faults of what the service depends on: broker, database, Placement, Nova, the agent's disk."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from cyborg.model.process import AGENT
from cyborg_tools.chaos.front import Front
from cyborg_tools.chaos.scene import PATIENCE, Scene
from cyborg_tools.chaos.servers import Server
from cyborg_tools.chaos.world import CARDS, NO_LIMIT, SPARE, SPARE_ADDRESS

_UNITS = CARDS[SPARE_ADDRESS][1]
_CHUNK = 4096


def rabbit_restart(scene: Scene) -> None:
    """All messages on their way are lost."""
    _again(scene, scene.world.rabbit, scene.world.rabbit.stop)


def rabbit_kill(scene: Scene) -> None:
    """The same without a word to those connected."""
    _again(scene, scene.world.rabbit, scene.world.rabbit.kill)


def mariadb_restart(scene: Scene) -> None:
    """Transactions in hand are rolled back; the API cannot even read."""
    _again(scene, scene.world.maria, scene.world.maria.stop)


def mariadb_kill(scene: Scene) -> None:
    """The same, and it recovers from its log."""
    _again(scene, scene.world.maria, scene.world.maria.kill)


def placement_500(scene: Scene) -> None:
    """The agent cannot even read what Placement shows."""
    _without_placement(scene, lambda front: front.refuse(500))


def placement_409(scene: Scene) -> None:
    """Somebody else is always faster."""
    _without_placement(scene, lambda front: front.refuse(409, writes_only=True))


def nova_silent(scene: Scene) -> None:
    """Whoever tells Nova something waits; nobody else may."""
    # Usually longer than the time-out with which Nova is asked.
    _without_nova(scene, lambda front: front.hold(), usual=75)


def nova_503(scene: Scene) -> None:
    """Nova is there, and refuses."""
    _without_nova(scene, lambda front: front.refuse(503), usual=15)


def disk_full(scene: Scene) -> None:
    """The agent can write nothing, and has to start like that."""
    with full_disk(scene), scene.mid_bind() as one:
        scene.time_to_resolve(one, time.monotonic())
    scene.ends()


@contextmanager
def full_disk(scene: Scene) -> Iterator[None]:
    """Fill the disk of the agent, kill the agent and start it; the space is free at the end."""
    world = scene.world
    filler = world.state_path / "filler"
    if world.disk != NO_LIMIT:
        scene.fact(f"state_path ({world.disk}) was filled up: {_fill(filler)} bytes")
    else:
        world.state_path.chmod(0o500)
        scene.fact("no right to mount a small tmpfs here: state_path was made read-only instead")
    try:
        world.program(AGENT).kill()
        killed = time.monotonic()
        world.begin(AGENT)
        world.wait(AGENT)
        scene.fact(f"killed meanwhile, it runs again after {time.monotonic() - killed:.1f} s")
        yield
    finally:
        filler.unlink(missing_ok=True)
        world.state_path.chmod(0o700)


def _again(scene: Scene, server: Server, end: Callable[[], None]) -> None:
    began = time.monotonic()
    end()
    server.begin()
    server.wait()
    scene.ends()
    scene.fact(f"{server.title} was away for {time.monotonic() - began:.1f} s")


def _without_placement(scene: Scene, break_it: Callable[[Front], None]) -> None:
    """Meanwhile an operator takes a card out of service, which the agent is to publish."""
    world = scene.world
    front, before = world.placement_front, world.placement_front.met
    break_it(front)
    try:
        _set_spare(scene, "disable")
        scene.last(6, 15)
        if world.offered(SPARE_ADDRESS) != _UNITS:
            scene.witness.violation("Placement has changed while it refused everything")
    finally:
        front.heal()
    scene.ends()
    scene.fact(f"{front.met - before} requests were refused")
    scene.until(
        "publishing what an operator disabled meanwhile",
        lambda: world.offered(SPARE_ADDRESS) == 0,
    )
    scene.figures["Placement right again"] = time.monotonic() - scene.over
    _set_spare(scene, "enable")
    scene.until("publishing it again", lambda: world.offered(SPARE_ADDRESS) == _UNITS)


def _without_nova(scene: Scene, break_it: Callable[[Front], None], *, usual: float) -> None:
    front, before = scene.world.nova_front, scene.world.nova_front.met
    break_it(front)
    try:
        scene.last(8, usual)
    finally:
        front.heal()
    scene.ends()
    scene.fact(f"{front.met - before} requests to Nova had no good answer")


def _set_spare(scene: Scene, verb: str) -> None:
    url = f"{scene.world.urls[0]}/v2/devices"
    found = requests.get(url, timeout=PATIENCE).json()["devices"]
    (device,) = [one["uuid"] for one in found if one["model"] == SPARE]
    answer = requests.post(f"{url}/{device}/{verb}", timeout=PATIENCE)
    if answer.status_code != 204:
        scene.witness.violation(f"{verb} of a device was answered {answer.status_code}")
    scene.fact(f"an operator's {verb} of a device: {answer.status_code}")


def _fill(file: Path) -> int:
    """Write until the disk is full; answers how many bytes that were."""
    written = 0
    try:
        with file.open("wb", buffering=0) as out:
            while True:
                written += out.write(b"\0" * _CHUNK)
    except OSError as fault:
        if fault.errno != errno.ENOSPC:
            raise
    return written

# SPDX-License-Identifier: Apache-2.0
"""Faults of what the service depends on: broker, database, Placement, Nova, the agent's disk."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from cyborg.model.process import AGENT
from cyborg_tools.chaos.fault_run import PATIENCE, FaultRun
from cyborg_tools.chaos.front import Front
from cyborg_tools.chaos.servers import Server
from cyborg_tools.chaos.world import CARDS, NO_LIMIT, SPARE, SPARE_ADDRESS

_UNITS = CARDS[SPARE_ADDRESS][1]
_CHUNK = 4096


def rabbit_restart(fault_run: FaultRun) -> None:
    """Restart RabbitMQ; messages in transit are lost."""
    _again(fault_run, fault_run.world.rabbit, fault_run.world.rabbit.stop)


def rabbit_kill(fault_run: FaultRun) -> None:
    """Kill RabbitMQ and start it again."""
    _again(fault_run, fault_run.world.rabbit, fault_run.world.rabbit.kill)


def mariadb_restart(fault_run: FaultRun) -> None:
    """Restart MariaDB; open transactions are rolled back and the API cannot read."""
    _again(fault_run, fault_run.world.maria, fault_run.world.maria.stop)


def mariadb_kill(fault_run: FaultRun) -> None:
    """Kill MariaDB and start it again; it recovers from its log."""
    _again(fault_run, fault_run.world.maria, fault_run.world.maria.kill)


def placement_500(fault_run: FaultRun) -> None:
    """Answer each request to Placement with 500."""
    _without_placement(fault_run, lambda front: front.refuse(500))


def placement_409(fault_run: FaultRun) -> None:
    """Answer each write to Placement with 409."""
    _without_placement(fault_run, lambda front: front.refuse(409, writes_only=True))


def nova_silent(fault_run: FaultRun) -> None:
    """Hold each request to Nova; only the sender of events may wait."""
    # Usually longer than the time-out with which Nova is asked.
    _without_nova(fault_run, lambda front: front.hold(), usual=75)


def nova_503(fault_run: FaultRun) -> None:
    """Answer each request to Nova with 503."""
    _without_nova(fault_run, lambda front: front.refuse(503), usual=15)


def disk_full(fault_run: FaultRun) -> None:
    """Fill the disk of the agent's state_path, and restart the agent."""
    with full_disk(fault_run), fault_run.mid_bind() as one:
        fault_run.time_to_resolve(one, time.monotonic())
    fault_run.ends()


@contextmanager
def full_disk(fault_run: FaultRun) -> Iterator[None]:
    """Fill the disk of the agent, kill the agent and start it; the space is free at the end."""
    world = fault_run.world
    filler = world.state_path / "filler"
    if world.disk != NO_LIMIT:
        fault_run.fact(f"state_path ({world.disk}) was filled up: {_fill(filler)} bytes")
    else:
        world.state_path.chmod(0o500)
        fault_run.fact(
            "no right to mount a small tmpfs here: state_path was made read-only instead"
        )
    try:
        world.program(AGENT).kill()
        killed = time.monotonic()
        world.begin(AGENT)
        world.wait(AGENT)
        fault_run.fact(f"killed meanwhile, it runs again after {time.monotonic() - killed:.1f} s")
        yield
    finally:
        filler.unlink(missing_ok=True)
        world.state_path.chmod(0o700)


def _again(fault_run: FaultRun, server: Server, end: Callable[[], None]) -> None:
    began = time.monotonic()
    end()
    server.begin()
    server.wait()
    fault_run.ends()
    fault_run.fact(f"{server.title} was away for {time.monotonic() - began:.1f} s")


def _without_placement(fault_run: FaultRun, break_it: Callable[[Front], None]) -> None:
    """Meanwhile an operator takes a card out of service, which the agent is to publish."""
    world = fault_run.world
    front, before = world.placement_front, world.placement_front.met
    break_it(front)
    try:
        _set_spare(fault_run, "disable")
        fault_run.last(6, 15)
        if world.offered(SPARE_ADDRESS) != _UNITS:
            fault_run.client_log.violation("Placement has changed while it refused everything")
    finally:
        front.heal()
    fault_run.ends()
    fault_run.fact(f"{front.met - before} requests were refused")
    fault_run.until(
        "publishing what an operator disabled meanwhile",
        lambda: world.offered(SPARE_ADDRESS) == 0,
    )
    fault_run.figures["Placement right again"] = time.monotonic() - fault_run.over
    _set_spare(fault_run, "enable")
    fault_run.until("publishing it again", lambda: world.offered(SPARE_ADDRESS) == _UNITS)


def _without_nova(fault_run: FaultRun, break_it: Callable[[Front], None], *, usual: float) -> None:
    front, before = fault_run.world.nova_front, fault_run.world.nova_front.met
    break_it(front)
    try:
        fault_run.last(8, usual)
    finally:
        front.heal()
    fault_run.ends()
    fault_run.fact(f"{front.met - before} requests to Nova had no good answer")


def _set_spare(fault_run: FaultRun, verb: str) -> None:
    url = f"{fault_run.world.urls[0]}/v2/devices"
    found = requests.get(url, timeout=PATIENCE).json()["devices"]
    (device,) = [one["uuid"] for one in found if one["model"] == SPARE]
    answer = requests.post(f"{url}/{device}/{verb}", timeout=PATIENCE)
    if answer.status_code != 204:
        fault_run.client_log.violation(f"{verb} of a device was answered {answer.status_code}")
    fault_run.fact(f"an operator's {verb} of a device: {answer.status_code}")


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

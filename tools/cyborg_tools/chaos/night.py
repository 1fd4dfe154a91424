# SPDX-License-Identifier: Apache-2.0
"""The faults of a night, one after another in an idle cloud, and the views of an operator.

During each fault the list of services, the health check, ``cyborg-status check`` and
``cyborg-audit`` must name the cause and blame nobody else, and no daemon may repeat a line more
often than the limit of its log allows. After the repair everything must work again without help.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import requests

from cyborg import service
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.tests.fixtures.log_lines import too_frequent
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos.fault_run import FaultRun
from cyborg_tools.chaos.run import Run
from cyborg_tools.chaos.servers import Server
from cyborg_tools.chaos.views import VERSION, Expected, View, look, wrong
from cyborg_tools.chaos.world import NightWorld

#: Seconds from the fault until the views are read.
_SETTLED = 6.0
#: Seconds that a fault lasts at least: log lines are counted in this time.
_SHORTEST = 12.0


@dataclass(frozen=True)
class NightFault:
    """A fault: its name on the command line, a description, and what the views must say.

    It lasts as long as the context ``during``.
    """

    name: str
    title: str
    during: Callable[[NightWorld, FaultRun], AbstractContextManager[None]]
    expected: Expected


class Night(Run):
    """Run the faults without clients: the servers of the walk itself are booted one by one."""

    world: NightWorld

    def walk(self) -> None:
        self.inject_all()

    def inject(self, fault_run: FaultRun, fault: NightFault) -> None:
        """Do the fault, read the views, count log lines, and repair the fault."""
        before, began = self.world.sizes(), time.monotonic()
        with fault.during(self.world, fault_run):
            _wait_until(time.monotonic() + _SETTLED)
            views = self._read(fault.expected)
            _wait_until(began + _SHORTEST)
            written, seconds = self.world.written_since(before), time.monotonic() - began
        fault_run.ends()
        for name, view in views.items():
            words = getattr(fault.expected, name)[1]
            fault_run.facts.append(f"{_NAMES[name]} {view.shown(words)}")
        listed = ", ".join(f"{name} {len(text.splitlines())}" for name, text in written.items())
        fault_run.facts.append(f"log lines in {seconds:.0f} s: {listed}")
        for name, text in written.items():
            for line, count in too_frequent(text, seconds=seconds).items():
                self.client_log.violation(f"{name} logs {count} times: {line}")

    def recovered(self, fault_run: FaultRun) -> float:
        """Return after how many seconds the API sees all well and a server boots with a device."""
        flaws: list[str] = []

        def works() -> bool:
            flaws[:] = wrong(look(self.world, "services", "health"), WELL)
            return not flaws

        if not service.wait_until(works, timeout=PATIENCE, step=0.5):
            for sentence in flaws:
                self.client_log.violation(f"after the repair {sentence}")
        with fault_run.mid_bind() as one:
            fault_run.time_to_resolve(one, time.monotonic())
        return time.monotonic() - fault_run.over

    def _read(self, expected: Expected) -> dict[str, View]:
        """Read the views until all are right; what is wrong in the last ones is a violation."""
        end = time.monotonic() + PATIENCE
        while True:
            views = look(self.world)
            flaws = list(wrong(views, expected))
            if not flaws or time.monotonic() > end:
                for sentence in flaws:
                    self.client_log.violation(sentence)
                return views


def _wait_until(moment: float) -> None:
    service.wait_until(lambda: time.monotonic() >= moment, timeout=PATIENCE, step=0.2)


@contextmanager
def _between(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


@contextmanager
def _refused_at_start(world: NightWorld, _run: FaultRun) -> Iterator[None]:
    world.stop_all()
    world.tenant.change_password("another password")
    try:
        world.begin_all()
        yield
    finally:
        world.tenant.mend_password()


@contextmanager
def _without(server: Server) -> Iterator[None]:
    with _between(server.stop, server.begin):
        yield
    server.wait()


@contextmanager
def _without_conductor(world: NightWorld, fault_run: FaultRun) -> Iterator[None]:
    with fault_run.mid_bind() as one:
        killed = fault_run.kill(one.conductor)
        fault_run.facts.append(f"{one.conductor} was at the preparation and killed")
        fault_run.time_to_resolve(one, killed)
    try:
        yield
    finally:
        world.begin(one.conductor, wait=True)
        _forget(world, fault_run, host=f"control-{one.conductor.rpartition('-')[2]}")


def _forget(world: NightWorld, fault_run: FaultRun, *, host: str) -> None:
    """Delete the row of the killed process, as an operator is advised to: its host runs another."""
    url = f"{world.urls[0]}/v2/services"
    query = {"kind": "process", "host": host}
    rows: dict[str, dict[str, str]] = {}

    def both() -> bool:
        answer = requests.get(url, params=query, headers=VERSION, timeout=PATIENCE)
        rows.update((row["state"], row) for row in answer.json()["services"])
        return rows.keys() == {"up", "down"}

    fault_run.until(f"the start of {CONDUCTOR} on {host}", both)
    killed = rows["down"]
    if "service-delete" not in killed["remedy"]:
        fault_run.client_log.violation(
            f"the remedy for the killed {CONDUCTOR} is: {killed['remedy']}"
        )
    fault_run.facts.append(f"started again; the row of the killed process says: {killed['cause']}")
    answer = requests.delete(f"{url}/{killed['uuid']}", headers=VERSION, timeout=PATIENCE)
    fault_run.facts.append(
        f"DELETE /v2/services/{killed['uuid']} is answered with {answer.status_code}"
    )


@contextmanager
def _without_space(world: NightWorld, fault_run: FaultRun) -> Iterator[None]:
    """Nothing but the agent's copies are lost: binds go on, and all views say that all is well.

    The agent logs the cause only when it has something to write.
    """
    with fault_run.full_disk():
        with fault_run.mid_bind() as one:
            fault_run.time_to_resolve(one, time.monotonic())
        if "No space left" in world.program(AGENT).output:
            fault_run.facts.append("the agent's log says: No space left on device")
        yield


def _of_bus(reason: str) -> Expected:
    """What is shown while no process can use the bus."""
    down = rf"Message bus is down: No conductor answers.*{reason}"
    deaf = rf"cyborg-conductor on control-1 is up, does not listen: .*{reason}"
    return Expected(
        (200, deaf), (503, down), (2, down), (2, rf"no-conductor .*{reason}"), "Message bus"
    )


def _of_peer(
    peer: str, cause: str, *, services: tuple[int, str], health: int, audit: str
) -> Expected:
    """What is shown while a peer is down."""
    down = f"{peer} is down: .*{cause}"
    return Expected(services, (health, down), (2, down), (3, audit), peer)


_ALL_UP = (200, r"^200: \d processes are up\.$")
_NOTHING = (0, "all is well")
_CLOSED = r"[Cc]onnection refused"
_CONDUCTOR_DOWN = r"cyborg-conductor on control-\d is down: No heartbeat for"
WELL = Expected(services=_ALL_UP, health=(200, "all is well"), status=_NOTHING, audit=_NOTHING)
#: In the order in which they are injected.
NIGHT = (
    NightFault(
        "night-start",
        "RabbitMQ refuses all daemons at their start: the password is wrong",
        _refused_at_start,
        _of_bus("403 ACCESS_REFUSED"),
    ),
    NightFault(
        "night-permission",
        "RabbitMQ withdraws the permissions of the running daemons",
        lambda world, _: _between(world.tenant.forbid, world.tenant.permit),
        _of_bus("403|530"),
    ),
    NightFault(
        "night-bus",
        "RabbitMQ is stopped",
        lambda world, _: _without(world.rabbit),
        _of_bus(_CLOSED),
    ),
    NightFault(
        "night-database",
        "MariaDB is stopped",
        lambda world, _: _without(world.maria),
        _of_peer(
            "Database",
            _CLOSED,
            services=(503, "atabase"),
            health=503,
            audit=f"atabase.*{_CLOSED}",
        ),
    ),
    NightFault(
        "night-keystone",
        "Keystone refuses connections",
        lambda world, _: _between(world.keystone.cut, world.keystone.heal),
        _of_peer("Keystone", _CLOSED, services=(503, "Keystone"), health=200, audit="Keystone"),
    ),
    NightFault(
        "night-placement",
        "Placement answers 503 to everything",
        lambda world, _: _between(
            lambda: world.placement_front.refuse(503), world.placement_front.heal
        ),
        _of_peer("Placement", "503", services=_ALL_UP, health=200, audit="Placement.*503"),
    ),
    NightFault(
        "night-conductor",
        "kill -9 of the conductor that is in the middle of a bind",
        _without_conductor,
        Expected(
            services=(200, r"cyborg-conductor on control-\d is down, .*No heartbeat for"),
            health=(200, _CONDUCTOR_DOWN),
            status=(1, _CONDUCTOR_DOWN),
            # The other conductor has finished the bind: nothing is wrong in the cloud.
            audit=_NOTHING,
            start="cyborg-conductor",
        ),
    ),
    NightFault(
        "night-disk",
        "the disk under the agent's state_path is full, and the agent is killed",
        _without_space,
        WELL,
    ),
)
_NAMES = {
    "services": "GET /v2/services at 2.100 answers",
    "health": "GET /healthcheck answers",
    "status": "cyborg-status check ends with",
    "audit": "cyborg-audit ends with",
}

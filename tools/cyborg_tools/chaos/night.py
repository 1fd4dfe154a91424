# SPDX-License-Identifier: Apache-2.0
"""The faults of a night, one after another in an idle cloud, and the views of an operator.

During each fault the list of services, the health check, ``cyborg-status check`` and
``cyborg-audit`` must name the cause and blame nobody else, and no daemon may log more than
``LINES_PER_MINUTE``. After the repair everything must work again without help.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import requests

from cyborg import exception, service
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg_tools.chaos.catalogue import Fault
from cyborg_tools.chaos.client_log import ClientLog
from cyborg_tools.chaos.fault_run import PATIENCE, FaultRun
from cyborg_tools.chaos.load import Load
from cyborg_tools.chaos.night_world import NightWorld
from cyborg_tools.chaos.options import Plan
from cyborg_tools.chaos.outages import full_disk
from cyborg_tools.chaos.results import Part, Results
from cyborg_tools.chaos.scenarios import Cloud
from cyborg_tools.chaos.servers import Server
from cyborg_tools.chaos.verdict import Judge
from cyborg_tools.chaos.views import Expected, Views, look
from cyborg_tools.chaos.world import HOST, PROBE

LINES_PER_MINUTE = 100
#: Seconds from the fault until the views are read, and until they must be right.
_SETTLED = 6.0
_RIGHT = 45.0
#: Seconds that a fault lasts at least: log lines are counted over this time.
_SHORTEST = 12.0

Break = Callable[[NightWorld, FaultRun], AbstractContextManager[None]]


class Night:
    """Run the faults; ``say`` and ``tell`` are those of Run."""

    def __init__(
        self, plan: Plan, *, say: Callable[[str], None], tell: Callable[[Part], None]
    ) -> None:
        self._plan = plan
        self._say = say
        self._tell = tell
        self._client_log = ClientLog()

    def carry_out(self, world: NightWorld) -> Results:
        """Go through all faults of the plan. The world must be running."""
        results = Results(self._plan.seed)
        began = time.monotonic()
        url = f"{world.urls[0]}/v2/device_profiles"
        for name, group in PROBE.items():
            profile: list[dict[str, Any]] = [{"name": name, "groups": [group]}]
            requests.post(url, json=profile, timeout=PATIENCE).raise_for_status()
        # No clients: the servers of the walk itself are booted one by one.
        load = Load(
            0,
            urls=world.urls[:1],
            cloud=Cloud(HOST, world.placement, world.nova, PROBE),
            profiles=sorted(PROBE),
            client_log=self._client_log,
            seed=self._plan.seed,
        )
        judge = Judge(world, load)
        for fault in self._plan.faults:
            self._say(f"{fault.name}: {fault.title}")
            fault_run = FaultRun(world, load, self._client_log, short=True)
            part = Part(fault.name, fault.title, self._client_log.page)
            started = time.monotonic()
            try:
                self._endure(world, fault_run, fault)
                part.recovery = self._recovered(world, fault_run)
            except exception.CyborgError as error:
                self._client_log.violation(str(error))
            for sentence in judge.judge():
                self._client_log.violation(sentence)
            self._client_log.turn_page()
            part.facts, part.figures = fault_run.facts, fault_run.figures
            part.elapsed = time.monotonic() - started
            results.parts.append(part)
            self._tell(part)
        results.seconds = time.monotonic() - began
        return results

    def _endure(self, world: NightWorld, fault_run: FaultRun, fault: Fault) -> None:
        """Do the fault, read the views, count log lines, and repair the fault."""
        broken, expected = FAULTS[fault.name]
        before, began = world.lines(), time.monotonic()
        with broken(world, fault_run):
            self._wait_until(time.monotonic() + _SETTLED)
            views = self._read(world, expected)
            self._wait_until(began + _SHORTEST)
            minutes = (time.monotonic() - began) / 60
            rates = {
                name: (count - before[name]) / minutes for name, count in world.lines().items()
            }
        fault_run.ends()
        for name, view in views.views.items():
            fault_run.fact(f"{_NAMES[name]} {view.shown(getattr(expected, name)[1])}")
        listed = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        fault_run.fact(f"log lines per minute in {60 * minutes:.0f} s: {listed}")
        for name, rate in rates.items():
            if rate > LINES_PER_MINUTE:
                self._client_log.violation(f"{name} logs {rate:.0f} lines per minute")

    def _read(self, world: NightWorld, expected: Expected) -> Views:
        """Read the views until all are right; what is wrong in the last ones is a violation."""
        end = time.monotonic() + _RIGHT
        while True:
            views = look(world)
            wrong = list(views.wrong(expected))
            if not wrong or time.monotonic() > end:
                for sentence in wrong:
                    self._client_log.violation(sentence)
                return views

    def _recovered(self, world: NightWorld, fault_run: FaultRun) -> float:
        """Return after how many seconds the API sees all well and a server boots with a device."""
        wrong: list[str] = []

        def works() -> bool:
            wrong[:] = look(world, ("services", "health")).wrong(WELL)
            return not wrong

        if not service.wait_until(works, timeout=PATIENCE, step=0.5):
            for sentence in wrong:
                self._client_log.violation(f"after the repair {sentence}")
        with fault_run.mid_bind() as one:
            fault_run.time_to_resolve(one, time.monotonic())
        return time.monotonic() - fault_run.over

    @staticmethod
    def _wait_until(moment: float) -> None:
        service.wait_until(lambda: time.monotonic() >= moment, timeout=PATIENCE, step=0.2)


@contextmanager
def _refused_at_start(world: NightWorld, _scene: FaultRun) -> Iterator[None]:
    world.stop_all()
    world.tenant.change_password("another password")
    try:
        world.begin_all()
        yield
    finally:
        world.tenant.mend_password()


@contextmanager
def _without_permission(world: NightWorld, _scene: FaultRun) -> Iterator[None]:
    world.tenant.forbid()
    try:
        yield
    finally:
        world.tenant.permit()


@contextmanager
def _without(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.begin()
        server.wait()


@contextmanager
def _without_keystone(world: NightWorld, _scene: FaultRun) -> Iterator[None]:
    world.keystone.cut()
    try:
        yield
    finally:
        world.keystone.heal()


@contextmanager
def _without_placement(world: NightWorld, _scene: FaultRun) -> Iterator[None]:
    world.placement_front.refuse(503)
    try:
        yield
    finally:
        world.placement_front.heal()


@contextmanager
def _without_conductor(world: NightWorld, fault_run: FaultRun) -> Iterator[None]:
    with fault_run.mid_bind() as one:
        world.program(one.conductor).kill()
        killed = time.monotonic()
        fault_run.fact(f"{one.conductor} was at the preparation and killed")
        fault_run.time_to_resolve(one, killed)
    try:
        yield
    finally:
        world.begin(one.conductor)
        world.wait(one.conductor)
        _forget(world, fault_run, host=f"control-{one.conductor.rpartition('-')[2]}")


def _forget(world: NightWorld, fault_run: FaultRun, *, host: str) -> None:
    """Delete the row of the killed process, as an operator is advised to: its host runs another."""
    url, version = f"{world.urls[0]}/v2/services", {"OpenStack-API-Version": "accelerator 2.5"}
    query = {"kind": "process", "host": host}
    rows: dict[str, dict[str, str]] = {}

    def both() -> bool:
        answer = requests.get(url, params=query, headers=version, timeout=PATIENCE)
        rows.update((row["state"], row) for row in answer.json()["services"])
        return rows.keys() == {"up", "down"}

    fault_run.until(f"the start of {CONDUCTOR} on {host}", both)
    killed = rows["down"]
    if "service-delete" not in killed["remedy"]:
        fault_run.client_log.violation(
            f"the remedy for the killed {CONDUCTOR} is: {killed['remedy']}"
        )
    fault_run.fact(f"started again; the row of the killed process says: {killed['cause']}")
    answer = requests.delete(f"{url}/{killed['uuid']}", headers=version, timeout=PATIENCE)
    fault_run.fact(f"DELETE /v2/services/{killed['uuid']} is answered with {answer.status_code}")


@contextmanager
def _without_space(world: NightWorld, fault_run: FaultRun) -> Iterator[None]:
    """Nothing but the agent's copies are lost: binds go on, and all views say that all is well.

    The agent logs the cause only when it has something to write.
    """
    with full_disk(fault_run):
        with fault_run.mid_bind() as one:
            fault_run.time_to_resolve(one, time.monotonic())
        if "No space left" in world.program(AGENT).output:
            fault_run.fact("the agent's log says: No space left on device")
        yield


def _of_bus(reason: str) -> Expected:
    """What is shown while no process can use the bus."""
    return Expected(
        services=(200, rf"cyborg-conductor on control-1 is up, does not listen: .*{reason}"),
        health=(503, rf"Message bus is down: No conductor answers.*{reason}"),
        status=(2, rf"Message bus is down: No conductor answers.*{reason}"),
        audit=(2, rf"no-conductor .*{reason}"),
        peer="Message bus",
    )


_ALL_UP = (200, r"^200: \d processes are up\.$")
_NOTHING = (0, "all is well")
WELL = Expected(services=_ALL_UP, health=(200, "all is well"), status=_NOTHING, audit=_NOTHING)

_CLOSED = r"[Cc]onnection refused"
FAULTS: Mapping[str, tuple[Break, Expected]] = {
    "night-start": (_refused_at_start, _of_bus("403 ACCESS_REFUSED")),
    "night-permission": (_without_permission, _of_bus("403|530")),
    "night-bus": (lambda world, _: _without(world.rabbit), _of_bus(_CLOSED)),
    "night-database": (
        lambda world, _: _without(world.maria),
        Expected(
            services=(503, "atabase"),
            health=(503, f"Database is down: .*{_CLOSED}"),
            status=(2, f"Database is down: .*{_CLOSED}"),
            audit=(3, f"atabase.*{_CLOSED}"),
            peer="Database",
        ),
    ),
    "night-keystone": (
        _without_keystone,
        Expected(
            services=(503, "Keystone"),
            health=(200, f"Keystone is down: .*{_CLOSED}"),
            status=(2, f"Keystone is down: .*{_CLOSED}"),
            audit=(3, "Keystone"),
            peer="Keystone",
        ),
    ),
    "night-placement": (
        _without_placement,
        Expected(
            services=_ALL_UP,
            health=(200, "Placement is down: .*503"),
            status=(2, "Placement is down: .*503"),
            audit=(3, "Placement.*503"),
            peer="Placement",
        ),
    ),
    "night-conductor": (
        _without_conductor,
        Expected(
            services=(200, r"cyborg-conductor on control-\d is down, .*No heartbeat for"),
            health=(200, r"cyborg-conductor on control-\d is down: No heartbeat for"),
            status=(1, r"cyborg-conductor on control-\d is down: No heartbeat for"),
            # The other conductor has finished the bind: nothing is wrong in the cloud.
            audit=_NOTHING,
            start="cyborg-conductor",
        ),
    ),
    "night-disk": (_without_space, WELL),
}
_NAMES = {
    "services": "GET /v2/services at 2.5 answers",
    "health": "GET /healthcheck answers",
    "status": "cyborg-status check ends with",
    "audit": "cyborg-audit ends with",
}

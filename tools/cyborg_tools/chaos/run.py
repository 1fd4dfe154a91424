# SPDX-License-Identifier: Apache-2.0
"""One run: start everything, inject each fault, and check the service after each."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import requests

from cyborg import exception
from cyborg_tools.chaos.client_log import ClientLog
from cyborg_tools.chaos.fault_run import FaultRun
from cyborg_tools.chaos.faults import DONE
from cyborg_tools.chaos.load import Load
from cyborg_tools.chaos.options import Plan
from cyborg_tools.chaos.results import Part, Results
from cyborg_tools.chaos.scenarios import Cloud
from cyborg_tools.chaos.verdict import Judge
from cyborg_tools.chaos.world import HOST, PROBE, PROBED_ADDRESS, PROFILES, USUAL, World

#: How long the clients are watched while nothing is broken, to have something to compare with.
_QUIET = 5.0
#: Seconds within which a client must have got through once more before the verdict.
_ONCE_MORE = 60.0

Tell = Callable[[Part], None]


class Run:
    """Run a plan; ``say`` receives the progress, ``tell`` each finished part."""

    def __init__(self, plan: Plan, *, say: Callable[[str], None], tell: Tell) -> None:
        self._plan = plan
        self._say = say
        self._tell = tell
        self._client_log = ClientLog()

    def carry_out(self, world: World) -> Results:
        """Everything; takes minutes. The world must be running."""
        results = Results(self._plan.seed)
        began = time.monotonic()
        with self._loaded(world) as load:
            judge = Judge(world, load)
            self._finish(results, self._quiet(judge, load))
            for fault in self._plan.faults:
                self._say(f"{fault.name}: {fault.title}")
                fault_run = FaultRun(world, load, self._client_log, short=self._plan.short)
                started = time.monotonic()
                part = Part(fault.name, fault.title, self._client_log.page)
                try:
                    DONE[fault.name](fault_run)
                    part.recovery = self._recovered(fault_run)
                except exception.CyborgError as error:
                    self._client_log.violation(str(error))
                part.facts, part.figures = fault_run.facts, fault_run.figures
                self._hold_verdict(judge, load, part, started)
                self._finish(results, part)
                load.go()
            self._finish(results, self._end(judge, load))
        results.seconds = time.monotonic() - began
        return results

    @contextmanager
    def _loaded(self, world: World) -> Iterator[Load]:
        """The clients, running; they are ended whatever happens."""
        profiles = {**PROFILES, **PROBE}
        for name, group in profiles.items():
            answer = requests.post(
                f"{world.urls[0]}/v2/device_profiles",
                json=[{"name": name, "groups": [group]}],
                timeout=60,
            )
            answer.raise_for_status()
        load = Load(
            self._plan.clients,
            urls=world.urls,
            cloud=Cloud(HOST, world.placement, world.nova, profiles),
            profiles=sorted(PROFILES),
            client_log=self._client_log,
            seed=self._plan.seed,
        )
        load.start()
        try:
            yield load
        finally:
            load.stop()

    def _quiet(self, judge: Judge, load: Load) -> Part:
        self._say("no fault yet: reference for the clients")
        started = time.monotonic()
        part = Part("nothing", "no fault", self._client_log.page)
        threading.Event().wait(_QUIET)
        self._hold_verdict(judge, load, part, started)
        load.go()
        return part

    def _recovered(self, fault_run: FaultRun) -> float:
        """How long after a fault's end a whole boot succeeds; all clients are through after it."""
        with fault_run.mid_bind() as one:
            fault_run.world.machine.take(PROBED_ADDRESS, USUAL)
            fault_run.load.probe.resolved(one.instance)
            self._tell_nova(fault_run, one.instance.arqs)
            return time.monotonic() - fault_run.over

    def _tell_nova(self, fault_run: FaultRun, arqs: list[str]) -> None:
        try:
            fault_run.world.nova.wait_for_events(arqs, _ONCE_MORE)
        except TimeoutError as fault:
            self._client_log.violation(f"I3 Nova was not told after the fault: {fault}")

    def _hold_verdict(self, judge: Judge, load: Load, part: Part, started: float) -> None:
        load.halt()
        for sentence in judge.judge():
            self._client_log.violation(sentence)
        self._client_log.turn_page()
        part.elapsed = time.monotonic() - started

    def _end(self, judge: Judge, load: Load) -> Part:
        self._say("the end: all instances are deleted")
        started = time.monotonic()
        part = Part("end", "all instances are deleted; nothing may be left", self._client_log.page)
        load.halt()
        for client in load.clients:
            client.delete_instances()
        for sentence in judge.judge_end(self._client_log.left_behind):
            self._client_log.violation(sentence)
        self._client_log.turn_page()
        part.elapsed = time.monotonic() - started
        return part

    def _finish(self, results: Results, part: Part) -> None:
        results.parts.append(part)
        self._tell(part)

# SPDX-License-Identifier: Apache-2.0
"""One run: inject each fault under load, and check the service after each."""

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cyborg import exception
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos.fault_run import FaultRun
from cyborg_tools.chaos.load import Cloud, Load
from cyborg_tools.chaos.results import ClientLog, Part, Results
from cyborg_tools.chaos.verdict import Judge
from cyborg_tools.chaos.world import HOST, PROBE, PROBED_ADDRESS, PROFILES, USUAL, World

#: How long the clients are watched while nothing is broken, to have something to compare with.
_QUIET = 5.0


class Run:
    """Run a plan; ``say`` receives the progress, ``tell`` each finished part."""

    def __init__(
        self,
        plan: argparse.Namespace,
        world: World,
        *,
        say: Callable[[str], None],
        tell: Callable[[Part], None],
    ) -> None:
        self._plan = plan
        self._say = say
        self._tell = tell
        self.client_log = ClientLog()
        self.world = world
        self.results = Results(plan.seed)
        profiles = {**PROFILES, **PROBE}
        world.make_profiles(profiles)
        self.load = Load(
            plan.clients,
            urls=world.open_urls,
            cloud=Cloud(HOST, world.placement, world.nova, profiles),
            profiles=sorted(PROFILES),
            client_log=self.client_log,
            seed=plan.seed,
        )
        self.judge = Judge(world, self.load)

    def carry_out(self) -> Results:
        """Inject the faults; raises BrokenEnvironment when a server does not come back."""
        began = time.monotonic()
        self.load.start()
        try:
            self.walk()
        finally:
            self.load.stop()
        self.results.seconds = time.monotonic() - began
        return self.results

    def walk(self) -> None:
        with self._part("nothing", "no fault yet: reference for the clients", self.judge.judge):
            threading.Event().wait(_QUIET)
        self.inject_all()
        with self._part(
            "end",
            "all instances are deleted; nothing may be left",
            lambda: self.judge.judge_end(self.client_log.left_behind),
        ):
            for client in self.load.clients:
                client.end_instances()

    def inject_all(self) -> None:
        """One fault after the other; the clients stand still in the end."""
        for fault in self._plan.faults:
            self.load.go()
            with self._part(fault.name, fault.title, self.judge.judge) as part:
                short = self._plan.short or self._plan.night
                fault_run = FaultRun(self.world, self.load, self.client_log, short=short)
                part.facts, part.figures = fault_run.facts, fault_run.figures
                self.inject(fault_run, fault)
                part.recovery = self.recovered(fault_run)

    def inject(self, fault_run: FaultRun, fault: Any) -> None:
        fault.do(fault_run)

    def recovered(self, fault_run: FaultRun) -> float:
        """How long after a fault's end a whole boot succeeds; all clients are through after it."""
        with fault_run.mid_bind() as one:
            self.world.machine.take(PROBED_ADDRESS, USUAL)
            self.load.probe.resolved(one.instance)
            fault_run.nova_is_told(one, PATIENCE, "I3 Nova was not told after the fault")
            return time.monotonic() - fault_run.over

    @contextmanager
    def _part(self, name: str, title: str, judge: Callable[[], Iterator[str]]) -> Iterator[Part]:
        """A part of the run, up to its verdict, for which the clients stand still."""
        self._say(f"{name}: {title}")
        started = time.monotonic()
        part = Part(name, title, self.client_log.page)
        try:
            yield part
        except exception.CyborgError as error:
            self.client_log.violation(str(error))
        self.load.halt()
        for sentence in judge():
            self.client_log.violation(sentence)
        self.client_log.turn_page()
        part.elapsed = time.monotonic() - started
        self.results.parts.append(part)
        self._tell(part)

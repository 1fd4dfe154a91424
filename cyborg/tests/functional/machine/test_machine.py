# SPDX-License-Identifier: Apache-2.0
"""Anybody does anything in any order: after each act the model and the invariants hold."""

from collections.abc import Iterable, Sequence
from itertools import product
from uuid import UUID

from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cyborg.tests.fixtures.choice import FULL
from cyborg.tests.fixtures.properties import HealthCheck, settings, st
from cyborg.tests.functional.machine.clients import PROJECTS, Outcome
from cyborg.tests.functional.machine.cloud import Site
from cyborg.tests.functional.machine.simulation import Interruption, Point, Trouble, new_simulation
from cyborg.tests.functional.schema.databases import SERVER

#: The same examples each time, unless there is time to look for others; on servers, where each
#: takes longer, the first of them.
SETTINGS = settings(
    max_examples=200 if FULL else 5 if SERVER else 25,
    stateful_step_count=50 if FULL else 25,
    derandomize=not FULL,
    database=None,
    suppress_health_check=list(HealthCheck),
)

#: Which of what there is; small numbers, so that acts meet.
WHICH = st.integers(0, 5)
TWO = st.integers(0, 1)
SOME = st.lists(WHICH, min_size=1, max_size=3)
OUTCOMES = st.sampled_from([Outcome.FINE, Outcome.FINE, Outcome.FINE, *Outcome])
PROJECT = st.sampled_from(PROJECTS)
#: Nobody's in particular: an administrator asks.
ANY_PROJECT = st.sampled_from([None, *PROJECTS])
CODES = st.sampled_from([200, 200, 404, 422])


class CloudMachine(RuleBasedStateMachine):
    """Clients, conductors, agents, hardware, operators, Nova and Placement, in any order."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.simulation = new_simulation(site)
        self.providers = list(self.simulation.model.cards)
        for prepare, project in product((False, True), PROJECTS):
            self.simulation.clients.create(prepare=prepare, project=project)

    @invariant()
    def holds(self) -> None:
        self.simulation.check()

    def teardown(self) -> None:
        try:
            self.simulation.settle()
        finally:
            self.simulation.close()

    # Clients.

    @rule(prepare=st.booleans(), count=st.integers(1, 3), project=PROJECT, outcome=OUTCOMES)
    def create(self, prepare: bool, count: int, project: str, outcome: Outcome) -> None:
        self.simulation.clients.create(
            prepare=prepare, count=count, project=project, outcome=outcome
        )

    @rule(choices=SOME, project=PROJECT, code=CODES)
    def boot(self, choices: list[int], project: str, code: int) -> None:
        """Nova's way to a server, without a hitch."""
        for one in choices:
            prepare = self.simulation.model.cards[_one(self.providers, one)].prepare
            self.simulation.clients.create(prepare=prepare, project=project)
        self.simulation.clients.bind(self._fitting(choices, project), project=project, code=code)

    @precondition(lambda self: any(self._fitting(range(3), one) for one in PROJECTS))
    @rule(choices=SOME, project=PROJECT, admin=st.booleans(), outcome=OUTCOMES)
    def bind(self, choices: list[int], project: str, admin: bool, outcome: Outcome) -> None:
        """What is not bound yet, for a new instance."""
        bindings = self._fitting(choices, project)
        asking = None if admin else project
        if bindings:
            self.simulation.clients.bind(bindings, project=asking, outcome=outcome)

    @precondition(lambda self: self.simulation.model.requests)
    @rule(choices=SOME, which=WHICH, again=st.booleans(), project=ANY_PROJECT, outcome=OUTCOMES)
    def bind_oddly(
        self, choices: list[int], which: int, again: bool, project: str | None, outcome: Outcome
    ) -> None:
        """As nobody should: whatever ARQs there are, for whatever instance."""
        arqs, instances = list(self.simulation.model.requests), self.simulation.model.instances
        bindings = {_one(arqs, one): _one(self.providers, one + which) for one in choices}
        instance = _one(instances, which) if again and instances else None
        self.simulation.clients.bind(
            list(bindings.items()), instance, project=project, outcome=outcome
        )

    @precondition(lambda self: self.simulation.model.requests)
    @rule(choices=SOME, stranger=st.booleans(), project=ANY_PROJECT, outcome=OUTCOMES)
    def unbind(
        self, choices: list[int], stranger: bool, project: str | None, outcome: Outcome
    ) -> None:
        chosen = self._chosen(choices, stranger)
        self.simulation.clients.unbind(chosen, project=project, outcome=outcome)

    @precondition(lambda self: self.simulation.model.requests)
    @rule(choices=SOME, stranger=st.booleans(), project=ANY_PROJECT, outcome=OUTCOMES)
    def delete(
        self, choices: list[int], stranger: bool, project: str | None, outcome: Outcome
    ) -> None:
        """By Nova, or by a member of a project."""
        self.simulation.clients.delete(
            self._chosen(choices, stranger),
            service=project is None,
            project=project or PROJECTS[0],
            outcome=outcome,
        )

    @precondition(lambda self: self.simulation.model.instances)
    @rule(which=WHICH, outcome=OUTCOMES)
    def delete_instance(self, which: int, outcome: Outcome) -> None:
        self.simulation.clients.delete_instance(
            _one(self.simulation.model.instances, which), outcome=outcome
        )

    @rule()
    def read(self) -> None:
        self.simulation.clients.read()

    # Operators.

    @rule(which=WHICH, enabled=st.booleans(), outcome=OUTCOMES)
    def set_enabled(self, which: int, enabled: bool, outcome: Outcome) -> None:
        self.simulation.clients.set_enabled(
            _one(self.providers, which), enabled=enabled, outcome=outcome
        )

    @rule(which=WHICH, image=TWO, outcome=OUTCOMES)
    def program(self, which: int, image: int, outcome: Outcome) -> None:
        images = list(self.simulation.site.images)
        self.simulation.clients.program(
            _one(self.providers, which), _one(images, image), outcome=outcome
        )

    @rule(which=WHICH, reserved=st.integers(0, 2))
    def edit_by_hand(self, which: int, reserved: int) -> None:
        self.simulation.edit(_one(self.providers, which), reserved=reserved)

    # Processes.

    @rule(which=TWO, renew=st.booleans())
    def run_worker(self, which: int, renew: bool) -> None:
        self.simulation.run_worker(which, renew=renew)

    @rule(which=TWO)
    def audit(self, which: int) -> None:
        self.simulation.audit(which)

    @rule(agent=st.booleans(), which=TWO)
    def restart(self, agent: bool, which: int) -> None:
        """A conductor is killed and replaced; an agent lives on beside the next for a while."""
        if agent:
            self.simulation.replace_agent(which)
        else:
            self.simulation.replace_conductor(which)

    @rule(agent=st.booleans(), which=TWO, steps=st.integers(0, 6), after=st.booleans())
    def crash_after(self, agent: bool, which: int, steps: int, after: bool) -> None:
        """A process is going to die at one of its next edges."""
        if agent:
            self.simulation.doom_agent(which, steps, after=after)
        else:
            self.simulation.crash_conductor_after(which, steps, after=after)

    @rule(which=TWO, newest=st.booleans())
    def run_agent(self, which: int, newest: bool) -> None:
        self.simulation.run_agent(which, newest=newest)

    @rule(point=st.sampled_from(Point), interruption=st.sampled_from(Interruption), which=WHICH)
    def plan(self, point: Point, interruption: Interruption, which: int) -> None:
        """Something will happen in the middle of somebody's work."""
        self.simulation.plan(point, interruption, which)

    @rule(seconds=st.sampled_from([1, 6, 35, 70]))
    def wait(self, seconds: int) -> None:
        self.simulation.site.clock.advance(seconds)

    @rule(trouble=st.sampled_from(Trouble), which=WHICH, ends=st.booleans())
    def trouble(self, trouble: Trouble, which: int, ends: bool) -> None:
        """Hardware or a peer fails, or works again."""
        self.simulation.trouble(trouble, _one(self.providers, which), ends=ends)

    def _fitting(self, choices: Iterable[int], project: str) -> list[tuple[str, str]]:
        """ARQs of a project that are not bound, with the chosen providers of their kind."""
        found: dict[str, str] = {}
        for one in choices:
            provider = _one(self.providers, one)
            prepare = self.simulation.model.cards[provider].prepare
            free = self.simulation.model.free(prepare=prepare, project=project)
            left = [uuid for uuid in free if uuid not in found]
            if left:
                found[left[0]] = provider
        return list(found.items())

    def _chosen(self, choices: list[int], stranger: bool) -> list[str]:
        """ARQs that are there, and perhaps one that is not."""
        known = list(self.simulation.model.requests)
        chosen = list(dict.fromkeys(_one(known, one) for one in choices))
        return [*chosen, str(UUID(int=choices[0]))] if stranger else chosen


def test_cloud_agrees_with_its_model(site: Site) -> None:
    class Here(CloudMachine):
        def __init__(self) -> None:
            super().__init__(site)

    run_state_machine_as_test(Here, settings=SETTINGS)


def _one(several: Sequence[str], which: int) -> str:
    return several[which % len(several)]

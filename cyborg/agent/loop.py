# SPDX-License-Identifier: Apache-2.0
"""The agent's one round: look, say hello, report what changed, keep Placement as desired.

Every part may be missing: without the bus or a conductor the agent keeps looking and takes back in
Placement what is not there any more, without Placement (or the compute's provider in it) it keeps
reporting; the round after they return puts everything right.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_manager import DriverManager
from cyborg.agent.health import HealthChecks
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.providers import Providers
from cyborg.agent.reporter import Reporter
from cyborg.agent.state_store import DesiredStateCache
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.drivers.base import DriverContext
from cyborg.model.device import Device
from cyborg.model.names import AGENT
from cyborg.model.report import Desired, DriverState, Hello, Report, Welcome
from cyborg.rpc.conductor import ReportClient

LOG = logging.getLogger(__name__)

#: Characters of the sentence with which an agent tells why no driver works.
_LONGEST_FAILURE = 2000


@dataclass(frozen=True)
class Identity:
    """Who this agent is: its name on the bus, and what Placement may call its compute."""

    host: str
    provider_names: tuple[str, ...]
    version: str
    endpoint: str


@dataclass(frozen=True)
class Intervals:
    """How often the agent looks at its hardware and checks all of Placement, in seconds."""

    scan: float
    full_check: float


@dataclass
class _Memory:
    """What the agent knows of its last rounds; a restart forgets it, and asks."""

    epoch: int | None = None
    report: Report | None = None
    scanned: float | None = None
    desired: Desired | None = None
    tended: float | None = None
    #: The last hello was not answered.
    cut_off: bool = False
    #: What of each driver the conductor did not keep of the last report: name → reason.
    kept_out: dict[str, dict[str, str]] = field(default_factory=dict)


class AgentLoop:
    """Beats once per call of ``beat``; ``clock`` is monotonic, in seconds.

    ``bus_error`` says why this agent receives no requests over the bus; empty while it does.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        intervals: Intervals,
        driver_manager: DriverManager,
        reporter: Reporter,
        checks: HealthChecks,
        prepared_sync: PreparedUnitsSync,
        discoveries: DiscoveryRequests,
        cache: DesiredStateCache,
        conductor: ReportClient,
        placement: Placement,
        publisher: Publisher,
        clock: Callable[[], float],
        bus_error: Callable[[], str] = str,
    ) -> None:
        self._identity = identity
        self._bus_error = bus_error
        self._intervals = intervals
        self._driver_manager = driver_manager
        self._reporter = reporter
        self._checks = checks
        self._prepared_sync = prepared_sync
        self._discoveries = discoveries
        self._cache = cache
        self._conductor = conductor
        self._providers = Providers(
            host=identity.host,
            names=identity.provider_names,
            full_check=intervals.full_check,
            conductor=conductor,
            placement=placement,
            publisher=publisher,
            clock=clock,
        )
        self._clock = clock
        self._memory = _Memory()
        self._asked = threading.Event()

    def look_again(self) -> None:
        """Have the next round ask the drivers, whenever that is due; any thread may."""
        self._asked.set()

    def run_once(self) -> None:
        """One round; raises what kept it from its end, after doing all that was possible."""
        memory = self._memory
        asked = self._discoveries.waiting()
        before = memory.report or self._cache.report
        missing = self._providers.look_around()
        # What guests hold must be known before the first look: it would seem lost otherwise.
        welcome = self._greet_or_watch()
        if asked:
            self._load_drivers()
            self._reporter.forget_idle()
            memory.scanned = None
        self._look()
        assert memory.report is not None
        kept_out = self._report(welcome, self._checks.applied(memory.report))
        refusals = self._driver_manager.refusals
        self._discoveries.answer(asked, before, memory.report, kept_out=kept_out, refusals=refusals)
        untended = self._tend(welcome.epoch)
        if self._providers.found:
            self._publish(known_before=welcome.digest is not None)
        for trouble in (untended, None if self._providers.found else missing):
            if trouble is not None:
                raise trouble

    def check(self, epoch: int) -> None:
        """Raise StaleEpoch when ``epoch`` shows that another agent has taken this host over.

        An agent that has not been greeted yet is the newest there is.
        """
        mine = self._memory.epoch
        if mine is not None and mine < epoch:
            raise exception.StaleEpoch(
                epoch=mine, binary=AGENT, host=self._identity.host, current=epoch
            )

    @property
    def epoch(self) -> int | None:
        """With which this agent was greeted last; None before."""
        return self._memory.epoch

    def devices(self) -> list[tuple[str, Device]]:
        """What the drivers found last, with the driver of each; any thread may ask."""
        report = self._memory.report
        if report is None:
            return []
        return [(one.driver, device) for one in report.drivers for device in one.devices]

    def drivers(self) -> dict[str, DriverState]:
        """The drivers of this host and how they were last; any thread may ask."""
        report = self._memory.report
        return {} if report is None else {one.driver: one.state for one in report.drivers}

    def lives_as(self, epoch: int) -> bool:
        """Whether this agent was greeted with just this epoch."""
        return self._memory.epoch == epoch

    def _greet(self) -> Welcome:
        """Say hello, and fetch what is desired when that is news."""
        memory, me = self._memory, self._identity
        failure = self._failure()
        names, drivers = self._providers.names, tuple(self._driver_manager.hellos.values())
        welcome = self._conductor.hello(
            Hello(
                me.host,
                names,
                me.version,
                me.endpoint,
                memory.epoch,
                drivers=drivers,
                bus_error=self._bus_error(),
                status=DriverState.FAILED if failure else DriverState.READY,
                failure=failure,
            )
        )
        if memory.epoch not in (None, welcome.epoch):
            # Another process had this host meanwhile: Placement may show what that one saw.
            self._providers.look_again()
        memory.epoch = welcome.epoch
        self._want(welcome.desired_generation)
        return welcome

    def _failure(self) -> str:
        """Return why none of the enabled drivers works; empty while one does, or none is enabled.

        Before the first look it counts whether the drivers were loaded.
        """
        report, driver_manager = self._memory.report, self._driver_manager
        if report is not None:
            known = {one.driver: (one.state, one.error) for one in report.drivers}
        else:
            known = {
                name: (hello.status, driver_manager.failures.get(name))
                for name, hello in driver_manager.hellos.items()
            }
        enabled = {
            name: error or "no reason is known"
            for name, (state, error) in known.items()
            if state is not DriverState.STOPPED
        }
        if not enabled or any(known[name][0] is not DriverState.FAILED for name in enabled):
            return ""
        reasons = "; ".join(f"{name}: {error.rstrip('.')}" for name, error in enabled.items())
        return f"No driver works: {reasons}."[:_LONGEST_FAILURE]

    def _greet_or_watch(self) -> Welcome:
        """Say hello; without an answer look on, then raise what kept it from coming."""
        memory = self._memory
        try:
            welcome = self._greet()
        except exception.StaleEpoch:
            # This host is another agent's now, and Placement too.
            raise
        except exception.CyborgError:
            memory.cut_off = True
            self._watch()
            raise
        if memory.cut_off:
            LOG.info("The conductor answers again: all of this host is looked at anew")
            memory.cut_off = False
            memory.scanned = memory.tended = None
            self._providers.trust()
        return welcome

    def _watch(self) -> None:
        """Reserve in Placement what the host does not show any more; offer nothing."""
        memory, desired = self._memory, self._known
        if desired is None:
            return
        self._look()
        assert memory.report is not None
        self._providers.withhold(desired, memory.report.deployables())

    @property
    def _known(self) -> Desired | None:
        """What the conductor wants, as far as it ever said."""
        return self._memory.desired or self._cache.desired

    def _look(self) -> None:
        """Ask the drivers, if it is time."""
        memory, known = self._memory, self._known
        asked = self._asked.is_set()
        if memory.report and not (asked or self._due(memory.scanned, self._intervals.scan)):
            return
        # Before the drivers are asked: what changes while they answer is looked at again.
        self._asked.clear()
        kept = frozenset(one.name for one in known.tree.providers) if known else frozenset()
        report = self._reporter.scan(
            DriverContext(claims=self._providers.claims, managed_deployables=kept)
        )
        if memory.report is None and self._cache.report is not None:
            for name in sorted(self._cache.report.deployables() - report.deployables()):
                LOG.warning("%s was there when this host was last reported, and is not now", name)
        self._checks.ask_first(report)
        memory.report, memory.scanned = report, self._clock()

    def _report(self, welcome: Welcome, report: Report) -> dict[str, dict[str, str]]:
        """Hand the report in unless the conductor has it already.

        Return what of each driver the conductor does not keep: driver → name → reason.
        """
        if report.digest() == welcome.digest:
            self._cache.keep(report=report)
            return self._memory.kept_out
        taken = self._conductor.report(self._identity.host, welcome.epoch, report)
        self._cache.keep(report=report)
        # What came back may have lost what was prepared on it.
        self._memory.tended = None
        LOG.info("Reported %d device(s)", sum(len(one.devices) for one in report.drivers))
        for name, reason in taken.refused.items():
            LOG.warning("The conductor does not keep %s: %s", name, reason)
        self._want(taken.desired_generation)
        self._memory.kept_out = report.kept_out(taken)
        return self._memory.kept_out

    def _want(self, generation: int) -> None:
        memory = self._memory
        if memory.desired is None or memory.desired.generation != generation:
            assert memory.epoch is not None
            before = memory.desired
            memory.desired = self._conductor.desired(self._identity.host, memory.epoch)
            self._providers.believe(memory.desired)
            self._cache.keep(desired=memory.desired)
            self._load_drivers()
            if before is not None and before.tree == memory.desired.tree:
                # Not the wish is news but what Placement shows: look at all of it again.
                memory.tended = None
                self._providers.look_again()

    def _load_drivers(self) -> None:
        """Load and drop drivers as it is desired; what they show is looked at in this round."""
        memory, wanted = self._memory, self._memory.desired
        if wanted is None:
            return
        before = dict(self._driver_manager.drivers)
        if self._driver_manager.apply(wanted.drivers, wanted.made):
            memory.scanned = memory.tended = None
            now = self._driver_manager.drivers
            changed = {one for one in before | now if before.get(one) is not now.get(one)}
            self._discoveries.changing(changed, memory.report or self._cache.report)

    def _tend(self, epoch: int) -> exception.CyborgError | None:
        """Have put right what is prepared on the host; answers why that could not be begun."""
        memory = self._memory
        if not self._due(memory.tended, self._intervals.full_check):
            return None
        trouble = None
        try:
            self._prepared_sync.tend(self._identity.host, epoch)
        except exception.Unavailable as error:
            return error
        except exception.CyborgError as error:
            trouble = error
        memory.tended = self._clock()
        return trouble

    def _publish(self, *, known_before: bool) -> None:
        """Have Placement show what is desired."""
        memory = self._memory
        if memory.desired is not None and memory.epoch is not None:
            memory.desired = self._providers.publish(
                memory.desired, memory.epoch, known_before=known_before
            )

    def _due(self, since: float | None, interval: float) -> bool:
        return since is None or self._clock() - since >= interval

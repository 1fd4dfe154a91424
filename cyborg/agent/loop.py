# SPDX-License-Identifier: Apache-2.0
"""The agent's periodic job: heartbeat, scan, report, prepared units, Placement.

Any peer may be away. Without the bus or a conductor the agent still scans, and reserves the
providers in Placement that the host lost. Without Placement (or the compute's provider in it) the
agent still reports. When the peer is back, the next run brings everything into the desired state.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

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
from cyborg.model.process import AGENT
from cyborg.model.report import AgentHeartbeat, Desired, DriverState, HeartbeatReply, Report
from cyborg.rpc.conductor import ReportClient

LOG = logging.getLogger(__name__)

#: The maximal length of ``AgentHeartbeat.failure``, in characters.
_MAX_FAILURE: Final = 2000


@dataclass(frozen=True)
class Identity:
    """The agent's host, its RPC endpoint, and the names that Placement may have for its compute."""

    host: str
    provider_names: tuple[str, ...]
    version: str
    endpoint: str


@dataclass(frozen=True)
class Intervals:
    """Seconds between scans of the hardware, and between full checks of units and Placement."""

    scan: float
    full_check: float


class _Step(Enum):
    """A step of a run that is left out until its interval is over."""

    SCAN = auto()
    SYNC_UNITS = auto()
    CHECK_PLACEMENT = auto()


class _Event(Enum):
    """A reason to run steps again before their interval is over."""

    DISCOVERY_REQUESTED = auto()
    DRIVERS_CHANGED = auto()
    #: The conductor has accepted a report: devices that returned may have lost their preparation.
    REPORTED = auto()
    #: Another agent had this host in the meantime, and may have changed Placement.
    NEW_EPOCH = auto()
    #: The desired state has a new generation, but the same tree: Placement does not show it.
    SAME_TREE = auto()
    #: The conductor answers again.
    RECONNECTED = auto()


_RERUN: Final[Mapping[_Event, tuple[_Step, ...]]] = {
    _Event.DISCOVERY_REQUESTED: (_Step.SCAN,),
    _Event.DRIVERS_CHANGED: (_Step.SCAN, _Step.SYNC_UNITS),
    _Event.REPORTED: (_Step.SYNC_UNITS,),
    _Event.NEW_EPOCH: (_Step.CHECK_PLACEMENT,),
    _Event.SAME_TREE: (_Step.SYNC_UNITS, _Step.CHECK_PLACEMENT),
    _Event.RECONNECTED: (_Step.SCAN, _Step.SYNC_UNITS, _Step.CHECK_PLACEMENT),
}


class AgentLoop:
    """Run all steps once in each call of ``run_once``; ``clock`` is monotonic, in seconds.

    ``bus_error`` says why this agent receives no requests over the bus; it is empty while it does.
    A restart of the agent forgets all attributes; the first run reads them from the peers.
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
        self._bus_error = bus_error
        self._epoch: int | None = None
        self._report: Report | None = None
        self._desired: Desired | None = None
        self._disconnected = False
        #: What the conductor does not keep of the last report: driver → deployable → reason.
        self._rejected: dict[str, dict[str, str]] = {}
        #: When a step ended last; a step without an entry is due.
        self._ended_at: dict[_Step, float] = {}
        self._scan_requested = threading.Event()

    def run_once(self) -> None:
        """Run all steps that are due and possible; raise the first error at the end."""
        requests = self._discoveries.pending()
        last_report = self._report or self._cache.report

        # 1. Find the compute in Placement. Drivers need Nova's claims there for the scan.
        placement_error = self._providers.locate()

        # 2. Send the heartbeat and fetch the desired state. The first scan needs it: drivers would
        # report devices that guests hold as lost otherwise.
        try:
            reply = self._send_heartbeat()
        except exception.StaleEpoch:
            # Another agent has taken over this host and its providers in Placement.
            raise
        except exception.CyborgError:
            self._disconnected = True
            # Without a conductor, the agent itself reserves the providers that the host lost.
            desired = self._desired or self._cache.desired
            if desired is not None:
                self._providers.reserve_missing(desired, self._scan().deployables())
            raise
        if self._disconnected:
            LOG.info(
                "Conductor reachable again: host %s is scanned and compared completely",
                self._identity.host,
            )
            self._disconnected = False
            self._providers.forget_reserved()
            self._rerun(_Event.RECONNECTED)

        # 3. Scan the hardware.
        if requests:
            self._load_drivers()
            self._reporter.forget_idle()
            self._rerun(_Event.DISCOVERY_REQUESTED)
        report = self._scan()

        # 4. Report it, and answer the discovery requests.
        self._send_report(reply, self._checks.add_health(report))
        self._discoveries.answer(
            requests,
            last_report,
            report,
            rejected=self._rejected,
            refusals=self._driver_manager.refusals,
        )

        # 5. Start repairs of units whose preparation is not as desired.
        sync_error = self._sync_units(reply.epoch)

        # 6. Publish the desired providers.
        if self._providers.root is not None:
            placement_error = None
            if self._desired is not None:
                self._desired = self._providers.publish(
                    self._desired, reply.epoch, known_before=reply.digest is not None
                )

        error = sync_error or placement_error
        if error is not None:
            raise error

    def request_scan(self) -> None:
        """Scan the hardware in the next run, even if it is not due; any thread may call this."""
        self._scan_requested.set()

    def check(self, epoch: int) -> None:
        """Raise StaleEpoch if ``epoch`` shows that another agent has taken over this host.

        An agent that has no epoch yet is the newest agent of the host.
        """
        if self._epoch is not None and self._epoch < epoch:
            raise exception.StaleEpoch(
                epoch=self._epoch, binary=AGENT, host=self._identity.host, current=epoch
            )

    @property
    def epoch(self) -> int | None:
        """Return the epoch of this agent; None before the first reply to a heartbeat."""
        return self._epoch

    def devices(self) -> list[tuple[str, Device]]:
        """Return the devices of the last scan with their drivers; any thread may call this."""
        report = self._report
        if report is None:
            return []
        return [(driver.driver, device) for driver in report.drivers for device in driver.devices]

    def drivers(self) -> dict[str, DriverState]:
        """Return the drivers and their states in the last scan; any thread may call this."""
        report = self._report
        return {} if report is None else {driver.driver: driver.state for driver in report.drivers}

    def _send_heartbeat(self) -> HeartbeatReply:
        """Send the heartbeat, and fetch the desired state if it has changed."""
        identity, failure = self._identity, self._failure()
        reply = self._conductor.heartbeat(
            AgentHeartbeat(
                identity.host,
                self._providers.names,
                identity.version,
                identity.endpoint,
                self._epoch,
                drivers=tuple(self._driver_manager.installed_drivers.values()),
                bus_error=self._bus_error(),
                status=DriverState.FAILED if failure else DriverState.READY,
                failure=failure,
            )
        )
        if self._epoch not in (None, reply.epoch):
            self._rerun(_Event.NEW_EPOCH)
        self._epoch = reply.epoch
        self._fetch_desired(reply.desired_generation)
        return reply

    def _failure(self) -> str:
        """Return why no enabled driver works; empty if a driver works, or none is enabled.

        Before the first scan a driver works if it is loaded.
        """
        manager = self._driver_manager
        if self._report is not None:
            states = {
                driver.driver: (driver.state, driver.error) for driver in self._report.drivers
            }
        else:
            states = {
                name: (installed.status, manager.failures.get(name))
                for name, installed in manager.installed_drivers.items()
            }
        enabled = {
            name: (state, error)
            for name, (state, error) in states.items()
            if state is not DriverState.STOPPED
        }
        if not enabled or any(state is not DriverState.FAILED for state, _ in enabled.values()):
            return ""
        reasons = "; ".join(
            f"{name}: {(error or 'no reason is known').rstrip('.')}"
            for name, (_, error) in enabled.items()
        )
        return f"No driver works: {reasons}."[:_MAX_FAILURE]

    def _fetch_desired(self, generation: int) -> None:
        """Fetch the desired state and load its drivers, if it is of another generation."""
        previous = self._desired
        if previous is not None and previous.generation == generation:
            return
        assert self._epoch is not None
        self._desired = self._conductor.desired(self._identity.host, self._epoch)
        self._providers.load(self._desired)
        self._cache.store(desired=self._desired)
        self._load_drivers()
        if previous is not None and previous.tree == self._desired.tree:
            self._rerun(_Event.SAME_TREE)

    def _load_drivers(self) -> None:
        """Load and unload drivers as desired; this run scans their devices."""
        if self._desired is None:
            return
        before = dict(self._driver_manager.drivers)
        if self._driver_manager.apply(self._desired.drivers, self._desired.operator_created):
            self._rerun(_Event.DRIVERS_CHANGED)
            after = self._driver_manager.drivers
            changed = {name for name in before | after if before.get(name) is not after.get(name)}
            self._discoveries.drivers_changed(changed, self._report or self._cache.report)

    def _scan(self) -> Report:
        """Return the report of the host; call the drivers if the scan is due or requested."""
        last = self._report
        if last and not (
            self._scan_requested.is_set() or self._is_due(_Step.SCAN, self._intervals.scan)
        ):
            return last
        # Before the drivers are called: a request during the scan leads to another scan.
        self._scan_requested.clear()
        desired = self._desired or self._cache.desired
        names = (provider.name for provider in desired.tree.providers) if desired else ()
        report = self._reporter.scan(
            DriverContext(claims=self._providers.claims, managed_deployables=frozenset(names))
        )
        if last is None and self._cache.report is not None:
            for name in sorted(self._cache.report.deployables() - report.deployables()):
                LOG.warning(
                    "Deployable %s of the last report is missing on host %s",
                    name,
                    self._identity.host,
                )
        self._checks.poll_new(report)
        self._report = report
        self._ended_at[_Step.SCAN] = self._clock()
        return report

    def _send_report(self, reply: HeartbeatReply, report: Report) -> None:
        """Send the report unless the conductor has it already; note what it does not keep."""
        if report.digest() == reply.digest:
            self._cache.store(report=report)
            return
        host = self._identity.host
        acknowledged = self._conductor.report(host, reply.epoch, report)
        self._cache.store(report=report)
        self._rerun(_Event.REPORTED)
        devices = sum(len(driver.devices) for driver in report.drivers)
        LOG.info("Reported %d device(s) of host %s", devices, host)
        for name, reason in acknowledged.refused.items():
            LOG.warning("Deployable %s of host %s refused by the conductor: %s", name, host, reason)
        self._fetch_desired(acknowledged.desired_generation)
        self._rejected = report.kept_out(acknowledged)

    def _sync_units(self, epoch: int) -> exception.CyborgError | None:
        """Compare the prepared units if that is due; return the error, if any.

        The step stays due while the conductor is not available.
        """
        if not self._is_due(_Step.SYNC_UNITS, self._intervals.full_check):
            return None
        error = None
        try:
            self._prepared_sync.sync(self._identity.host, epoch)
        except exception.Unavailable as unavailable:
            return unavailable
        except exception.CyborgError as failure:
            error = failure
        self._ended_at[_Step.SYNC_UNITS] = self._clock()
        return error

    def _is_due(self, step: _Step, interval: float) -> bool:
        ended_at = self._ended_at.get(step)
        return ended_at is None or self._clock() - ended_at >= interval

    def _rerun(self, event: _Event) -> None:
        """Make the steps that an event affects due."""
        for step in _RERUN[event]:
            if step is _Step.CHECK_PLACEMENT:
                self._providers.require_check()
            else:
                self._ended_at.pop(step, None)

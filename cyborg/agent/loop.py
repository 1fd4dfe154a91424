# SPDX-License-Identifier: Apache-2.0
"""The agent's inventory job: scan, report, units, layouts, Placement; it runs after each heartbeat.

Any peer may be away. Without the bus or a conductor the agent still scans, and reserves the
providers in Placement that the host lost. Without Placement (or the compute's provider in it) the
agent still reports. When the peer is back, the next run brings everything into the desired state.
"""

import contextlib
import logging
import threading

from cyborg import exception
from cyborg.agent.guests import GuestReports
from cyborg.agent.heartbeats import Heartbeats
from cyborg.agent.layout_sync import LayoutSync
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.providers import Providers
from cyborg.agent.reporter import Reporter
from cyborg.agent.schedule import Event, Schedule, Step
from cyborg.drivers.host import Host
from cyborg.drivers.scan import Scan
from cyborg.drivers.topology import FactCache
from cyborg.drivers.worker import Worker
from cyborg.model.report import Desired, HeartbeatReply, Report

LOG = logging.getLogger(__name__)


class AgentLoop:
    """Run all steps once in each call of ``run_once``, with the result of the last heartbeat.

    A restart of the agent forgets all attributes; the first run reads them from the peers.
    """

    def __init__(
        self,
        *,
        heartbeats: Heartbeats,
        reporter: Reporter,
        providers: Providers,
        prepared_sync: PreparedUnitsSync,
        layout_sync: LayoutSync,
        guests: GuestReports,
        schedule: Schedule,
        machine: Host,
        worker: Worker,
    ) -> None:
        self._heartbeats = heartbeats
        self._host = heartbeats.host
        self._reporter = reporter
        self._providers = providers
        self._prepared_sync = prepared_sync
        self._layout_sync = layout_sync
        self._guests = guests
        self._discoveries = heartbeats.discoveries
        self._schedule = schedule
        self._machine = machine
        self._worker = worker
        self._cache = FactCache()
        #: What the last scan read from the machine; nothing is read before the first.
        self.last_scan = Scan(machine)
        self._reload_requested = threading.Event()
        self._desired: Desired | None = None
        #: The scan that the conductor knows.
        self._reported: Report | None = None
        #: The epoch and the number of failures of the last heartbeat that a run has used.
        self._epoch: int | None = None
        self._failures = 0
        #: What the conductor does not keep of the last report: driver → deployable → reason.
        self._rejected: dict[str, dict[str, str]] = {}

    def reload(self) -> None:
        """Have the next run construct the drivers again; any thread may call the method."""
        self._reload_requested.set()

    @property
    def provider_uuids(self) -> dict[str, str]:
        """The uuids of the host's providers by the name that the driver uses, as last desired."""
        desired = self._desired or self._heartbeats.cache.desired
        return {} if desired is None else desired.tree.uuids()

    def run_once(self) -> None:
        """Run all steps that are due and possible; raise the first error at the end."""
        if self._reload_requested.is_set():
            self._reload_requested.clear()
            self._reload_drivers()
        heartbeat = self._heartbeats.last
        if heartbeat is None:
            return
        if heartbeat.reply is None:
            # Without a conductor, the agent itself reserves the providers that the host lost.
            self._providers.read_claims()
            desired = self._desired or self._heartbeats.cache.desired
            if desired is not None:
                self._providers.reserve_missing(desired, self._scan().deployables())
            return
        reply = heartbeat.reply
        requests = [task for task in self._discoveries.pending() if task in heartbeat.requests]
        last_report = self._reporter.last or self._heartbeats.cache.report

        # 1. Note what happened since the last run.
        if self._epoch not in (None, reply.epoch):
            self._schedule.rerun(Event.NEW_EPOCH)
        self._epoch = reply.epoch
        if self._failures != heartbeat.failures:
            LOG.info(
                "Conductor reachable again: host %s is scanned and compared completely", self._host
            )
            self._failures = heartbeat.failures
            self._providers.forget_reserved()
            self._schedule.rerun(Event.RECONNECTED)

        # 2. Fetch the desired state. The first scan needs it, and Nova's claims: drivers would
        # report devices that guests hold as lost otherwise.
        self._providers.read_claims()
        desired = self._fetch_desired(reply.epoch, reply.desired_generation)
        if requests:
            self._load_drivers(desired)
            self._reporter.forget_idle()
            self._schedule.rerun(Event.DISCOVERY_REQUESTED)

        # 3. Scan the hardware. A fault that is known already does not wait for slow drivers.
        if self._schedule.is_due(Step.SCAN):
            desired = self._report_health(reply, desired)
            if self._heartbeats.last is None or self._heartbeats.last.reply is None:
                return
            reply = self._heartbeats.last.reply
        before = self.last_scan
        report = self._scan()

        # 4. Report it, and answer the discovery requests. Then tell who has the units.
        desired = self._send_report(reply, self._reporter.current(report), desired)
        if self.last_scan is not before:
            self._guests.send(reply.epoch, report)
        self._discoveries.answer(
            requests,
            last_report,
            report,
            rejected=self._rejected,
            refusals=self._reporter.driver_manager.refusals,
        )

        # 5. Start repairs of units whose preparation is not as desired.
        sync_error: exception.CyborgError | None = None
        if self._schedule.is_due(Step.SYNC_UNITS):
            try:
                with self._schedule.run(Step.SYNC_UNITS):
                    self._prepared_sync.sync(self._host, reply.epoch)
            except exception.CyborgError as error:
                sync_error = error

        # 6. Start to divide cards, unless it is not certain who uses them.
        self._divide_cards(desired, report)

        # 7. Publish the desired providers.
        self._publish(reply, desired)
        if sync_error is not None:
            raise sync_error

    def _report_health(self, reply: HeartbeatReply, desired: Desired) -> Desired:
        """Report and publish the health of devices, if nothing else has changed since the report.

        Return what is desired then.
        """
        last = self._reporter.last
        if last is None or last is not self._reported:
            return desired
        report, reported = self._reporter.current(last), self._heartbeats.cache.report
        if reported is None or report == reported or reported.digest() != reply.digest:
            return desired
        desired = self._send_report(reply, report, desired)
        self._publish(reply, desired)
        return self._desired or desired

    def _publish(self, reply: HeartbeatReply, desired: Desired) -> None:
        """Publish the desired providers, unless another agent has taken over in the meantime."""
        if self._providers.root is not None and self._heartbeats.last is not None:
            self._desired = self._providers.publish(
                desired, reply.epoch, known_before=reply.digest is not None
            )

    def _divide_cards(self, desired: Desired, report: Report) -> None:
        """Start to divide cards as configured.

        Nothing happens when another agent has this host, when Nova's claims were not read yet, or
        when a driver was loaded or the hardware changed after the scan.
        """
        superseded, outdated = self._heartbeats.last is None, self._schedule.is_due(Step.SCAN)
        if superseded or outdated or not self._providers.claims_known:
            return
        in_use = desired.tree.deployables() | report.deployables()
        in_use |= {provider.name for provider in desired.obsolete_providers}
        in_use |= {
            deployable.name
            for created in desired.operator_created
            for deployable in created.device.deployables
        }
        retry = self._schedule.is_due(Step.RETRY_LAYOUTS)
        with self._schedule.run(Step.RETRY_LAYOUTS) if retry else contextlib.nullcontext():
            self._layout_sync.sync(self._reporter.layouts, in_use, retry=retry)

    def _fetch_desired(self, epoch: int, generation: int) -> Desired:
        """Return the desired state; fetch it and load its drivers, if its generation is new."""
        previous = self._desired
        if previous is not None and previous.generation == generation:
            return previous
        desired = self._desired = self._heartbeats.desired(epoch)
        self._providers.load(desired)
        self._load_drivers(desired)
        if previous is not None and previous.tree == desired.tree:
            self._schedule.rerun(Event.SAME_TREE)
        return desired

    def _load_drivers(self, desired: Desired) -> None:
        """Load and unload drivers as desired; this run scans their devices."""
        manager = self._reporter.driver_manager
        before = dict(manager.drivers)
        if manager.apply(desired.drivers, desired.operator_created):
            self._schedule.rerun(Event.DRIVERS_CHANGED)
            names = before.keys() | manager.drivers.keys()
            changed = {name for name in names if before.get(name) is not manager.drivers.get(name)}
            last_report = self._reporter.last or self._heartbeats.cache.report
            self._discoveries.drivers_changed(changed, last_report)

    def _reload_drivers(self) -> None:
        """Construct the drivers again, and try those that could not be loaded before.

        The rules for traits are read again, too.
        """
        reloaded = self._reporter.reload_rules()
        if self._reporter.driver_manager.reload() or reloaded:
            self._reporter.forget_idle()
            self._schedule.rerun(Event.DRIVERS_CHANGED)
        if self._desired is not None:
            self._load_drivers(self._desired)

    def _scan(self) -> Report:
        """Return the report of the host; call the drivers if the scan is due."""
        last = self._reporter.last
        if last is not None and not self._schedule.is_due(Step.SCAN):
            return last
        cache = self._heartbeats.cache
        desired = self._desired or cache.desired
        with self._schedule.run(Step.SCAN):
            self.last_scan = Scan(
                self._machine,
                claims=self._providers.claims,
                managed_deployables=desired.tree.deployables() if desired else frozenset(),
                worker=self._worker,
                cache=self._cache,
            )
            report = self._reporter.scan(self.last_scan)
        if last is None and cache.report is not None:
            for name in sorted(cache.report.deployables() - report.deployables()):
                LOG.warning(
                    "Deployable %s of the last report is missing on host %s", name, self._host
                )
        return report

    def _send_report(self, reply: HeartbeatReply, report: Report, desired: Desired) -> Desired:
        """Send the report unless the conductor has it already; return what is desired then."""
        digest = report.digest()
        if digest == reply.digest:
            self._heartbeats.cache.store(report=report)
            self._reported = self._reporter.last
            self._reporter.acknowledge(report)
            return desired
        acknowledged = self._heartbeats.report(reply.epoch, report, digest)
        self._reported = self._reporter.last
        self._reporter.acknowledge(report)
        self._schedule.rerun(Event.REPORTED)
        devices = sum(len(driver.devices) for driver in report.drivers)
        LOG.info("Reported %d device(s) of host %s", devices, self._host)
        for name, reason in acknowledged.refused.items():
            LOG.warning(
                "Deployable %s of host %s refused by the conductor: %s", name, self._host, reason
            )
        self._rejected = report.kept_out(acknowledged)
        return self._fetch_desired(reply.epoch, acknowledged.desired_generation)

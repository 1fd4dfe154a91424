# SPDX-License-Identifier: Apache-2.0
"""What the agent itself observes of the health of devices, whatever their driver.

These are the state of PCI Express functions, events of the kernel, errors in its log, and prepares
that failed. A new error stays a finding for ``hold`` seconds after it was last seen, and until the
conductor has been told of it. So the conductor learns of every error, also of one that happened
while no agent ran. A fault whose entry in the health policy has ``until`` stays, also in later
processes, until its recovery was seen: an event of the kernel, a reset by the agent, a boot, or the
word of an operator.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cyborg import exception
from cyborg.agent.state_store import HealthBaselines, LastingFaults
from cyborg.drivers import kernel_log, pcie_health
from cyborg.drivers.guests import boot_id
from cyborg.drivers.health_policy import HealthPolicy
from cyborg.drivers.host import Host
from cyborg.drivers.pcie_health import Baseline, PcieState
from cyborg.drivers.privileged.actions import ReadDeviceErrors
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device
from cyborg.model.health import Finding, Judgement, Recovery, Signal
from cyborg.model.pci import PciAddress
from cyborg.model.report import Report

LOG = logging.getLogger(__name__)

#: Seconds for which an error stays a finding after it was last seen.
HOLD: Final = 60.0
#: Seconds after which the log of the kernel is read again if that failed.
_RETRY: Final = 60.0
_ADDRESS: Final = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")
#: Fields of events that tell of a fault, with the kind and the signal of the policy.
_FIELDS: Final = {"ERROR_EVENT": ("pci", "recovery"), "WEDGED": ("drm", "wedged")}
#: What a kernel event about a PCI function tells of its recovery, by action.
_RECOVERIES: Final = {"bind": (Recovery.BIND,), "add": (Recovery.REPLUG,)}

Place = tuple[str, str]
#: In place of the driver: the device is a GPU that no driver has reported since its error.
_NO_DRIVER: Final = ""


@dataclass
class _Incident:
    """A finding about something that happened at one moment."""

    finding: Finding
    at: float
    reported: bool = False


@dataclass
class _Record:
    """What is known of a device.

    ``baseline`` None: it is no PCI function, as far as the agent knows. ``pcie`` are the findings
    about its last state, ``counters`` are those that it last showed; ``errors_at`` is the time when
    they last rose.
    """

    baseline: Baseline | None = None
    state: PcieState | None = None
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    pcie: tuple[Finding, ...] = ()
    errors_at: float | None = None
    reported: bool = False
    incidents: dict[str, _Incident] = field(default_factory=dict)
    failed_prepares: int = 0


class Findings:
    """Keep the findings about the devices of this host; any thread may call it.

    ``failed_prepares`` is how many prepares must fail in a row to count; 0: none do.
    """

    def __init__(
        self,
        *,
        machine: Host,
        policy: HealthPolicy,
        baselines: HealthBaselines,
        lasting: LastingFaults,
        failed_prepares: int,
        worker: Worker,
        hold: float = HOLD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = machine
        self._policy = policy
        self._baselines = baselines
        self._failed_prepares = failed_prepares
        self._hold = hold
        self._clock = clock
        self._worker = worker
        self._lasting = lasting
        self._boot = boot_id(machine)
        self._lock = threading.Lock()
        #: One thread at a time reads the log, and one writes to the disk; no reader waits for it.
        self._log_lock = threading.Lock()
        self._store_lock = threading.Lock()
        #: When the log of the kernel is read again after a failure.
        self._deaf_until: float | None = None
        self._deaf_warned = False
        #: Until when an error that repeats has its devices not checked, by slot and code.
        self._quiet_until: dict[tuple[str, str], float] = {}
        #: Whether a finding has changed since the last check.
        self._news = False
        self._records: dict[Place, _Record] = {
            place: _Record(baseline) for place, baseline in baselines.load().items()
        }
        self._unread, faults = lasting.load(self._boot)
        for place, signal in faults:
            self._note_incident(place, signal, store=False)
        #: What was written to the disk, the faults that it was tried with last, and the time from
        #: which on it is tried without another fault.
        self._stored: tuple[int, Sequence[tuple[Place, Signal]]] = self._unread, faults
        self._attempted: Sequence[tuple[Place, Signal]] = faults
        self._store_at = self._clock() + hold

    def of(self, place: Place) -> tuple[Finding, ...] | None:
        """Return the findings about a device; None if the agent cannot check it itself."""
        with self._lock:
            record = self._records.get(place)
            if record is None or (record.state is None and not record.incidents):
                return None
            incidents = (incident.finding for incident in record.incidents.values())
            return (*record.pcie, *incidents)

    def check(self, devices: Iterable[tuple[str, Device]]) -> bool:
        """Read the PCI functions of these devices; return whether a finding has changed.

        What has changed by an event or an error in the log since the last call counts, too.
        """
        stored = False
        with self._lock:
            changed, self._news = self._news, False
        for place in self._lasting.take_recovered():
            changed |= self.note_recovery(place, *Recovery)
        for driver, device in devices:
            state = self._read(device.key)
            with self._lock:
                record = self._records.setdefault((driver, device.key), _Record())
                before = record.pcie, record.state is None, tuple(record.incidents)
                if state is not None:
                    stored |= self._note(record, state)
                self._expire(record)
                after = record.pcie, record.state is None, tuple(record.incidents)
                changed |= before != after
        if stored:
            with self._lock:
                baselines = {
                    place: record.baseline
                    for place, record in self._records.items()
                    if record.baseline is not None
                }
            self._baselines.store(baselines)
        return changed

    def unchecked(self, report: Report) -> list[tuple[str, Device]]:
        """Return the devices of a report that were not checked since the start."""
        with self._lock:
            return [
                (driver.driver, device)
                for driver in report.drivers
                for device in driver.devices
                if (driver.driver, device.key) not in self._records
                or self._records[driver.driver, device.key].state is None
            ]

    def note_events(
        self, events: Sequence[Uevent], devices: Collection[tuple[str, Device]]
    ) -> list[tuple[str, Device]]:
        """Note the faults that events tell; return the devices that the events are about.

        An event about a bridge is about all devices below it that are known by their topology. A
        device that ``devices`` does not have may recover as well: one that was removed is not
        listed when it is added again.
        """
        recovering = any(_recoveries(event) for event in events)
        # The recovery ends the errors that the log already has.
        logged = self.read_log(devices) if recovering else []
        affected = {(driver, device.key): device for driver, device in logged}
        by_address: dict[str, list[tuple[str, Device]]] = {}
        for driver, device in devices:
            topology = device.topology
            above = () if topology is None else (topology.root_port, topology.switch)
            for address in {device.key, *above} - {None}:
                by_address.setdefault(str(address), []).append((driver, device))
        for event in events:
            named = set(_ADDRESS.findall(event.devpath)[-1:])
            for place in self._places(named):
                self._note_news(self.note_recovery(place, *_recoveries(event)))
            for driver, device in (item for name in named for item in by_address.get(name, ())):
                affected[driver, device.key] = device
                for name, (kind, signal) in _FIELDS.items():
                    if name in event.fields:
                        text = f"kernel event {name}={event.fields[name]}"
                        fault = Signal(kind, signal, event.fields[name], text)
                        self._note_news(self._note_incident((driver, device.key), fault))
        return [(driver, device) for (driver, _), device in affected.items()]

    def read_log(self, devices: Collection[tuple[str, Device]]) -> list[tuple[str, Device]]:
        """Note the errors in the log of the kernel since the last call; return their devices.

        An error of a GPU is also one of its virtual functions. While no driver reports a device of
        the GPU, its errors wait for the first device that ``devices`` shows. Where the log cannot
        be read although a driver of the host may write such errors, a warning says so once. The
        next attempt is a minute later.
        """
        with self._log_lock:
            affected = self._claim_errors(devices, self._read_errors())
            self._store_lasting()
        return affected

    def _read_errors(self) -> set[str]:
        """Note the errors in the log as those of GPUs without a driver; return the slots to check.

        A device is checked at once after an error of the policy's condition ``ignore``, too: it may
        tell that a driver has more to say. An error that repeats has it checked once a minute.
        """
        now, slots = self._clock(), set[str]()
        if self._deaf_until is not None and now < self._deaf_until:
            return slots
        try:
            errors = self._machine.privileged.run(ReadDeviceErrors(self._unread))
        except exception.HostError as error:
            if not self._deaf_warned and _may_log_errors(self._machine):
                self._deaf_warned = True
                LOG.warning(
                    "The log of the kernel cannot be read, so errors of devices that only the "
                    "kernel logs, such as an Xid, are not noticed: %s",
                    error,
                )
            self._deaf_until = now + _RETRY
            return slots
        self._deaf_until, self._deaf_warned = None, False
        for logged in errors:
            text = f"{logged.signal.capitalize()} {logged.code}"
            fault = Signal(logged.kind, logged.signal, logged.code, text)
            self._note_incident((_NO_DRIVER, f"{logged.slot}.0"), fault, store=False)
            if now >= self._quiet_until.get((logged.slot, logged.code), now):
                self._quiet_until[logged.slot, logged.code] = now + self._hold
                slots.add(logged.slot)
        if errors:
            with self._lock:
                self._unread = errors[-1].sequence + 1
        return slots

    def _claim_errors(
        self, devices: Collection[tuple[str, Device]], slots: Collection[str]
    ) -> list[tuple[str, Device]]:
        """Give errors that wait for a device to all devices of their GPU.

        Return the devices that have a new finding, and those in these slots.
        """
        affected = []
        with self._lock:
            waiting = {
                _slot(key): record.incidents
                for (driver, key), record in self._records.items()
                if driver == _NO_DRIVER and record.incidents
            }
            claimed = set[str]()
            for driver, device in devices if waiting or slots else ():
                siblings = () if device.topology is None else device.topology.siblings
                own = {_slot(address) for address in (device.key, *siblings)}
                new = False
                for slot in own & waiting.keys():
                    record = self._records.setdefault((driver, device.key), _Record())
                    for name, incident in waiting[slot].items():
                        new |= self._add(record, name, incident.finding)
                    claimed.add(slot)
                self._news |= new
                if new or not own.isdisjoint(slots):
                    affected.append((driver, device))
            for slot in claimed:
                del self._records[_NO_DRIVER, f"{slot}.0"]
        return affected

    def note_judgement(self, place: Place, judgement: Judgement) -> None:
        """Keep those of a driver's findings that last."""
        for finding in judgement.findings:
            if finding.until and finding.signal is not None:
                self._note_incident(place, finding.signal)

    def note_recovery(self, place: Place, *recoveries: Recovery) -> bool:
        """End the faults of a device that one of these recovers; return whether there were some."""
        ended = False
        with self._lock:
            # Errors that wait for a report of the device end with those that it has.
            for holder in (place, (_NO_DRIVER, place[1])):
                record = self._records.get(holder, _Record())
                lasting = {
                    name: incident
                    for name, incident in record.incidents.items()
                    if incident.finding.until.isdisjoint(recoveries)
                }
                ended |= lasting.keys() != record.incidents.keys()
                record.incidents = lasting
        if ended:
            LOG.info("Device %s of driver %s has recovered", place[1], place[0])
            self._store_lasting()
        return ended

    def note_prepare(self, place: Place, fault: str | None) -> bool:
        """Note the result of a prepare, None: it succeeded; return whether a finding is new."""
        with self._lock:
            record = self._records.setdefault(place, _Record())
            record.failed_prepares = 0 if fault is None else record.failed_prepares + 1
            count = record.failed_prepares
        if not 0 < self._failed_prepares <= count:
            return False
        # One finding for all failures: its text must not change with each.
        text = f"{self._failed_prepares} or more prepares failed in a row: {fault}"
        return self._note_incident(place, Signal("agent", "prepare", "failed", text))

    def acknowledge(self, report: Report) -> None:
        """Note that the conductor has this report: its findings need not be kept any longer."""
        with self._lock:
            for driver in report.drivers:
                for health in driver.health:
                    record = self._records.get((driver.driver, health.key))
                    if record is None:
                        continue
                    reasons = set(health.reasons)
                    record.reported = all(reasons.issuperset(item.reasons) for item in record.pcie)
                    for incident in record.incidents.values():
                        incident.reported |= reasons.issuperset(incident.finding.reasons)

    def _note_news(self, changed: bool) -> None:
        with self._lock:
            self._news |= changed

    def _places(self, keys: Collection[str]) -> list[Place]:
        """Return the devices with these keys of which something is known, listed or not."""
        with self._lock:
            return [place for place in self._records if place[1] in keys]

    def _read(self, key: str) -> PcieState | None:
        """Return the state of a PCI function; None for another device, and without an answer."""
        try:
            address = str(PciAddress.parse(key))
        except ValueError:
            return None
        try:
            # The scan has another key: where one of the two hangs, the other may get an answer.
            return self._worker.read(
                f"PCIe state of {address}", lambda: pcie_health.read(self._machine, address)
            )
        except exception.HostError as error:
            LOG.debug("State of PCI function %s is not known: %s", address, error)
            return None

    def _note(self, record: _Record, state: PcieState) -> bool:
        """Take over a new state; return whether the baseline has changed."""
        if record.baseline is None and state.access == "gone":
            # A device whose key looks like an address: it was never seen on the bus.
            return False
        now, previous = self._clock(), record.state
        record.state = state
        stored = record.baseline
        baseline = Baseline.of(state) if stored is None else stored.after(state)
        if stored is None or baseline.counters is not stored.counters:
            record.errors_at = None
        elif state.access is None:
            # The counters of the last state that had some; a new process compares with the disk.
            last = record.counters if previous is not None else baseline.counters
            if any(count > last.get(key, 0) for key, count in state.counters.items()):
                record.errors_at, record.reported = now, False
        if (
            record.errors_at is not None
            and record.reported
            and now - record.errors_at >= self._hold
        ):
            baseline, record.errors_at = replace(baseline, counters=record.counters), None
        if state.access is None:
            record.counters = state.counters
        before = record.pcie
        record.pcie = self._policy.judge(pcie_health.signals(baseline, state)).findings
        record.reported &= before == record.pcie
        record.baseline = baseline
        return baseline != stored

    def _expire(self, record: _Record) -> None:
        now = self._clock()
        record.incidents = {
            name: incident
            for name, incident in record.incidents.items()
            if incident.finding.until or not incident.reported or now - incident.at < self._hold
        }

    def _note_incident(self, place: Place, signal: Signal, *, store: bool = True) -> bool:
        """Note something that happened at one moment; return whether it is a new finding.

        A fault that lasts is written to the disk at once if ``store``; otherwise the caller does it
        when it has noted all.
        """
        findings = self._policy.judge([signal]).findings
        if not findings:
            return False
        # A later event about a recovery replaces an earlier one; a fault that lasts stays.
        name = f"{signal.kind} {signal.name}"
        name = f"{name} {signal.code}" if findings[0].until else name
        with self._lock:
            new = self._add(self._records.setdefault(place, _Record()), name, findings[0])
        if findings[0].until and new and store:
            self._store_lasting()
        return new

    def _add(self, record: _Record, name: str, finding: Finding) -> bool:
        """Add the finding about an incident to a record; return whether it is new."""
        previous = record.incidents.get(name)
        repeated = previous is not None and previous.finding == finding
        reported = repeated and previous is not None and previous.reported
        record.incidents[name] = _Incident(finding, self._clock(), reported)
        return not repeated

    def _store_lasting(self) -> None:
        """Write the faults that last to the disk if they have changed.

        How far the log was read is written with them, and alone once in ``hold`` seconds: what the
        next process reads again then are errors that would still be findings.
        """
        with self._store_lock:
            with self._lock:
                unread = self._unread
                faults = [
                    (place, incident.finding.signal)
                    for place, record in self._records.items()
                    for incident in record.incidents.values()
                    if incident.finding.until and incident.finding.signal is not None
                ]
            now, changed = self._clock(), faults != self._attempted
            if (unread, faults) == self._stored or not (changed or now >= self._store_at):
                return
            self._attempted, self._store_at = faults, now + self._hold
            if self._lasting.store(self._boot, unread, faults):
                self._stored = unread, faults


def _recoveries(event: Uevent) -> tuple[Recovery, ...]:
    """Return what an event tells of the recovery of its PCI function.

    Nothing has happened to the function if a program requested the event from the kernel (Linux:
    Documentation/ABI/testing/sysfs-uevent, SYNTH_UUID).
    """
    in_bus, real = event.fields.get("SUBSYSTEM") == "pci", "SYNTH_UUID" not in event.fields
    return _RECOVERIES.get(event.action, ()) if in_bus and real else ()


def _may_log_errors(machine: Host) -> bool:
    """Return whether a driver that writes errors into the log of the kernel has a device."""
    for name in kernel_log.DRIVERS:
        # Without the directory the driver is not loaded.
        with contextlib.suppress(exception.HostError):
            if any(":" in entry for entry in machine.list_dir(f"/sys/bus/pci/drivers/{name}")):
                return True
    return False


def _slot(address: str) -> str:
    """Return a PCI address without its function."""
    return address.rpartition(".")[0]

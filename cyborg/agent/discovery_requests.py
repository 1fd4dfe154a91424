# SPDX-License-Identifier: Apache-2.0
"""Discovery requests of the conductor: an RPC thread adds them, the agent loop answers them.

The conductor polls: it repeats a request with the same id until the request is answered. Answers
are remembered, so that the conductor can fetch an answer again that was lost on the bus.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Any

from cyborg.model.device import Backend, Device
from cyborg.model.report import DriverReport, DriverState, Report, count_changes
from cyborg.model.work import BackendFindings, Discovered, DiscoveryTask, DriverFindings

#: How many requests are remembered; the conductor repeats a request within seconds.
_MAX_REQUESTS = 100


class DiscoveryRequests:
    """The requests and their answers; each call waits up to ``timeout`` seconds for an answer."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, tuple[DiscoveryTask, Future[Discovered]]] = OrderedDict()
        #: The reports of drivers before they were loaded or unloaded, until a request is answered.
        self._old_reports: dict[str, DriverReport] = {}

    def request(self, task: DiscoveryTask, *, wake: Callable[[], None]) -> Discovered:
        """Return the answer to a request; ``done`` is False if there is none in time.

        For a new request, call ``wake``, which makes the agent loop run at once.
        """
        with self._lock:
            is_new = task.request_key not in self._requests
            _, answer = self._requests.setdefault(task.request_key, (task, Future()))
            while len(self._requests) > _MAX_REQUESTS:
                self._requests.popitem(last=False)
        if is_new:
            wake()
        try:
            return answer.result(self._timeout)
        except FutureTimeout:
            return Discovered(task.request_key, done=False)

    def pending(self) -> list[DiscoveryTask]:
        """Return the requests without an answer, the oldest first."""
        with self._lock:
            return [task for task, answer in self._requests.values() if not answer.done()]

    def drivers_changed(self, drivers: Collection[str], last_report: Report | None) -> None:
        """Remember what drivers reported before they were loaded or unloaded.

        The agent loop may load a driver and report its devices before the conductor requests the
        discovery that belongs to this change. Its answer still counts the devices as new.
        """
        old_reports = _by_driver(last_report)
        for name in drivers:
            empty = DriverReport(name, DriverState.STOPPED)
            self._old_reports.setdefault(name, old_reports.get(name, empty))

    def answer(
        self,
        tasks: Sequence[DiscoveryTask],
        before: Report | None,
        after: Report,
        *,
        rejected: Mapping[str, Mapping[str, str]],
        refusals: Mapping[str, str],
    ) -> None:
        """Answer requests with the findings of all enabled drivers, or of the requested one.

        ``rejected`` are the deployables of each driver that the conductor does not keep,
        ``refusals`` the drivers whose requested state cannot be reached; both with the reason.
        """
        old = _by_driver(before) | self._old_reports
        findings = {
            report.driver: _driver_findings(
                old.get(report.driver), report, rejected.get(report.driver, {})
            )
            for report in after.drivers
            if report.state is not DriverState.STOPPED
        }
        for name, reason in refusals.items():
            refused = findings.get(name, DriverFindings(name, DriverState.STOPPED))
            findings[name] = replace(refused, accepted=False, error=reason)
        for task in tasks:
            if task.driver is None:
                requested = tuple(findings.values())
            else:
                missing = DriverFindings(
                    task.driver, DriverState.STOPPED, error="it is not loaded here"
                )
                requested = (findings.get(task.driver, missing),)
            with self._lock:
                request = self._requests.get(task.request_key)
            if request is not None and not request[1].done():
                request[1].set_result(Discovered(task.request_key, drivers=requested))
            for name in list(self._old_reports) if task.driver is None else [task.driver]:
                self._old_reports.pop(name, None)


def _by_driver(report: Report | None) -> dict[str, DriverReport]:
    return {} if report is None else {driver.driver: driver for driver in report.drivers}


def _driver_findings(
    before: DriverReport | None, after: DriverReport, rejected: Mapping[str, str]
) -> DriverFindings:
    if after.state is not DriverState.READY:
        # The driver reported nothing about its devices.
        return DriverFindings(after.driver, after.state, error=after.error)
    before = before or DriverReport(after.driver, DriverState.STOPPED)
    current = {backend.name: backend for backend in after.backends or ()}
    # A backend that the driver lost is STOPPED.
    lost = {
        backend.name: Backend(backend.name, DriverState.STOPPED)
        for backend in before.backends or ()
    }
    backends = []
    for name, backend in sorted((lost | current).items()):
        old = [device for device in before.devices if device.backend == name]
        new = [device for device in after.devices if device.backend == name]
        counts = _counts(old, new, rejected)
        backends.append(BackendFindings(name, backend.state, backend.services, **counts))
    return DriverFindings(
        after.driver,
        after.state,
        **_counts(before.devices, after.devices, rejected),
        error=after.error or "; ".join(sorted(set(rejected.values()))) or None,
        backends=tuple(backends),
    )


def _counts(
    before: Sequence[Device], after: Sequence[Device], rejected: Mapping[str, str]
) -> dict[str, Any]:
    failed = sum(
        any(deployable.name in rejected for deployable in device.deployables) for device in after
    )
    return {**vars(count_changes(before, after)), "failed": failed}

# SPDX-License-Identifier: Apache-2.0
"""What the conductor wants looked at now: asked in one thread, answered by the heart's next round.

Asking again with the same id is how one waits; what ended is remembered for a while, so that a
lost answer is simply given again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Any

from cyborg.model.device import Backend, Device
from cyborg.model.report import DriverReport, DriverState, Report, changes
from cyborg.model.work import BackendFindings, Discovered, DiscoveryTask, DriverFindings

#: How many answered discoveries are remembered; a conductor asks again within seconds.
_REMEMBERED = 100


class DiscoveryRequests:
    """``patience`` is how long, in seconds, one question waits for its answer."""

    def __init__(self, *, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, tuple[DiscoveryTask, Future[Discovered]]] = OrderedDict()
        #: What drivers had told before they changed; whoever ordered that has not asked yet.
        self._before: dict[str, DriverReport] = {}

    def ask(self, task: DiscoveryTask, *, wake: Callable[[], None]) -> Discovered:
        """Have the heart look; ``wake`` makes it beat at once."""
        with self._lock:
            known = self._asked.get(task.operation)
            _, answer = self._asked.setdefault(task.operation, (task, Future()))
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
        if known is None:
            wake()
        try:
            return answer.result(self._patience)
        except FutureTimeout:
            return Discovered(task.operation, done=False)

    def waiting(self) -> list[DiscoveryTask]:
        """What has been asked and not answered, the oldest first."""
        with self._lock:
            return [task for task, answer in self._asked.values() if not answer.done()]

    def changing(self, drivers: Collection[str], before: Report | None) -> None:
        """Remember what drivers had told before they were loaded or dropped.

        The heart may have done that by itself, and reported, before it is asked what came of it.
        """
        known = _by_name(before)
        for name in drivers:
            nothing = DriverReport(name, DriverState.STOPPED)
            self._before.setdefault(name, known.get(name, nothing))

    def answer(
        self,
        tasks: Sequence[DiscoveryTask],
        before: Report | None,
        after: Report,
        *,
        kept_out: Mapping[str, Mapping[str, str]],
        refusals: Mapping[str, str],
    ) -> None:
        """Tell whoever asked what each driver in force found, or the part that was asked for.

        ``kept_out`` are the deployables of each driver that the conductor does not keep,
        ``refusals`` the drivers of which something was wanted that cannot be done; both with the
        reason.
        """
        old = _by_name(before) | self._before
        found = _all_findings(old, after, kept_out=kept_out, refusals=refusals)
        for task in tasks:
            with self._lock:
                known = self._asked.get(task.operation)
            if known is not None and not known[1].done():
                known[1].set_result(Discovered(task.operation, drivers=_wanted(task, found)))
            for name in list(self._before) if task.driver is None else [task.driver]:
                self._before.pop(name, None)


def _by_name(report: Report | None) -> dict[str, DriverReport]:
    return {} if report is None else {one.driver: one for one in report.drivers}


def _all_findings(
    old: Mapping[str, DriverReport],
    after: Report,
    *,
    kept_out: Mapping[str, Mapping[str, str]],
    refusals: Mapping[str, str],
) -> list[DriverFindings]:
    found = {
        one.driver: _findings(old.get(one.driver), one, kept_out.get(one.driver, {}))
        for one in after.drivers
        if one.state is not DriverState.STOPPED
    }
    for name, reason in refusals.items():
        known = found.get(name, DriverFindings(name, DriverState.STOPPED))
        found[name] = replace(known, accepted=False, error=reason)
    return list(found.values())


def _findings(
    before: DriverReport | None, after: DriverReport, kept_out: Mapping[str, str]
) -> DriverFindings:
    if after.state is not DriverState.READY:
        # Nothing is said about its devices.
        return DriverFindings(after.driver, after.state, error=after.error)
    before = before or DriverReport(after.driver, DriverState.STOPPED)
    return DriverFindings(
        after.driver,
        after.state,
        **_counts(before.devices, after.devices, kept_out),
        error=after.error or "; ".join(sorted(set(kept_out.values()))) or None,
        backends=_backends(before, after, kept_out),
    )


def _backends(
    before: DriverReport, after: DriverReport, kept_out: Mapping[str, str]
) -> tuple[BackendFindings, ...]:
    """What was found on each backend, those included that are gone."""
    there = {one.name: one for one in after.backends or ()}
    gone = {one.name: Backend(one.name, DriverState.STOPPED) for one in before.backends or ()}
    return tuple(
        BackendFindings(
            name,
            one.state,
            one.services,
            **_counts(_on(name, before.devices), _on(name, after.devices), kept_out),
        )
        for name, one in sorted((gone | there).items())
    )


def _on(backend: str, devices: Sequence[Device]) -> list[Device]:
    return [one for one in devices if one.backend == backend]


def _counts(
    before: Sequence[Device], after: Sequence[Device], kept_out: Mapping[str, str]
) -> dict[str, Any]:
    failed = sum(any(one.name in kept_out for one in device.deployables) for device in after)
    return {**vars(changes(before, after)), "failed": failed}


def _wanted(task: DiscoveryTask, drivers: Sequence[DriverFindings]) -> tuple[DriverFindings, ...]:
    if task.driver is None:
        return tuple(drivers)
    mine = tuple(one for one in drivers if one.name == task.driver)
    return mine or (
        DriverFindings(task.driver, DriverState.STOPPED, error="it is not loaded here"),
    )

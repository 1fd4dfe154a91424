# SPDX-License-Identifier: Apache-2.0
"""What the conductor wants looked at now: asked in one thread, answered by the heart's next round.

Asking again with the same id is how one waits; what ended is remembered for a while, so that a
lost answer is simply given again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

from cyborg.model.report import DriverReport, DriverState, Report, changes
from cyborg.model.work import Discovered, DiscoveryTask, DriverFindings

#: How many answered discoveries are remembered; a conductor asks again within seconds.
_REMEMBERED = 100


class Discoveries:
    """``patience`` is how long, in seconds, one question waits for its answer."""

    def __init__(self, *, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, tuple[DiscoveryTask, Future[Discovered]]] = OrderedDict()

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

    def answer(self, task: DiscoveryTask, drivers: Sequence[DriverFindings]) -> None:
        """Give what was found for a task, or the part of it that was asked for."""
        with self._lock:
            known = self._asked.get(task.operation)
        if known is not None and not known[1].done():
            known[1].set_result(Discovered(task.operation, drivers=_wanted(task, drivers)))


def findings(
    before: Report | None,
    after: Report,
    *,
    kept_out: Mapping[str, str],
    refusals: Mapping[str, str],
) -> list[DriverFindings]:
    """What each driver that is in force on a host found.

    ``kept_out`` are deployables that the conductor does not keep, ``refusals`` the drivers of
    which something was wanted that cannot be done; both with the reason.
    """
    old = {} if before is None else {one.driver: one for one in before.drivers}
    found = {
        one.driver: _findings(old.get(one.driver), one, kept_out)
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
    told = changes(before, after)
    failed = sum(
        any(one.name in kept_out for one in device.deployables) for device in after.devices
    )
    return DriverFindings(after.driver, after.state, **vars(told), failed=failed, error=after.error)


def _wanted(task: DiscoveryTask, drivers: Sequence[DriverFindings]) -> tuple[DriverFindings, ...]:
    if task.driver is None:
        return tuple(drivers)
    mine = tuple(one for one in drivers if one.name == task.driver)
    return mine or (
        DriverFindings(task.driver, DriverState.STOPPED, error="it is not loaded here"),
    )

# SPDX-License-Identifier: Apache-2.0
"""When the agent's loop runs the steps that it leaves out of most of its runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Final


class Step(Enum):
    """A step of a run that is left out until its interval is over."""

    SCAN = auto()
    SYNC_UNITS = auto()
    CHECK_PLACEMENT = auto()
    RETRY_LAYOUTS = auto()


class Event(Enum):
    """A reason to run steps again before their interval is over."""

    DISCOVERY_REQUESTED = auto()
    #: An operation or a kernel event: the hardware of the host may have changed.
    HARDWARE_CHANGED = auto()
    #: Nova offers other functions than before: they must be refused before anything is published.
    CLAIMS_CHANGED = auto()
    DRIVERS_CHANGED = auto()
    #: The conductor has accepted a report: devices that returned may have lost their preparation.
    REPORTED = auto()
    #: Another agent had this host in the meantime, and may have changed Placement.
    NEW_EPOCH = auto()
    #: The desired state has a new generation, but the same tree: Placement does not show it.
    SAME_TREE = auto()
    #: The conductor answers again.
    RECONNECTED = auto()


_RERUN: Final[Mapping[Event, frozenset[Step]]] = {
    Event.DISCOVERY_REQUESTED: frozenset({Step.SCAN}),
    Event.HARDWARE_CHANGED: frozenset({Step.SCAN}),
    Event.CLAIMS_CHANGED: frozenset({Step.SCAN}),
    Event.DRIVERS_CHANGED: frozenset({Step.SCAN, Step.SYNC_UNITS}),
    Event.REPORTED: frozenset({Step.SYNC_UNITS}),
    Event.NEW_EPOCH: frozenset({Step.CHECK_PLACEMENT}),
    Event.SAME_TREE: frozenset({Step.SYNC_UNITS, Step.CHECK_PLACEMENT}),
    Event.RECONNECTED: frozenset(Step),
}


class Schedule:
    """The steps that must run: all at first, later after their interval or an event.

    The intervals are in seconds of ``clock``, from the end of a step to its next run. ``wake``
    starts a run of the loop. Any thread may call ``rerun`` and ``rescan``.
    """

    def __init__(
        self,
        *,
        scan: float,
        full_check: float,
        clock: Callable[[], float],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._intervals = {
            Step.SCAN: scan,
            Step.SYNC_UNITS: full_check,
            Step.CHECK_PLACEMENT: full_check,
            Step.RETRY_LAYOUTS: full_check,
        }
        self._clock = clock
        self._wake = wake
        self._requested = set(Step)
        self._ended_at = dict.fromkeys(Step, clock())

    def rerun(self, event: Event) -> None:
        """Make the steps that an event affects due."""
        self._requested.update(_RERUN[event])

    def rescan(self) -> None:
        """Scan the hardware now, because it may have changed."""
        self.rerun(Event.HARDWARE_CHANGED)
        self._wake()

    def is_due(self, step: Step) -> bool:
        """Return whether a step must run."""
        return (
            step in self._requested or self._clock() - self._ended_at[step] >= self._intervals[step]
        )

    @contextlib.contextmanager
    def run(self, step: Step) -> Iterator[None]:
        """Run a step in a with statement.

        The step stays due if it raises an error, or if an event comes while it runs.
        """
        self._requested.discard(step)
        try:
            yield
        except BaseException:
            self._requested.add(step)
            raise
        self._ended_at[step] = self._clock()

# SPDX-License-Identifier: Apache-2.0
"""Limit how long the calls of a driver may take, so that one that blocks ends its test only."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import pytest

from cyborg.drivers.base import CleanStep, Driver
from cyborg.drivers.worker import Worker
from cyborg.model.health import Signal

P = ParamSpec("P")
T = TypeVar("T")

#: Whether a limited call is in progress: the methods that a driver calls itself belong to it.
_LIMITED: ContextVar[bool] = ContextVar("limited", default=False)
#: The methods of the interface.
_METHODS = [name for name, value in vars(Driver).items() if callable(value) and name[0] != "_"]


class Limit:
    """Limits each call to ``seconds`` of real time; ``worker`` carries the calls out."""

    def __init__(self, seconds: float, worker: Worker) -> None:
        self._seconds = seconds
        self._worker = worker

    def driver(self, driver: Driver) -> Driver:
        """Return the driver with the limit for each of its methods and of its clean steps."""
        signals, clean_steps = driver.signals, driver.clean_steps

        @functools.wraps(signals)
        def read_signals(*args: Any, **kwargs: Any) -> Iterator[Signal] | list[Signal]:
            # A generator does nothing before its first value, so its values belong to the call.
            return list(signals(*args, **kwargs))

        @functools.wraps(clean_steps)
        def limited_steps(*args: Any, **kwargs: Any) -> Sequence[CleanStep]:
            return [self._step(step) for step in clean_steps(*args, **kwargs)]

        own: dict[str, Callable[..., Any]] = {"signals": read_signals, "clean_steps": limited_steps}
        for name in _METHODS:
            method = own.get(name, getattr(driver, name))
            setattr(driver, name, self.call(f"{name}()", method))
        return driver

    def call(self, text: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with the limit; ``text`` names it in the failure of the test."""

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            if _LIMITED.get():
                return function(*args, **kwargs)

            def run() -> T:
                _LIMITED.set(True)
                return function(*args, **kwargs)

            call = self._worker.submit(object(), text, run)
            self._worker.wait([call], self._seconds)
            if not call.done():
                pytest.fail(
                    f"{text} did not end within {self._seconds:g} s (longest_call), and nothing on "
                    "a simulated host takes time: wait with self.host.pause(), and reach the "
                    "machine only through self.host, whose commands and sockets have a timeout"
                )
            return call.result()

        return limited

    def _step(self, step: CleanStep) -> CleanStep:
        work = step.work
        return replace(step, work=self.call(step.name, work)) if callable(work) else step

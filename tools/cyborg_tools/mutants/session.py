# SPDX-License-Identifier: Apache-2.0
"""Run tests against mutants in forked processes: the tests are imported and collected once."""

import contextlib
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, Final

import pytest

from cyborg_tools.mutants.mutations import Code, Mutant

KILLED: Final = "killed"
SURVIVED: Final = "survived"
NOT_RUN: Final = "no test runs it"
#: Seconds that the tests of a mutant may take besides ten times their usual time.
_PATIENCE: Final = 30.0
#: The type of functions with a decorator of functools that remembers their results.
_CACHE: Final = type(functools.cache(len))
Lines = dict[str, dict[int, list[str]]]


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    verdict: str


class MutationRun:
    """A pytest plug-in that runs the collected tests against mutants instead of once.

    It first runs all tests as they are, to learn which lines each of them executes. For each mutant
    only the tests that execute its line are run, the quickest first, until one fails. ``report`` is
    called with each result, ``jobs`` processes run at a time.
    """

    def __init__(
        self, mutants: Sequence[Mutant], *, jobs: int, report: Callable[[Result], None]
    ) -> None:
        self._mutants = mutants
        self._files = {str(mutant.path) for mutant in mutants}
        self._jobs = jobs
        self._report = report
        self._functions: list[FunctionType] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        # Found here, and not by the garbage collector of each process: else each of them would copy
        # the memory that it shares with this one.
        self._functions = functions_of(self._files)
        lines, seconds = self._usual_run(session)
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        waiting = []
        for mutant in self._mutants:
            names = lines.get(str(mutant.path), {}).get(mutant.line, [])
            chosen = [items[name] for name in sorted(set(names), key=lambda name: seconds[name])]
            if chosen:
                limit = _PATIENCE + 10 * sum(seconds[item.nodeid] for item in chosen)
                waiting.append((mutant, chosen, limit))
            else:
                self._report(Result(mutant, NOT_RUN))
        # Process id → its mutant, and when it has to end.
        running: dict[int, tuple[Mutant, float]] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                mutant, chosen, limit = waiting.pop(0)
                pid = _fork(functools.partial(self._fails, session, chosen, mutant))
                running[pid] = (mutant, time.monotonic() + limit)
            for pid, (mutant, end) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    killed = os.waitstatus_to_exitcode(status) != 0
                elif time.monotonic() > end:
                    _kill(pid)
                    killed = True
                else:
                    continue
                del running[pid]
                self._report(Result(mutant, KILLED if killed else SURVIVED))
            time.sleep(0.02)
        return True

    def _fails(self, session: pytest.Session, items: Sequence[pytest.Item], mutant: Mutant) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")
        change_functions(self._functions, mutant.code())
        for item, following in _pairs(items):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                session._setupstate.teardown_exact(None)  # what tests started has to end
                return True
        return False

    def _usual_run(self, session: pytest.Session) -> tuple[Lines, dict[str, float]]:
        """Return file → line → tests that execute it, and the seconds of each test."""
        reading, writing = os.pipe()

        def run() -> bool:
            recorder = _Recorder(self._files)
            times = {}
            caches = [
                found
                for found in gc.get_objects()
                if isinstance(found, _CACHE) and found.__wrapped__ in self._functions
            ]
            with recorder:
                for item, following in _pairs(session.items):
                    recorder.item = item.nodeid
                    # Else only the first test that calls a function executes its lines.
                    for cache in caches:
                        cache.cache_clear()
                    started = time.monotonic()
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    times[item.nodeid] = time.monotonic() - started
            with os.fdopen(writing, "w") as pipe:
                json.dump({"lines": recorder.lines, "seconds": times}, pipe)
            if session.testsfailed:
                # This process ends here, and with it what pytest would say about its failures.
                session.config.pluginmanager.getplugin("terminalreporter").summary_failures()
            return bool(session.testsfailed)

        pid = _fork(run, silent=False)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        if status or not text:
            raise session.Interrupted("the tests fail without a defect; run them with tools/test")
        found = json.loads(text)
        lines: Lines = {
            name: {int(line): tests for line, tests in by_line.items()}
            for name, by_line in found["lines"].items()
        }
        return lines, found["seconds"]


class _Recorder:
    """Records which lines of some files each test executes, in all threads that it starts."""

    def __init__(self, files: set[str]) -> None:
        self.item = ""
        self.lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._files = files

    def __enter__(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        tests = self.lines[frame.f_code.co_filename][frame.f_lineno]
        if not tests or tests[-1] != self.item:
            tests.append(self.item)
        return self._line


def _fork(run: Callable[[], bool], *, silent: bool = True) -> int:
    """Start a process that ends with status 1 if ``run`` returns True; return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        if silent:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
        status = int(run())
    finally:
        os._exit(status)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=True)


def functions_of(files: Collection[str]) -> list[FunctionType]:
    """Return the functions of these files that exist in this process."""
    return [
        found
        for found in gc.get_objects()
        if isinstance(found, FunctionType) and found.__code__.co_filename in files
    ]


def change_functions(functions: Iterable[FunctionType], changed: Code) -> None:
    """Give functions their changed code."""
    for function in functions:
        code = function.__code__
        new = changed.get((code.co_qualname, code.co_firstlineno))
        if new is not None and code.co_filename == new.co_filename and new != code:
            function.__code__ = new

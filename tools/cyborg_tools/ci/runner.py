# SPDX-License-Identifier: Apache-2.0
"""Run one step: print what it prints when it comes, measure it, and keep the log of a failure."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from cyborg_tools import program
from cyborg_tools.ci.jobs import SEED, SERVERS, Job
from cyborg_tools.ci.kept import Verdict

#: Seconds after which a command is ended; the longest takes a third of that.
_LIMIT: Final = 2700.0
_PASSED: Final = re.compile(rb"(\d+) passed")
_LATE: Final = re.compile(rb"^late: (\S+)", re.MULTILINE)
_MUTANTS: Final = re.compile(rb"^[\w-]+: [\d.]+ % of \d+ killed; .*$", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """A step that has ended: its verdict, late tests, lines about mutants, and its log."""

    verdict: Verdict
    late: tuple[str, ...]
    mutants: tuple[str, ...]
    log: Path


class Runner:
    """Runs steps in the root of a checkout; ``say`` gets a line about each repetition.

    ``servers`` are the options that name servers. The logs lie below ``place``.
    """

    def __init__(
        self,
        root: Path,
        place: Path,
        *,
        seed: str,
        servers: Sequence[str],
        say: Callable[[str], None],
        output: BinaryIO | None = None,
        limit: float = _LIMIT,
    ) -> None:
        self._root = root
        self._place = place
        self._words: Mapping[str, Sequence[str]] = {SEED: [seed], SERVERS: servers}
        self._say = say
        self._output = output or sys.stdout.buffer
        self._limit = limit

    def run(self, job: Job) -> Ended:
        """Run the commands of a step until one fails; once more if its environment broke."""
        self._place.mkdir(parents=True, exist_ok=True)
        log = self._place / f"{job.name}.log"
        began, used = time.monotonic(), _processor_time()
        with log.open("wb") as file:
            passed = all(self._passes(job, command, file) for command in job.commands)
        text = log.read_bytes()
        verdict = Verdict(
            passed=passed,
            wall=time.monotonic() - began,
            cpu=_processor_time() - used,
            tests=sum(map(int, _PASSED.findall(text))),
        )
        return Ended(verdict, _words(_LATE, text), _words(_MUTANTS, text), log)

    def _passes(self, job: Job, command: Sequence[str], log: BinaryIO) -> bool:
        status = self._execute(job, command, log)
        if status == program.ENVIRONMENT:
            self._say(f"{job.name}: its environment broke; it runs once more")
            status = self._execute(job, command, log)
        if status not in (0, *job.statuses):
            self._say(f"{job.name}: {' '.join(command)} ended with status {status}")
            return False
        return True

    def _execute(self, job: Job, command: Sequence[str], log: BinaryIO) -> int:
        words = [word for part in command for word in self._words.get(part, [part])]
        own = Path(words[0])
        executable = str(self._root / own) if len(own.parts) > 1 else words[0]
        variables = {"CYBORG_KEPT": str(self._place / job.name), **dict(job.variables)}
        with subprocess.Popen(
            [executable, *words[1:]],
            cwd=self._root,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child:
            assert child.stdout is not None
            # Nothing that a command started may outlive it, or outlive an interrupted run.
            timer = threading.Timer(self._limit, _kill, [child.pid])
            timer.start()
            try:
                while chunk := os.read(child.stdout.fileno(), 1 << 16):
                    for stream in (log, self._output):
                        stream.write(chunk)
                        stream.flush()
                return child.wait()
            finally:
                timer.cancel()
                _kill(child.pid)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _processor_time() -> float:
    """Return the user and system time of all children that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _words(pattern: re.Pattern[bytes], text: bytes) -> tuple[str, ...]:
    return tuple(found.decode(errors="replace") for found in pattern.findall(text))

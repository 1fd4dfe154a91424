# SPDX-License-Identifier: Apache-2.0
"""Run ``cyborg`` commands as an operator, and check their status and output."""

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.service import wait_until
from cyborg.tests.fixtures.processes import script
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.quickstart.clients import StepFailed, require
from cyborg_tools.quickstart.screen import Screen

PROGRAM = "cyborg"
_JSON = "-f json"


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    line: str
    status: int
    out: str
    err: str

    @property
    def shown(self) -> Any:
        """What it printed, parsed where it printed JSON."""
        try:
            return json.loads(self.out)
        except ValueError:
            return self.out.strip() or None


class Operator:
    """Somebody at a shell whose accounts are these variables; ``last`` is the latest command."""

    def __init__(self, environment: Mapping[str, str], screen: Screen) -> None:
        self.variables = environment
        self.screen = screen
        self.last = Ran("", 0, "", "")

    def does(self, line: str, *, status: int = 0) -> Ran:
        """Run a command, show it, and give what came back; raises StepFailed at another status."""
        ran = self._run(line)
        self.show_last()
        require(ran.status == status, f"status {ran.status} came back, and {status} was expected")
        return ran

    def asks(self, line: str) -> Any:
        """The same for a command that is to print JSON; gives what it printed."""
        return self.does(f"{line} {_JSON}").shown

    def is_refused(self, line: str, *words: str) -> None:
        """Run a command that has to fail, and to say all of these words."""
        ran = self.does(line, status=1)
        for one in words:
            require(one in ran.err, f"{one!r} is not in its output")

    def awaits(self, line: str, holds: Callable[[Any], object], otherwise: str) -> Any:
        """Ask again and again until it holds; only the last answer is shown."""

        def look() -> bool:
            ran = self._run(f"{line} {_JSON}")
            return ran.status == 0 and bool(holds(ran.shown))

        held = wait_until(look, timeout=PATIENCE, step=0.2)
        require(held, f"{otherwise} within {PATIENCE:.0f} seconds")
        self.show_last()
        return self.last.shown

    def show_last(self) -> None:
        """Show the latest command, also once more."""
        ran = self.last
        self.screen.command(f"{PROGRAM} {ran.line}", ran.status, ran.err, ran.shown)

    def _run(self, line: str) -> Ran:
        try:
            ended = subprocess.run(
                [script(PROGRAM), *shlex.split(line)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=dict(self.variables),
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as fault:
            raise StepFailed(f"{PROGRAM} {line} goes on after {PATIENCE:.0f} seconds") from fault
        self.last = Ran(line, ended.returncode, ended.stdout, ended.stderr)
        return self.last

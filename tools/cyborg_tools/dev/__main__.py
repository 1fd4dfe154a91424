# SPDX-License-Identifier: Apache-2.0
"""Run the daemons for development; see ``tools/dev``."""

import logging
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from watchfiles import PythonFilter, watch

import cyborg
from cyborg import exception
from cyborg.tests.fixtures.loopback import bypass_proxies
from cyborg_tools.dev import options
from cyborg_tools.dev.environment import Environment
from cyborg_tools.quickstart.screen import Screen

_PACKAGE = Path(cyborg.__file__).parent
_MIGRATIONS = _PACKAGE / "db" / "migrations"
#: Interval for showing output, and longest duration of one change, in milliseconds.
_TURN, _SETTLING = 300, 300


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal; return 1 if nothing could be started."""
    plan = options.parse(arguments)
    # Placement's own log, within this process.
    logging.disable(logging.WARNING)
    # SIGINT as well: a shell starts background processes with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    bypass_proxies()
    screen = Screen(sys.stdout)
    with tempfile.TemporaryDirectory(prefix="cyborg-dev-", ignore_cleanup_errors=True) as name:
        try:
            with Environment(plan, Path(name), screen) as environment:
                _introduce(environment, screen)
                _serve(environment, plan, screen)
        except exception.CyborgError as error:
            print(f"{options.PROG}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            pass
    screen.say("Ended; the database and the queues are removed.")
    return 0


def _introduce(environment: Environment, screen: Screen) -> None:
    screen.heading("Try it, in another terminal")
    screen.raw(
        [
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            f"export OS_AUTH_TYPE=none OS_ENDPOINT={environment.url}",
            "cyborg service-list",
            "",
        ]
    )


def _serve(environment: Environment, plan: options.Plan, screen: Screen) -> None:
    """Restart the daemons after each change and show their output, until Ctrl-C."""
    environment.begin()
    turns = watch(
        _PACKAGE,
        *plan.watch,
        watch_filter=PythonFilter(ignore_paths=[_PACKAGE / "tests", _PACKAGE / "testing"]),
        debounce=_SETTLING,
        step=_SETTLING // 3,
        rust_timeout=_TURN,
        yield_on_timeout=True,
    )
    for changes in turns:
        environment.listen()
        if changes:
            paths = sorted({Path(path) for _, path in changes})
            screen.say(f"{', '.join(path.name for path in paths)} changed: restarting.")
            if any(path.is_relative_to(_MIGRATIONS) for path in paths):
                environment.upgrade()
            environment.begin()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

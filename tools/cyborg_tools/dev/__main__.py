# SPDX-License-Identifier: Apache-2.0
"""Run the daemons for development; see ``tools/dev``."""

import argparse
import logging
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from watchfiles import PythonFilter, watch

import cyborg
from cyborg.tests.fixtures.loopback import bypass_proxies
from cyborg_tools import program, servers
from cyborg_tools.dev.environment import Environment
from cyborg_tools.quickstart.screen import Screen

_PACKAGE = Path(cyborg.__file__).parent
_MIGRATIONS = _PACKAGE / "db" / "migrations"
#: Interval for showing output, and longest duration of one change, in milliseconds.
_TURN, _SETTLING = 300, 300
_DESCRIPTION = """\
Run the three daemons from this checkout, on the RabbitMQ and MariaDB of this machine, and begin
them anew whenever a Python file changes. Placement is the real one; Nova is simulated, and there is
no Keystone: whoever reaches the API may do all. A revision that is added to the database's
migrations is run as well. Everything listens on the loopback interface only. Ctrl-C ends it and
removes its database and its queues.
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/dev",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers.add_options(parser)
    parser.add_argument(
        "--port",
        type=int,
        default=6666,
        metavar="N",
        help="port of the REST API, 0 for a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--drivers",
        default="fake_driver",
        metavar="NAMES",
        help="what the agent's [agent] enabled_drivers says (default: %(default)s)",
    )
    parser.add_argument(
        "--watch",
        action="append",
        type=_directory,
        default=[],
        metavar="DIR",
        help="another directory of Python files to watch: that of a driver of your own, installed "
        "into the same environment with 'pip install -e'; may be given more than once",
    )
    return parser.parse_args(arguments)


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return path


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal; return 1 if nothing could be started."""
    plan = _parse(arguments)
    # Placement's own log, within this process.
    logging.disable(logging.WARNING)
    bypass_proxies()
    with tempfile.TemporaryDirectory(prefix="cyborg-dev-", ignore_cleanup_errors=True) as name:
        return program.run("dev", lambda: _run(plan, Path(name), Screen(sys.stdout)))


def _run(plan: argparse.Namespace, directory: Path, screen: Screen) -> int:
    try:
        with Environment(plan, directory, screen) as environment:
            screen.heading("Try it, in another terminal")
            screen.raw(
                [
                    f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
                    f"export OS_AUTH_TYPE=none OS_ENDPOINT={environment.url}",
                    "cyborg service-list",
                    "",
                ]
            )
            _serve(environment, plan, screen)
    except KeyboardInterrupt:
        screen.say("Ended; the database and the queues are removed.")
    return 0


def _serve(environment: Environment, plan: argparse.Namespace, screen: Screen) -> None:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

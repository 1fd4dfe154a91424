# SPDX-License-Identifier: Apache-2.0
"""Run the walkthrough; see ``tools/walkthrough``."""

import argparse
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from cyborg.tests.fixtures.accelerators import Exchange
from cyborg.tests.fixtures.loopback import bypass_proxies
from cyborg_tools import program, servers
from cyborg_tools.quickstart.clients import StepFailed
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.walkthrough.environment import Place, WalkedCloud
from cyborg_tools.walkthrough.examples import ExampleCloud, ExampleWalk
from cyborg_tools.walkthrough.pages import PAGES
from cyborg_tools.walkthrough.secured_walk import SecuredWalk
from cyborg_tools.walkthrough.walk import Walk

PROG = "walkthrough"
_DESCRIPTION = """\
Walk through all that operators do, with the cyborg command and nothing else: drivers that come and
go at run time, accelerators made ready, created, labelled and deleted, attach and detach for an
instance, a host that is forgotten. The daemons are real processes on RabbitMQ and MariaDB: the API,
a conductor, and the agents of two hosts. Placement is the real one; Nova is simulated, and its part
is told apart. Ends with status 0 when every step held, with 1 when one did not; then it keeps its
logs. Status 75 says that a server of the program's own did not start.

With --examples it runs the commands of the documents instead, as a reader copies them.

With --tls all servers accept TLS alone, with certificates of a new authority, and all messages must
be signed: the program starts a MariaDB, a RabbitMQ and a Keystone of its own, and checks first that
plain text, clients without the authority and messages without a signature are refused.
"""
#: Timeout of the whole walkthrough, in seconds. On a busy machine it takes nine minutes over TLS,
#: and half an hour for the commands of the documents.
_LONGEST = 3600


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"tools/{PROG}",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers.add_options(parser)
    parser.add_argument(
        "--keep", action="store_true", help="keep logs and configuration, and print their directory"
    )
    parser.add_argument(
        "--tls",
        action="store_true",
        help="use servers of its own that accept TLS alone instead of those that are named, and "
        "require signed messages",
    )
    parser.add_argument(
        "--examples",
        nargs="*",
        choices=[page.name for page in PAGES],
        metavar="PAGE",
        help="run the commands of the documents instead: of all pages, or of those that are named "
        "(for example admin/drivers)",
    )
    # CI passes the addresses of tools/test as well; this program ignores the others.
    parser.add_argument("--postgresql-url", help=argparse.SUPPRESS)
    plan = parser.parse_args(arguments)
    if plan.examples is not None and plan.tls:
        parser.error("--examples and --tls exclude each other")
    return plan


def main(arguments: Sequence[str]) -> int:
    """Run the walkthrough; return 1 if a step fails or nothing could be started."""
    plan = parse(arguments)
    # Placement's own log, within this process.
    logging.disable(logging.WARNING)
    bypass_proxies()
    place = Place.make()
    screen = Screen(sys.stdout)
    return program.run_in(
        place.directory, PROG, lambda: _carry_out(plan, place, screen), keep=plan.keep
    )


def _carry_out(plan: argparse.Namespace, place: Place, screen: Screen) -> int:
    def listener(one: Exchange) -> None:
        """Show an exchange of Nova without its bodies; tools/quickstart shows them."""
        screen.exchange("Nova", replace(one, path=f"/v2{one.path}", body=None, answer=None))

    began = time.monotonic()
    screen.heading("Starting three daemons, one of them on two hosts")
    cloud = ExampleCloud if plan.examples is not None else WalkedCloud
    with cloud(plan, place, listener) as environment:
        try:
            for name, daemon in environment.daemons.items():
                screen.fact(f"pid {daemon.pid}", name)
            if environment.secured is not None:
                for name, pid in environment.secured.pids.items():
                    screen.fact(f"pid {pid}", f"{name}, for this run")
            kind = ExampleWalk if plan.examples is not None else SecuredWalk if plan.tls else Walk
            held = _walk(environment, screen, kind)
        finally:
            program.ignore_signals()
    if held:
        screen.fact("took", f"{time.monotonic() - began:.0f} s")
        screen.verdict("Every step held.")
    return 0 if held else 1


def _walk(environment: WalkedCloud, screen: Screen, kind: type[Walk | ExampleWalk]) -> bool:
    account = environment.operator
    screen.heading("The walkthrough: tasks of operators with the cyborg command")
    screen.raw([f"  export {name}={value}" for name, value in account.items()])
    walk = kind(environment, {**environment.deployment.environment, **account}, screen)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_LONGEST)
    try:
        walk.play()
    except StepFailed as failure:
        screen.problem(f"{failure}.")
        screen.say("The last command was:")
        walk.show_last()
        return False
    finally:
        signal.alarm(0)
    return True


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise StepFailed(f"The walkthrough has not ended after {_LONGEST} seconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

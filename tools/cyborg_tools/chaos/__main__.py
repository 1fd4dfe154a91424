# SPDX-License-Identifier: Apache-2.0
"""Run the chaos tests; see ``tools/chaos``."""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cyborg_tools import program
from cyborg_tools.chaos.faults import CATALOGUE, Fault
from cyborg_tools.chaos.night import NIGHT, Night, NightFault
from cyborg_tools.chaos.results import show_options
from cyborg_tools.chaos.run import Run
from cyborg_tools.chaos.world import NightWorld, World
from cyborg_tools.quickstart.screen import Screen

_DESCRIPTION = """\
Start the service as real processes (two conductors, an agent, two APIs) on a MariaDB and a RabbitMQ
of its own, let clients bind and delete without a break, and do it harm, fault by fault. After each
fault everything must work again, and the checker must find nothing lost, leaked or stuck. Ends with
status 1 when anything did not hold. Servers that run on this machine already are not touched.
"""
_FEWEST, _MOST = 1, 8
_say = partial(program.say, "chaos")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage ends the process. Equal seeds give equal choices."""
    every: list[Fault | NightFault] = [*CATALOGUE, *NIGHT]
    parser = argparse.ArgumentParser(
        prog="chaos",
        description=_DESCRIPTION,
        epilog="faults:\n" + "\n".join(f"  {one.name:<17}{one.title}" for one in every),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="seven of the faults and short outages: what CI runs, in at most three minutes",
    )
    parser.add_argument(
        "--night",
        action="store_true",
        help="the faults night-* without clients: checks what the list of services, the health "
        "check, cyborg-status and cyborg-audit say during each fault, and bounds the log lines",
    )
    parser.add_argument(
        "--only",
        metavar="FAULT",
        action="append",
        choices=[one.name for one in every],
        help="inject only this fault; may be given several times",
    )
    parser.add_argument(
        "--clients",
        metavar="N",
        type=int,
        choices=range(_FEWEST, _MOST + 1),
        default=6,
        help=f"how many clients, {_FEWEST} to {_MOST} (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(10**6),
        help="seed of the choices of the clients (default: a random one)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--keep", action="store_true", help="keep logs, configuration and data, and print where"
    )
    plan = parser.parse_args(arguments)
    if plan.night and plan.short:
        parser.error("--night and --short are different runs")
    catalogue = NIGHT if plan.night else CATALOGUE
    if stray := sorted(set(plan.only or ()) - {one.name for one in catalogue}):
        parser.error(f"{', '.join(stray)}: faults named night-* go with --night, no others do")
    chosen = plan.only or [one.name for one in CATALOGUE if plan.short and one.short]
    plan.faults = [one for one in catalogue if not chosen or one.name in chosen]
    plan.clients = 0 if plan.night else plan.clients
    return plan


def main(arguments: Sequence[str]) -> int:
    """Run the plan and print; return 1 for a violation or if something could not be started."""
    plan = parse(arguments)
    logging.disable(logging.WARNING)
    directory = Path(tempfile.mkdtemp(prefix="cyborg-chaos-"))
    try:
        return program.run("chaos", lambda: _carry_out(plan, directory))
    finally:
        if plan.keep:
            _say(f"logs, configuration and data are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _carry_out(plan: argparse.Namespace, directory: Path) -> int:
    # With --json, standard output is for the document alone.
    screen = Screen(sys.stderr if plan.json else sys.stdout)
    _say("starting MariaDB, RabbitMQ, Placement and the daemons")
    with NightWorld(directory) if plan.night else World(directory) as world:
        try:
            show_options(screen, world.options, world.own_options)
            run = Night if plan.night else Run
            results = run(plan, world, say=_say, tell=lambda part: part.show(screen)).carry_out()
        finally:
            program.ignore_signals()
            _say("stopping everything")
    results.show(screen)
    if plan.json:
        print(json.dumps(results.document(), indent=2))
    return 1 if results.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

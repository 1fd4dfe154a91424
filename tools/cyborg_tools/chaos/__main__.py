# SPDX-License-Identifier: Apache-2.0
"""Run the chaos tests; see ``tools/chaos``."""

import argparse
import json
import logging
import random
import shlex
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cyborg_tools import program
from cyborg_tools.chaos.faults import CATALOGUE, Fault
from cyborg_tools.chaos.night import NIGHT, Night, NightFault
from cyborg_tools.chaos.results import Results, show_options
from cyborg_tools.chaos.run import Run
from cyborg_tools.chaos.world import NightWorld, World
from cyborg_tools.quickstart.screen import Screen

_DESCRIPTION = """\
Start the service as real processes (two conductors, an agent, two APIs) on a MariaDB and a RabbitMQ
of its own, let clients bind and delete without a break, and do it harm, fault by fault. After each
fault everything must work again, and the checker must find nothing lost, leaked or stuck. Ends with
status 1 when anything did not hold, and keeps its logs then; with status 75 when a server did not
start, which says nothing about the service. Servers that run on this machine already are not
touched.
"""
_FEWEST, _MOST = 1, 8
_say = partial(program.say, "chaos")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage ends the process. Equal seeds give equal choices."""
    every: list[Fault | NightFault] = [*CATALOGUE, *NIGHT]
    short = [one.name for one in CATALOGUE if one.short]
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
        "--sample",
        metavar="N",
        type=int,
        choices=range(1, len(short) + 1),
        help="N of the faults of --short, which the seed chooses, and short outages",
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
        default=str(random.SystemRandom().randrange(10**6)),
        help="seed of the sample and of the choices of the clients (default: a random one)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--keep", action="store_true", help="keep logs, configuration and data, and print where"
    )
    plan = parser.parse_args(arguments)
    if plan.night and (plan.short or plan.sample):
        parser.error("--night is another run than --short and --sample")
    if plan.sample and plan.only:
        parser.error("--only and --sample both choose the faults")
    catalogue = NIGHT if plan.night else CATALOGUE
    if stray := sorted(set(plan.only or ()) - {one.name for one in catalogue}):
        parser.error(f"{', '.join(stray)}: faults named night-* go with --night, no others do")
    if plan.sample:
        plan.short = True
        short = random.Random(f"{plan.seed} sample").sample(short, plan.sample)
    chosen = plan.only or (short if plan.short else [one.name for one in catalogue])
    plan.faults = [one for one in catalogue if one.name in chosen]
    plan.clients = 0 if plan.night else plan.clients
    return plan


def repetition(arguments: Sequence[str], plan: argparse.Namespace) -> str:
    """Return the command that repeats a run."""
    seed = [] if any(word.startswith("--seed") for word in arguments) else ["--seed", plan.seed]
    return shlex.join(["tools/chaos", *arguments, *seed])


def main(arguments: Sequence[str]) -> int:
    """Run the plan and print; return 1 for a violation or if a daemon could not be started."""
    plan = parse(arguments)
    again = f"seed {plan.seed}; {repetition(arguments, plan)} repeats this run"
    _say(again)
    logging.disable(logging.WARNING)
    directory = Path(tempfile.mkdtemp(prefix="cyborg-chaos-"))
    status = 1
    try:
        status = program.run_in(
            directory, "chaos", lambda: _carry_out(plan, directory), keep=plan.keep
        )
    finally:
        if status == 1:
            _say(again)
    return status


def outcome(run: Run) -> Results:
    """Carry out a run and return its results.

    Raises BrokenEnvironment, unless a violation was found before; the results are incomplete then.
    """
    try:
        return run.carry_out()
    except program.BrokenEnvironment as error:
        if not run.results.violations:
            raise
        _say(f"the run ends here: {error}")
        return run.results


def _carry_out(plan: argparse.Namespace, directory: Path) -> int:
    # With --json, standard output is for the document alone.
    screen = Screen(sys.stderr if plan.json else sys.stdout)
    _say("starting MariaDB, RabbitMQ, Placement and the daemons")
    with NightWorld(directory) if plan.night else World(directory) as world:
        try:
            show_options(screen, world.options, world.own_options)
            run = Night if plan.night else Run
            results = outcome(run(plan, world, say=_say, tell=lambda part: part.show(screen)))
        finally:
            program.ignore_signals()
            _say("stopping everything")
    results.show(screen)
    if plan.json:
        print(json.dumps(results.document(), indent=2))
    return 1 if results.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

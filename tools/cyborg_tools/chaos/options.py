# SPDX-License-Identifier: Apache-2.0
"""The command line of the chaos run."""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cyborg_tools.chaos.catalogue import CATALOGUE, NAMES, NIGHT, NIGHT_NAMES, Fault

_DESCRIPTION = """\
Start the service as real processes (two conductors, an agent, two APIs) on a MariaDB and a RabbitMQ
of its own, let clients bind and delete without a break, and do it harm, fault by fault. After each
fault everything must work again, and the checker must find nothing lost, leaked or stuck. Ends with
status 1 when anything did not hold. Servers that run on this machine already are not touched.
"""
_FEWEST, _MOST = 1, 8


@dataclass(frozen=True)
class Plan:
    """What to do. Equal seeds give clients equal choices. ``keep`` keeps the files.

    ``night`` is the walk through the faults of a night, without clients.
    """

    faults: tuple[Fault, ...]
    clients: int
    seed: int
    short: bool
    night: bool
    as_json: bool
    keep: bool


def parse(arguments: Sequence[str]) -> Plan:
    """Parse the command line; wrong usage ends the process."""
    parser = argparse.ArgumentParser(
        prog="chaos",
        description=_DESCRIPTION,
        epilog="faults:\n"
        + "\n".join(f"  {one.name:<17}{one.title}" for one in (*CATALOGUE, *NIGHT)),
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
        choices=(*NAMES, *NIGHT_NAMES),
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
        "--seed", type=int, help="seed of the choices of the clients (default: a random one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--keep", action="store_true", help="keep logs, configuration and data, and print where"
    )
    asked = parser.parse_args(arguments)
    if asked.night and asked.short:
        parser.error("--night and --short are different runs")
    catalogue = NIGHT if asked.night else CATALOGUE
    if stray := sorted(set(asked.only or ()) - {one.name for one in catalogue}):
        parser.error(f"{', '.join(stray)}: faults named night-* go with --night, no others do")
    faults = tuple(
        one
        for one in catalogue
        if (one.name in asked.only if asked.only else one.short or not asked.short)
    )
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    return Plan(
        faults, asked.clients, seed, asked.short, asked.night, as_json=asked.json, keep=asked.keep
    )

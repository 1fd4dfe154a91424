# SPDX-License-Identifier: Apache-2.0
"""The command line of the walkthrough."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from cyborg_tools.walkthrough import servers

PROG = "walkthrough"
_DESCRIPTION = """\
Walk through all that operators do, with the cyborg command and nothing else: drivers that come and
go at run time, accelerators made ready, created, labelled and deleted, attach and detach for an
instance, a host that is forgotten. The daemons are real processes on RabbitMQ and MariaDB: the API,
a conductor, and the agents of two hosts. Placement is the real one; Nova is simulated, and its part
is told apart. Ends with status 0 when every step held, with 1 when one did not.
"""


@dataclass(frozen=True)
class Plan:
    """The servers; ``keep`` keeps logs and configuration."""

    mysql_url: str
    rabbit_url: str
    keep: bool


def parse(arguments: Sequence[str]) -> Plan:
    """Parse the command line; wrong usage ends the process."""
    parser = argparse.ArgumentParser(
        prog=f"tools/{PROG}",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers.add_options(parser)
    parser.add_argument(
        "--keep", action="store_true", help="keep logs and configuration, and print their directory"
    )
    # CI passes the addresses of tools/test as well; this program ignores the others.
    parser.add_argument("--postgresql-url", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    return Plan(asked.mysql_url, asked.rabbit_url, asked.keep)

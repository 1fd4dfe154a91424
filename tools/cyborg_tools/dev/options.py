# SPDX-License-Identifier: Apache-2.0
"""The command line of ``tools/dev``."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cyborg_tools.walkthrough import servers

PROG = "dev"
_DESCRIPTION = """\
Run the three daemons from this checkout, on the RabbitMQ and MariaDB of this machine, and begin
them anew whenever a Python file changes. Placement is the real one; Nova is simulated, and there is
no Keystone: whoever reaches the API may do all. A revision that is added to the database's
migrations is run as well. Everything listens on the loopback interface only. Ctrl-C ends it and
removes its database and its queues.
"""


@dataclass(frozen=True)
class Plan:
    """The servers, the port of the REST API, the drivers and the directories to watch."""

    mysql_url: str
    rabbit_url: str
    port: int
    drivers: str
    watch: tuple[Path, ...]


def parse(arguments: Sequence[str]) -> Plan:
    """Parse the command line; wrong usage ends the process."""
    parser = argparse.ArgumentParser(
        prog=f"tools/{PROG}",
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
    asked = parser.parse_args(arguments)
    return Plan(asked.mysql_url, asked.rabbit_url, asked.port, asked.drivers, tuple(asked.watch))


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return path

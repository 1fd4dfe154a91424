# SPDX-License-Identifier: Apache-2.0
"""The command line of ``tools/quickstart``; nothing but Python itself is needed to read it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

PROG = "quickstart"
_ROOT = Path(__file__).resolve().parents[3]
#: The names of the scenario hosts; this module must not import the package that has them.
SCENARIOS = sorted(file.stem for file in _ROOT.glob("cyborg/testing/hosts.d/*.yaml"))
_DESCRIPTION = """\
Start Cyborg on this machine and see it work: the REST API, a conductor and an
agent in one process, with a real Placement, a simulated Nova and no Keystone.
It shows which PCI functions this machine has, then plays Nova's part: a device
profile, accelerator requests, a bind, the attach handles, the release. After
that it keeps serving, on the loopback interface only, until Ctrl-C.

Nothing of this machine is handed out unless --whitelist names it; a fake
accelerator stands in. With --host, it shows another host instead: a simulated
one of the scenario hosts, with drivers that fit it, or a recorded one. No root,
no database server, no OpenStack is needed.
"""
_EPILOG = """\
The first run makes a virtual environment in .quickstart/venv of the checkout and
installs into it, which takes a minute or two; later runs reuse it. --dashboard
also makes .dashboard-venv, with Horizon and its static files: about six minutes
and 0.9 GB for both the first time, and 20 seconds to start later. The exit
status is 0 when everything held, 1 when something did not, 130 when interrupted.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ``--help`` and wrong usage end the process as argparse does."""
    parser = argparse.ArgumentParser(
        prog=f"tools/{PROG}",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--demo", action="store_true", help="end after the walk")
    parser.add_argument(
        "--brief", action="store_true", help="show each step in one line, and no requests"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=6666,
        metavar="N",
        help="port of the REST API on 127.0.0.1, 0 for a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=_ROOT / ".quickstart" / "state",
        metavar="DIR",
        help="directory for the databases, the configuration and the log, kept for the next "
        "start (default: .quickstart/state of the checkout)",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="first remove the files of earlier runs from the state directory",
    )
    parser.add_argument(
        "--whitelist",
        action="append",
        default=[],
        metavar="JSON",
        help="offer PCI functions of this machine, as [pci] passthrough_whitelist does; for "
        """example '{"address": "0000:81:00.0"}'; may be given more than once""",
    )
    parser.add_argument(
        "--host",
        type=_host,
        metavar="HOST",
        help="show and offer the devices of another host instead of this machine's: a scenario "
        f"host ({', '.join(SCENARIOS)}), or an archive, a directory or tar.gz file that "
        "tools/capture-host wrote",
    )
    parser.add_argument(
        "--dashboard",
        action="store_true",
        help="add Keystone and Horizon with the panels of the accelerators, and print the address "
        "and the accounts of an administrator and of a member; with --clean they get new passwords",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="run with this Python, which has openstack-cyborg[quickstart] installed already; "
        "nothing is made or installed",
    )
    asked = parser.parse_args(argv)
    if asked.dashboard and asked.python:
        parser.error("--dashboard makes environments, and --python says that none is made")
    return asked


def _host(text: str) -> str:
    if text in SCENARIOS or Path(text).exists():
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a file nor a scenario host; the scenario hosts are "
        f"{', '.join(SCENARIOS)}"
    )


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; ports are 0 to 65535")
    return number

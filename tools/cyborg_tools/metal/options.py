# SPDX-License-Identifier: Apache-2.0
"""The command line of ``tools/metal``; nothing but Python itself is needed to read it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTION = """\
Check Cyborg on the NVIDIA GPUs of this machine: cyborg-agent --discover, the
answers of the library NVML, health and figures, errors (Xid) in the kernel's log, MIG
and NVLink, and tools/capture-host. It needs at most 5 minutes.

Nothing of the machine is changed, unless --reset names a GPU that nothing uses.
Run it as root: other users do not see who has a device open, and the report
says what is missing then.
"""
_EPILOG = """\
The first run makes a virtual environment in .metal/venv of the checkout. The exit
status is 0 if all checks hold, 1 if one does not, 77 if the machine has no NVIDIA
GPU with the driver nvidia, 130 when interrupted.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ``--help`` and wrong usage end the process as argparse does."""
    parser = argparse.ArgumentParser(
        prog="tools/metal",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--archive",
        type=Path,
        metavar="FILE.tar.gz",
        help="keep the archive of tools/capture-host in this file, which must not exist yet",
    )
    parser.add_argument(
        "--reset",
        metavar="ADDRESS",
        help="at the end, reset this GPU as after a guest, for example 0000:81:00.0; it is refused "
        "if something uses the GPU. All data in the memory of the GPU is lost",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="run with this Python, which has openstack-cyborg[nvidia] installed already; nothing "
        "is made or installed",
    )
    options = parser.parse_args(argv)
    if options.archive is not None and options.archive.exists():
        parser.error(f"{options.archive} exists; name a file that does not")
    return options

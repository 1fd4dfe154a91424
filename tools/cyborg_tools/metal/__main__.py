# SPDX-License-Identifier: Apache-2.0
"""``python -m cyborg_tools.metal``, as tools/metal calls it."""

import argparse
import json
import platform
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from cyborg.drivers.host import LocalHost
from cyborg.drivers.privileged import guard
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.kernel import LinuxKernel
from cyborg_cli.text import escaped
from cyborg_tools import program
from cyborg_tools.metal.examination import Examination, Machine, NoHardwareError, Report
from cyborg_tools.metal.options import parse

T = TypeVar("T")

PROG: Final = "metal"
#: The status when the machine has no hardware for the checks.
NO_HARDWARE: Final = 77
_CAPTURE: Final = Path(__file__).parents[2] / "capture-host"
_WIDTH: Final = 100


class Root:
    """Runs privileged actions in this process, unless something uses the device."""

    def run(self, action: Action[T]) -> T:
        """See Privileged."""
        kernel = LinuxKernel()
        if action.changes:
            guard.check_use(LocalHost(), action, action.reach(kernel))
        return action.run(kernel)


def main(argv: Sequence[str]) -> int:
    """Examine this machine; return the exit status."""
    options = parse(argv)
    with tempfile.TemporaryDirectory(prefix="cyborg-metal-") as directory:
        machine = Machine(
            host=LocalHost(privileged=Root()),
            agent=(str(Path(sys.executable).with_name("cyborg-agent")),),
            capture=(sys.executable, str(_CAPTURE)),
            directory=Path(directory),
            archive=options.archive or Path(directory, "host.tar.gz"),
        )
        return program.run(PROG, partial(examine, machine, options))


def examine(machine: Machine, options: argparse.Namespace) -> int:
    """Run the checks on a machine and print the report; return the exit status."""
    try:
        report = Examination(machine).run(options.reset)
    except NoHardwareError as error:
        program.say(PROG, f"nothing can be checked on this machine: {error}")
        return NO_HARDWARE
    report.machine["kernel"] = platform.release()
    if options.json:
        print(json.dumps(report.document(), indent=2))
    else:
        print(*lines(report), sep="\n")
    return 0 if report.holds else 1


def lines(report: Report) -> Iterator[str]:
    """Yield the lines of the report for people."""
    driver = report.machine.get("driver", "unknown")
    kernel = report.machine["kernel"]
    yield f"Linux {kernel}, NVIDIA driver {driver}, {len(report.gpus)} GPU(s)"
    for check in report.checks:
        word = "ok" if check.holds else "FAILED"
        yield from textwrap.wrap(
            f"{word:7} {check.name}: {escaped(check.text)}",
            _WIDTH,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
    failed = [check.name for check in report.checks if not check.holds]
    yield f"{len(failed)} check(s) failed: {', '.join(failed)}." if failed else "All checks hold."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Boot a real kernel and run commands or tests in it; see ``tools/kernel``."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cyborg_tools import program
from cyborg_tools.kernel.build import Build
from cyborg_tools.kernel.checkout import copied
from cyborg_tools.kernel.guest import Guest, machines
from cyborg_tools.kernel.packages import NotPossibleHere, Packages, execute

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "tools" / "kernel-guest"
TESTS = "cyborg/tests/kernel"
#: The tests of a short run, on the default machine: the ownership check, and one whole service.
SHORT = (f"{TESTS}/test_guard.py", f"{TESTS}/test_template.py")
#: The status when this machine cannot run guests; in CI that is a failure, 1.
NOT_POSSIBLE = 77
_DEFAULT_MACHINE = "pci"
#: Timeouts of a guest in seconds. pytest ends a test that hangs after 1200 s and tells its name.
_COMMAND, _TESTS = 600.0, 2400.0
#: The status of pytest when it has selected no test.
_NO_TESTS = 5
_DESCRIPTION = """\
Boot a kernel of Debian in QEMU (without KVM) with emulated accelerators, and run tests in it. The
guest has the files of this machine, read-only, and a copy of the checkout; what it writes is lost
with its memory. Without a verb: build, then test all machines. Packages that are missing are
installed if root runs this. Ends with status 75 when the emulator or an index of packages failed.
"""
_say = partial(program.say, "kernel")


def parse(arguments: Sequence[str], names: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage ends the process. ``words`` follow the verb."""
    parser = argparse.ArgumentParser(
        prog="kernel",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--cache",
        type=lambda path: ROOT / path,
        default=default_cache(os.environ),
        help="directory for kernel, modules and QEMU; remove it to get a newer kernel "
        "(default: %(default)s)",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.add_parser("build", help="prepare what a guest boots, unless it is in the cache")
    run = verbs.add_parser("run", help="run a command in the root of the checkout in a guest")
    test = verbs.add_parser("test", help=f"run {TESTS} in the guests", allow_abbrev=False)
    for verb, default, timeout in ((run, _DEFAULT_MACHINE, _COMMAND), (test, None, _TESTS)):
        verb.add_argument(
            "--machine", choices=names, default=default, help="default: " + (default or "all")
        )
        verb.add_argument(
            "--memory", type=int, default=2048, metavar="MB", help="default: %(default)s"
        )
        verb.add_argument(
            "--timeout",
            type=float,
            default=timeout,
            metavar="S",
            help="seconds after which the guest is stopped (default: %(default)g)",
        )
    test.add_argument(
        "--short",
        action="store_true",
        help=f"only the ownership check and one whole service, on the machine {_DEFAULT_MACHINE}",
    )
    run.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="one word: a line for the shell; several: the words of a command",
    )
    options, rest = parser.parse_known_args(arguments)
    if options.verb is None:
        options, rest = parser.parse_known_args([*arguments, "test"])
    if options.verb == "test":
        options.words = [word for word in rest if word != "--"]
        if options.short:
            if options.machine not in (None, _DEFAULT_MACHINE):
                parser.error(f"--short runs on the machine {_DEFAULT_MACHINE}")
            options.machine = _DEFAULT_MACHINE
            options.words += SHORT
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    elif options.verb == "run":
        if options.words[:1] == ["--"]:
            del options.words[0]
        if not options.words:
            parser.error("run needs a COMMAND")
    return options


def default_cache(environment: Mapping[str, str]) -> Path:
    """Return the directory of the XDG base directory specification."""
    home = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cyborg-kernel"


def script(words: Sequence[str], tree: Path) -> str:
    """Return the shell script that runs a command in a guest, in a copy of the checkout."""
    line = words[0] if len(words) == 1 else shlex.join(words)
    return (
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        # Files of the host are in /tmp; a checkout may be one of them.
        "export HOME=/root TMPDIR=/run\n"
        # The environment would import the checkout itself.
        f"export PYTHONPATH={shlex.quote(f'{tree}:{tree}/client')}\n"
        f"cd {shlex.quote(str(tree))} || exit\n{line}\n"
    )


def pytest_words(words: Sequence[str]) -> list[str]:
    """Return the command that runs the tests in a guest; imports are slow there, so it has few."""
    named = any(word.startswith(TESTS) for word in words)
    return [
        *("env", "COLUMNS=100", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE=1"),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
        *("-q", "--color=no", "--durations=5", "--confcutdir", TESTS, *words),
        *(() if named else (TESTS,)),
    ]


def unavailable(error: NotPossibleHere, environment: Mapping[str, str]) -> int:
    """Say why no guest can run here; return the status, which is a failure in CI."""
    _say(f"not possible here: {error}")
    return 1 if environment.get("CI", "").lower() in ("1", "true") else NOT_POSSIBLE


def main(arguments: Sequence[str]) -> int:
    """Build, then run or test what the arguments say; return the exit status."""
    available = machines(SOURCES / "machines")
    options = parse(arguments, list(available))
    packages = Packages(options.cache / "apt", execute, root=os.geteuid() == 0)
    build = Build(options.cache, packages, execute, sources=SOURCES, report=_report)
    started = time.monotonic()
    try:
        parts = build.parts()
    except NotPossibleHere as error:
        return unavailable(error, os.environ)
    if options.verb == "build":
        _report("everything is in the cache", started)
        return 0
    with copied(ROOT) as tree:
        if options.verb == "run":
            guest = Guest(parts, available[options.machine], options.memory, options.timeout)
            return guest.run(script(options.words, tree), sys.stdout.buffer)
        chosen = [options.machine] if options.machine else list(available)
        line = script(pytest_words(options.words), tree)

        def run(name: str) -> int:
            began = time.monotonic()
            guest = Guest(parts, available[name], options.memory, options.timeout)
            status = guest.run(line, sys.stdout.buffer)
            _report(f"tests on {name} ended with status {status}", began)
            return status

        return highest_status(chosen, run, selected=bool(options.words))


def highest_status(chosen: Sequence[str], run: Callable[[str], int], *, selected: bool) -> int:
    """Run the tests on one machine after the other; return the highest status of pytest.

    ``selected`` says that the arguments select tests: a selection may leave a machine without
    tests, but not all of them. Raises BrokenEnvironment, unless tests have failed before.
    """
    statuses: list[int] = []
    for name in chosen:
        try:
            status = run(name)
        except program.BrokenEnvironment as error:
            if not any(statuses):
                raise
            _say(str(error))
            break
        if not (selected and status == _NO_TESTS):
            statuses.append(status)
    return max(statuses, default=_NO_TESTS)


def _report(title: str, started: float) -> None:
    _say(f"{title} ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    sys.exit(program.run("kernel", partial(main, sys.argv[1:])))

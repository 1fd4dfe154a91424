# SPDX-License-Identifier: Apache-2.0
"""Judge a change; ``.ci/run`` runs it."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cyborg_tools import program
from cyborg_tools.ci import selection
from cyborg_tools.ci.history import History
from cyborg_tools.ci.jobs import GATE, LONG, Job
from cyborg_tools.ci.kept import LATE_RUNS, LATE_TIMES, Runs, Verdict, Verdicts, environment_key
from cyborg_tools.ci.kept import directory as kept_directory
from cyborg_tools.ci.runner import Ended, Runner

ROOT = Path(__file__).parents[3]
_DESCRIPTION = """\
Judge the change that is checked out. Every run takes the steps of the gate. A long job runs if its
subject has changed since the commit that passed it last (.ci/passed.json), and in its turn, unless
the run would take more than 45 minutes: then it is put off, and the next run tries again. A run
that is repeated after a refusal skips the steps that passed, if neither the tree nor the
environment has changed. Logs of a refused run are kept. Ends with 1 if a step failed.
"""
#: Seconds from the start of a run to the expected end of its last long job.
LIMIT: Final = 2700.0
_say = partial(program.say, "ci")


def parse(arguments: Sequence[str], names: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed command line, and the options in it that name servers.

    ``names`` are those of the steps.
    """
    parser = argparse.ArgumentParser(
        prog=".ci/run",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    named = [
        parser.add_argument(f"--{server}-url", metavar="URL", help="see tools/test --help")
        for server in ("mysql", "postgresql", "rabbit")
    ]
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"run all long jobs; {selection.PASSED} gets the commit that passed them",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="STEP",
        choices=names,
        help="run only this step; may be given several times. A long job that passes is entered in "
        f"{selection.PASSED}, too. The steps: {', '.join(names)}",
    )
    parser.add_argument("--seed", help="seed of all choices (default: the commit)")
    parser.add_argument("--again", action="store_true", help="skip nothing that passed before")
    parser.add_argument("--plan", action="store_true", help="only say which long jobs would run")
    options = parser.parse_args(arguments)
    values = {option.option_strings[0]: getattr(options, option.dest) for option in named}
    return options, [f"{name}={value}" for name, value in values.items() if value]


def main(
    arguments: Sequence[str],
    *,
    root: Path = ROOT,
    gate: Sequence[Job] = GATE,
    long: Sequence[Job] = LONG,
    limit: float = LIMIT,
) -> int:
    """Say which long jobs run and why, and run the steps; return 1 if one failed."""
    steps = [*gate, *long]
    options, named = parse(arguments, [job.name for job in steps])
    history = History(root)
    commit, tree = history.commit(), history.tree()
    passed, began = selection.read(root), time.monotonic()
    chosen: Sequence[Job] = ()
    if options.only:
        steps = [job for job in steps if job.name in options.only]
    elif not options.full:
        choices = selection.choose(long, history, passed)
        for choice in choices:
            _say(f"{choice.job.name:15}{'runs' if choice.runs else 'left out'}: {choice.reason}")
        chosen = [choice.job for choice in choices if choice.runs]
        steps = [*gate, *chosen]
    if options.plan:
        return 0
    place = kept_directory(os.environ)
    key = f"{tree} {environment_key(named)}" if tree else None
    verdicts = Verdicts(place, None if options.again else key)
    runner = Runner(
        root, place / "logs", seed=options.seed or commit or "0", servers=named, say=_say
    )
    ended: dict[str, Ended] = {}
    results: dict[str, Verdict] = {}
    for job in steps:
        expected = selection.expected(passed.get(job.name))
        if job in chosen and time.monotonic() - began + expected > limit:
            _say(f"{job.name} is put off: it may take {expected:.0f} s, and a run {limit:.0f} s")
            continue
        kept = verdicts.get(job.name)
        print(f"\n== {job.name}: {job.title}", flush=True)
        if kept is not None:
            print(f"passed before the refusal of the last run: {kept.tests} tests", flush=True)
            results[job.name] = kept
            continue
        ended[job.name] = found = runner.run(job)
        results[job.name] = found.verdict
        if found.verdict.passed:
            verdicts.keep(job.name, found.verdict)
    late = [name for found in ended.values() for name in found.late]
    runs = Runs(place)
    runs.add(commit, late=late, mutants=[line for one in ended.values() for line in one.mutants])
    failed = [name for name, verdict in results.items() if not verdict.passed]
    show(results, late, runs.often_late())
    for name in failed:
        _say(f"{name} failed; its output is in {ended[name].log}")
    if failed:
        return 1
    verdicts.forget()
    seconds = {job.name: results[job.name].wall for job in long if job.name in results}
    if (options.full or options.only) and seconds and commit and tree:
        selection.write(root, commit, seconds)
        _say(f"commit {selection.PASSED}: it says which long jobs {commit[:12]} has passed")
    print(f"\n{sum(verdict.tests for verdict in results.values())} passed, 0 failed")
    return 0


def show(results: dict[str, Verdict], late: Sequence[str], often: Sequence[str]) -> None:
    """Print a table of the steps, and the tests that were late."""
    print(f"\n{'step':16}{'verdict':9}{'wall s':>8}{'cpu s':>8}{'tests':>8}")
    for name, verdict in results.items():
        word = "passed" if verdict.passed else "FAILED"
        print(f"{name:16}{word:9}{verdict.wall:8.0f}{verdict.cpu:8.0f}{verdict.tests:8}")
    wall, cpu = (sum(getattr(one, name) for one in results.values()) for name in ("wall", "cpu"))
    print(f"{'all':25}{wall:8.0f}{cpu:8.0f}")
    for name in late:
        print(f"late, passed alone: {name}")
    for name in often:
        print(f"late {LATE_TIMES} times in {LATE_RUNS} runs, a defect to repair: {name}")


if __name__ == "__main__":
    sys.exit(program.run("ci", partial(main, sys.argv[1:])))

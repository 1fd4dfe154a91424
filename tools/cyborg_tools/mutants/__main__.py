# SPDX-License-Identifier: Apache-2.0
"""Run mutation tests; see ``tools/mutants``."""

import argparse
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from cyborg_tools.mutants.mutations import Mutant, mutants
from cyborg_tools.mutants.session import KILLED, NOT_RUN, SURVIVED, MutationRun, Result
from cyborg_tools.mutants.subjects import EQUIVALENT, SUBJECTS, SURVIVORS, stale

ROOT = Path(__file__).parents[3]
#: A sample has at least so many subjects, and not many more mutants of each.
_LEAST_SUBJECTS, _MUTANTS_EACH = 2, 6


def main(arguments: Sequence[str]) -> int:
    """Run the mutants of the chosen subjects; return 1 if one survives that is not explained.

    With --measure a survivor is only printed.
    """
    options = _parse(arguments)
    names = sampled = options.subject or list(SUBJECTS)
    if options.sample is not None:
        print(f"The sample is that of --seed {options.seed}", flush=True)
        # The tests of each subject run once before its mutants: that takes longer than these.
        amount = min(len(names), max(_LEAST_SUBJECTS, options.sample // _MUTANTS_EACH))
        sampled = random.Random(options.seed).sample(names, amount)
    status = 0
    chosen: dict[str, list[Mutant]] = {}
    for name in names:
        subject = SUBJECTS[name]
        found = [mutant for file in subject.files for mutant in mutants(ROOT / file, ROOT)]
        for gone in stale(subject, found):
            print(f"{name}: no mutant has the explained name {gone}", file=sys.stderr)
            status = 1
        if name not in sampled:
            continue
        if options.only:
            found = [mutant for mutant in found if options.only in mutant.name]
        if options.sample is not None:
            amount = min(len(found), max(1, options.sample // len(sampled)))
            found = random.Random(f"{options.seed} {name}").sample(found, amount)
        chosen[name] = found
    if options.list:
        print(*(mutant.name for found in chosen.values() for mutant in found), sep="\n")
        return status
    results: list[Result] = []
    # One run for all subjects: their tests are imported once.
    run = MutationRun(
        [mutant for found in chosen.values() for mutant in found],
        jobs=options.jobs,
        report=partial(_show, results),
    )
    tests = dict.fromkeys(test for name in sampled for test in SUBJECTS[name].tests)
    ended = pytest.main(
        ["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *tests], plugins=[run]
    )
    if ended != pytest.ExitCode.OK:
        print(f"pytest ended with status {ended}", file=sys.stderr)
        return 1
    for name, found in chosen.items():
        own = {mutant.name for mutant in found}
        _summarise(name, [result for result in results if result.mutant.name in own])
    if len(chosen) > 1:
        _summarise("all", results)
    survivors = any(_verdict(result) in (SURVIVED, NOT_RUN) for result in results)
    return status or int(survivors and not options.measure)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/mutants", description=__doc__)
    parser.add_argument(
        "subject", nargs="*", help=f"what to mutate (default: all of {', '.join(SUBJECTS)})"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the mutants")
    parser.add_argument("--only", metavar="TEXT", help="only mutants whose name contains this")
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help=f"try N mutants, chosen at random, of {_LEAST_SUBJECTS} subjects or one for each "
        f"{_MUTANTS_EACH} mutants",
    )
    parser.add_argument("--seed", default=_commit(), help="of the choice (default: the commit)")
    parser.add_argument(
        "--measure", action="store_true", help="end with status 0 although mutants survive"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.subject) - set(SUBJECTS)):
        parser.error(f"there is no subject {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    return options


def _commit() -> str:
    """Return the commit that is checked out; an archive of the tree has none."""
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "0"


def _verdict(result: Result) -> str:
    name, verdict = result.mutant.name, result.verdict
    if verdict == KILLED:
        return verdict
    return "equivalent" if name in EQUIVALENT else "known" if name in SURVIVORS else verdict


def _show(results: list[Result], result: Result) -> None:
    results.append(result)
    mutant, verdict = result.mutant, _verdict(result)
    if verdict in (SURVIVED, NOT_RUN):
        where = f"{mutant.name} (line {mutant.line})"
        print(f"{verdict.upper()}: {where}\n    {mutant.text}", flush=True)
    elif verdict == KILLED and mutant.name in {*EQUIVALENT, *SURVIVORS}:
        print(f"explained, but killed: {mutant.name}", flush=True)


def _summarise(name: str, results: Sequence[Result]) -> None:
    counts = Counter(map(_verdict, results))
    relevant = len(results) - counts["equivalent"]
    share = 100 * counts[KILLED] / relevant if relevant else 100.0
    print(f"{name}: {share:.1f} % of {relevant} killed; {dict(counts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Run mutation tests; see ``tools/mutants``."""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from cyborg_tools.mutants.mutations import mutants
from cyborg_tools.mutants.session import KILLED, MutationRun, Result
from cyborg_tools.mutants.subjects import EQUIVALENT, SUBJECTS

ROOT = Path(__file__).parents[3]


def main(arguments: Sequence[str]) -> int:
    """Run the mutants of the chosen subjects; return 1 if one survives that is not explained."""
    options = _parse(arguments)
    names = options.subject or sorted(SUBJECTS)
    results: list[Result] = []
    for name in names:
        subject = SUBJECTS[name]
        chosen = [mutant for file in subject.files for mutant in mutants(ROOT / file, ROOT)]
        if options.only:
            chosen = [mutant for mutant in chosen if options.only in mutant.name]
        if options.list:
            print(*(mutant.name for mutant in chosen), sep="\n")
            continue
        if options.sample is not None:
            amount = min(len(chosen), max(1, options.sample // len(names)))
            chosen = random.Random(options.seed).sample(chosen, amount)
        found: list[Result] = []
        run = MutationRun(chosen, jobs=options.jobs, report=partial(_show, found))
        print(f"{name}: {len(chosen)} mutants", flush=True)
        status = pytest.main(
            ["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *subject.tests],
            plugins=[run],
        )
        if status != pytest.ExitCode.OK:
            print(f"{name}: pytest ended with status {status}", file=sys.stderr)
            return 1
        results += found
        _summarise(name, found)
    if len(names) > 1 and not options.list:
        _summarise("all", results)
    return int(any(_unexplained(result) for result in results))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/mutants", description=__doc__)
    parser.add_argument(
        "subject", nargs="*", help=f"what to mutate (default: all of {', '.join(sorted(SUBJECTS))})"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the mutants")
    parser.add_argument("--only", metavar="TEXT", help="only mutants whose name contains this")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants, chosen at random")
    parser.add_argument("--seed", default="0", help="of the choice; another one tries others")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.subject) - set(SUBJECTS)):
        parser.error(f"there is no subject {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    return options


def _unexplained(result: Result) -> bool:
    return result.verdict != KILLED and result.mutant.name not in EQUIVALENT


def _show(results: list[Result], result: Result) -> None:
    results.append(result)
    if result.verdict != KILLED:
        mutant = result.mutant
        verdict = "equivalent" if mutant.name in EQUIVALENT else result.verdict.upper()
        print(f"{verdict}: {mutant.name} (line {mutant.line})\n    {mutant.text}", flush=True)


def _summarise(name: str, results: Sequence[Result]) -> None:
    counts = Counter(
        "equivalent"
        if result.verdict != KILLED and result.mutant.name in EQUIVALENT
        else result.verdict
        for result in results
    )
    relevant = len(results) - counts["equivalent"]
    share = 100 * counts[KILLED] / relevant if relevant else 100.0
    print(f"{name}: {share:.1f} % of {relevant} killed; {dict(counts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

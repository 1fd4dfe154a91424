# SPDX-License-Identifier: Apache-2.0
"""Run the test suites that other projects publish, each test with its outcome."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyborg.tests.fixtures.waiting import PATIENCE


@dataclass(frozen=True)
class Outcomes:
    """The names of the tests (class and method), by what became of them, and the end of the log."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]
    log: str


def run(modules: Sequence[str], environment: Mapping[str, str]) -> Outcomes:
    """Run the unittest modules in a process of their own.

    Each of their tests may take as long as any wait of ours: openstacksdk gives its own 5 seconds.
    """
    limit = {"OS_TEST_TIMEOUT": str(int(PATIENCE))}
    ran = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("suite_child.py")), *modules],
        env={**environment, **limit},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    log, _, last = ran.stdout.rstrip().rpartition("\n")
    outcomes: dict[str, str] = json.loads(last)

    def those(wanted: str) -> frozenset[str]:
        return frozenset(_short(test) for test, outcome in outcomes.items() if outcome == wanted)

    return Outcomes(those("passed"), those("failed"), those("skipped"), log[-20000:])


def _short(test: str) -> str:
    """Without the module; tempest appends its tags in brackets."""
    return ".".join(test.partition("[")[0].split(".")[-2:])

# SPDX-License-Identifier: Apache-2.0
"""Which long jobs a run takes, and why.

The file ``PASSED`` says at which commit each of them passed last.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cyborg_tools.ci.history import History
from cyborg_tools.ci.jobs import TURNS, Job

#: The file, below the root, that ``.ci/run --full`` writes and its author commits.
PASSED: Final = Path(".ci/passed.json")
#: Without a commit that passed, the paths of so many commits decide.
_RECENT: Final = 50
#: A machine that others use as well took twice as long as one without other work.
_SLOWER: Final = 2.0
#: Seconds of a job whose duration is not known: about the longest.
_UNKNOWN: Final = 1200.0


@dataclass(frozen=True)
class Passed:
    """When a long job passed last: at which commit, and in how many seconds."""

    commit: str
    seconds: float


@dataclass(frozen=True)
class Choice:
    """Whether a run takes a long job, with the reason."""

    job: Job
    runs: bool
    reason: str


def choose(jobs: Iterable[Job], history: History, passed: Mapping[str, Passed]) -> list[Choice]:
    """Return a choice for each job; ``passed`` says by their names when they passed.

    In doubt a job runs.
    """
    turn = history.number() % TURNS
    return [_choose(job, history, passed.get(job.name), turn) for job in jobs]


def expected(passed: Passed | None) -> float:
    """Return how many seconds a long job may take on a machine that others use as well."""
    return _SLOWER * passed.seconds if passed else _UNKNOWN


def _choose(job: Job, history: History, passed: Passed | None, turn: int) -> Choice:
    changed = history.changed_since(passed.commit) if passed else None
    since = f"since {passed.commit[:12]} passed" if passed else ""
    if changed is None:
        changed, since = history.recently_changed(_RECENT), f"in the last {_RECENT} commits"
    if changed is None:
        return Choice(job, True, "the history does not say what has changed")
    subject = next((path for path in changed if concerns(job.subjects, path)), None)
    if subject:
        return Choice(job, True, f"{subject} has changed {since}")
    if job.turn == turn:
        return Choice(job, True, f"it is its turn: every {TURNS} commits, number {turn}")
    return Choice(job, False, f"none of its files has changed {since}")


def concerns(subjects: Sequence[str], path: str) -> bool:
    """Return whether a path is one of the subjects, or in a directory of them."""
    return any(path == subject or path.startswith(f"{subject}/") for subject in subjects)


def read(root: Path) -> dict[str, Passed]:
    """Return when long jobs passed; what the file does not say is not there."""
    document = _read(root)
    try:
        return {
            str(name): Passed(str(entry["commit"]), float(entry["seconds"]))
            for name, entry in document.items()
        }
    except (KeyError, TypeError, ValueError):
        return {}


def write(root: Path, commit: str, seconds: Mapping[str, float]) -> None:
    """Enter long jobs that have passed; ``seconds`` has how long each took."""
    day = datetime.now(UTC).date().isoformat()
    passed = {
        name: {"commit": commit, "seconds": round(took), "date": day}
        for name, took in seconds.items()
    }
    document = dict(sorted({**_read(root), **passed}.items()))
    (root / PASSED).write_text(json.dumps(document, indent=2) + "\n")


def _read(root: Path) -> dict[str, Any]:
    try:
        document = json.loads((root / PASSED).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}

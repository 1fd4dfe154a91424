# SPDX-License-Identifier: Apache-2.0
"""What a machine keeps of the runs on it: verdicts of a refused run, and tests that were late."""

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

#: A test that is late so often in so many runs is a defect.
LATE_TIMES, LATE_RUNS = 3, 20
_DPKG: Final = Path("/var/lib/dpkg/status")


def directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the XDG base directory specification."""
    home = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cyborg-ci"


def environment_key(servers: Iterable[str]) -> str:
    """Return a hash of what besides the tree decides a verdict: Python, packages and servers."""
    digest = hashlib.sha256(platform.python_version().encode())
    for name in sorted(f"{one.name} {one.version}" for one in distributions()):
        digest.update(name.encode())
    if _DPKG.exists():
        digest.update(_DPKG.read_bytes())
    digest.update(repr((os.geteuid(), *servers)).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Verdict:
    """How a step ended: wall time and processor time in seconds, and how many tests passed."""

    passed: bool
    wall: float
    cpu: float
    tests: int


class Verdicts:
    """The steps of a refused run that passed, for the same tree in the same environment.

    A run that begins where another was refused skips them, so a refusal costs one step. A run in
    which all steps passed leaves nothing: the next run does everything again.
    """

    def __init__(self, place: Path, key: str | None) -> None:
        """``key`` names tree and environment; with None nothing is read or kept."""
        self._path = place / "verdicts.json"
        self._key = key
        self._verdicts: dict[str, Any] = {}
        document = _read(self._path, {})
        if key is not None and document.get("key") == key:
            self._verdicts = document["verdicts"]

    def get(self, name: str) -> Verdict | None:
        """Return the verdict of a step that passed in the refused run before."""
        kept = self._verdicts.get(name)
        return Verdict(**kept) if kept else None

    def keep(self, name: str, verdict: Verdict) -> None:
        """Keep the verdict of a step that passed."""
        if self._key is not None:
            self._verdicts[name] = asdict(verdict)
            _write(self._path, {"key": self._key, "verdicts": self._verdicts})

    def forget(self) -> None:
        """Keep nothing: all steps have passed."""
        self._path.unlink(missing_ok=True)


class Runs:
    """The last runs on this machine: when, what was late, and the figures of the mutants."""

    def __init__(self, place: Path) -> None:
        self._path = place / "runs.json"

    def add(self, commit: str | None, *, late: Iterable[str], mutants: Iterable[str]) -> None:
        """Add a run."""
        run = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "late": sorted(set(late)),
            "mutants": list(mutants),
        }
        _write(self._path, [*_read(self._path, []), run][-LATE_RUNS:])

    def often_late(self) -> list[str]:
        """Return the tests that were late too often."""
        runs = _read(self._path, [])
        counts = Counter(name for run in runs for name in run["late"])
        return sorted(name for name, count in counts.items() if count >= LATE_TIMES)


def _read(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return default


def _write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)

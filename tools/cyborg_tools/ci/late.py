# SPDX-License-Identifier: Apache-2.0
"""Which failures of a run of the tests are worth a second look: those that are late alone.

``cyborg/tests/fixtures/verdicts.py`` writes the names of failed and of late tests.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Final

#: Packages whose tests are about time itself: a late test there is a failure.
STRICT: Final = frozenset({"crash", "machine", "races", "rules"})
#: More late tests than this are no accident.
_MOST: Final = 10


def repeatable(failures: Path) -> list[str]:
    """Return the tests that may run once more, alone: none unless that can make the run pass."""
    try:
        document = json.loads(failures.read_text())
    except (FileNotFoundError, ValueError):
        return []
    late = [str(name) for name in document["late"]]
    hopeless = set(document["failed"]) - set(late)
    if hopeless or len(late) > _MOST or any(map(is_strict, late)):
        return []
    return late


def is_strict(name: str) -> bool:
    """Return whether the file or test with this name is about time itself."""
    return bool(STRICT & set(PurePosixPath(name.partition("::")[0]).parts))

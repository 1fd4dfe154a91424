# SPDX-License-Identifier: Apache-2.0
"""Which functional tests the gate takes: those of what has changed, and a third of the others.

The long job ``functional`` takes all of them.
"""

from pathlib import Path, PurePosixPath
from typing import Final

from cyborg_tools.ci import changed
from cyborg_tools.ci.history import History
from cyborg_tools.ci.late import is_strict

#: So many successive commits take all files.
SHARES: Final = 3
_FUNCTIONAL: Final = "cyborg/tests/functional"


def left_out(root: Path, history: History, passed: str | None) -> list[str]:
    """Return the files of functional tests that the gate leaves out, sorted.

    ``passed`` is the commit at which all of them passed; without one nothing is left out. What is
    about crashes, races and time is not left out, nor is a file that changed since, that imports
    what did, or that shares a directory with helpers that did.
    """
    paths = history.changed_since(passed) if passed else None
    if paths is None:
        return []
    needed = set(changed.tests_of(root, paths))
    helped = {
        str(PurePosixPath(path).parent)
        for path in paths
        if path.startswith(f"{_FUNCTIONAL}/") and not PurePosixPath(path).match("test_*.py")
    }
    files = sorted(
        file.relative_to(root).as_posix() for file in (root / _FUNCTIONAL).rglob("test_*.py")
    )
    shares = enumerate(name for name in files if not is_strict(name))
    return [
        name
        for place, name in shares
        if (place + history.number()) % SHARES
        and name not in needed
        and not helped & set(map(str, PurePosixPath(name).parents))
    ]
